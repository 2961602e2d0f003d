//! REST of the Open Inference Protocol: JSON, and binary tensors after it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neptune_gateway_fuzz::{
    check_batch, config::Protocol, parts, payload_with_header, protocol::batch::Form,
};

fuzz_target!(|input: &[u8]| {
    let [request, edge, cloud] = parts(input).map(payload_with_header);
    let Some(request) = request else { return };
    let (edge, cloud) = (edge.unwrap_or_default(), cloud.unwrap_or_default());
    check_batch(Form::Rest(Protocol::Oip), &request, &edge, &cloud);
});

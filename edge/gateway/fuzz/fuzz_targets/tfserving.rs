//! REST of TensorFlow Serving: rows and columns.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use neptune_gateway_fuzz::{
    check_batch,
    config::Protocol,
    parts,
    protocol::{Payload, batch::Form},
};

fuzz_target!(|input: &[u8]| {
    let [request, edge, cloud] =
        parts(input).map(|part| Payload::from(Bytes::copy_from_slice(part)));
    check_batch(Form::Rest(Protocol::Tfserving), &request, &edge, &cloud);
});

//! gRPC of the Open Inference Protocol: frames, messages, raw and typed contents.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use neptune_gateway_fuzz::{
    check_batch, parts,
    protocol::{
        Payload,
        batch::Form,
        grpc::{self, Target, renamed},
    },
};

fuzz_target!(|input: &[u8]| {
    let [request, edge, cloud] = parts(input).map(Bytes::copy_from_slice);
    if let Ok(message) = grpc::message(request.clone()) {
        let prefix = grpc::prefix(message.len()).expect("the frame has this length");
        assert_eq!([&prefix[..], &message[..]].concat(), request);
    }
    let [request, edge, cloud] = [request, edge, cloud].map(Payload::from);
    if Target::from_message(&request.body).is_ok()
        && let Ok(other) = renamed(&request, "other", false)
    {
        let target = Target::from_message(&other.body).expect("it was read before");
        assert_eq!((&*target.model_name, &*target.model_version), ("other", ""));
    }
    for cloud_model in [None, Some("big")] {
        check_batch(Form::Grpc { cloud_model }, &request, &edge, &cloud);
    }
});

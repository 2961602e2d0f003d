//! Rows of messages, malformed messages, and forms of contents.
#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use neptune_cascade::rows::Selection;
use proptest::prelude::*;
use prost::Message as _;

use super::{
    contents,
    inference::{
        ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor,
        model_infer_response::InferOutputTensor,
    },
    *,
};
use crate::protocol::Payload;

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..Default::default()
    }
}

fn request(inputs: Vec<InferInputTensor>, raw: Vec<Vec<u8>>) -> Payload {
    let raw_input_contents = raw.into_iter().map(Bytes::from).collect();
    let (model_name, model_version) = ("small".to_owned(), "3".to_owned());
    ModelInferRequest {
        model_name,
        model_version,
        inputs,
        raw_input_contents,
        ..Default::default()
    }
    .encode_to_vec()
    .into()
}

/// The servers answer what they got.
fn answer(payload: &Payload) -> Payload {
    let request = ModelInferRequest::decode(payload.body.clone()).unwrap();
    let output = |input: InferInputTensor| InferOutputTensor {
        name: input.name,
        datatype: input.datatype,
        shape: input.shape,
        contents: input.contents,
        ..Default::default()
    };
    ModelInferResponse {
        model_version: "3".to_owned(),
        outputs: request.inputs.into_iter().map(output).collect(),
        raw_output_contents: request.raw_input_contents,
        ..Default::default()
    }
    .encode_to_vec()
    .into()
}

/// Returns the same request with typed contents.
fn typed(payload: &Payload) -> Option<Payload> {
    let mut request = ModelInferRequest::decode(payload.body.clone()).unwrap();
    for (input, raw) in
        request.inputs.iter_mut().zip(std::mem::take(&mut request.raw_input_contents))
    {
        input.contents = Some(contents::decoded(&input.datatype, &raw)?);
    }
    Some(request.encode_to_vec().into())
}

#[test]
fn frames_are_divided_only_if_the_length_fits() {
    assert_eq!(prefix(258).unwrap(), [0, 0, 0, 1, 2][..]);
    let body = |bytes: &'static [u8]| message(Bytes::from_static(bytes));
    assert_eq!(body(&[0, 0, 0, 0, 2, 7, 8]), Ok(Bytes::from_static(&[7, 8])));
    for (bytes, text) in [
        (&[0, 0, 0, 0][..], "the body has 4 bytes; the frame of a message has 5"),
        (&[0, 0, 0, 0, 2, 7], "the message has 2 bytes by its frame, but 1 bytes follow"),
        (
            &[0, 255, 255, 255, 255],
            "the message has 4294967295 bytes by its frame, but 0 bytes follow",
        ),
        (&[1, 0, 0, 0, 1, 7], "the message is compressed, without grpc-encoding"),
    ] {
        assert_eq!(body(bytes).unwrap_err().to_string(), text);
    }
}

#[test]
fn methods_are_known_by_their_path() {
    let path = |method: &str| format!("{SERVICE}{method}");
    assert!(is_unary(MODEL_INFER) && is_unary(&path("ServerLive")));
    assert!(!is_unary(&path("ModelStreamInfer")) && !is_unary("/grpc.health.v1.Health/Check"));
    assert!(is_inference(&path("ModelStreamInfer")) && !is_inference(&path("ServerLive")));
    assert!(is_shared_memory(&path("CudaSharedMemoryRegister")));
    assert_eq!((method(MODEL_INFER), method("/a/B")), ("ModelInfer", "/a/B"));
}

#[test]
fn model_is_renamed_for_the_cloud_without_the_version() {
    let body = request(vec![input("x", "BOOL", &[2])], vec![vec![1, 0]]);
    let target = Target::from_message(&body.body).unwrap();
    assert_eq!((&*target.model_name, &*target.model_version), ("small", "3"));
    let part = Request::parse(&body, Some("p"), Some("big")).unwrap().unwrap();
    assert_eq!((part.rows(), part.added(), part.edge_body()), (2, None, None));
    let part = part.cloud_body(&Selection::new(&[false, true])).unwrap();
    let whole = renamed(&body, "big", false).unwrap();
    for (payload, shape, data) in [(part, 1, &[0][..]), (whole, 2, &[1, 0])] {
        let sent = ModelInferRequest::decode(payload.body).unwrap();
        assert_eq!((&*sent.model_name, &*sent.model_version), ("big", ""));
        assert_eq!(
            (&sent.inputs[0].shape[..], &sent.raw_input_contents[0][..]),
            (&[shape][..], data)
        );
    }
    let pinned = Target::from_message(&renamed(&body, "other", true).unwrap().body).unwrap();
    assert_eq!((&*pinned.model_name, &*pinned.model_version), ("other", "3"));
}

#[test]
fn malformed_message_is_refused_with_the_tensor_and_the_numbers() {
    let two = || vec![input("a", "FP32", &[2]), input("b", "INT8", &[2])];
    let mut mixed = two();
    mixed[1].contents = contents::decoded("INT8", &[1, 2]);
    let mut range = vec![input("a", "UINT8", &[1])];
    range[0].contents = contents::decoded("UINT32", &[0, 1, 0, 0]);
    for (payload, text) in [
        (request(two(), vec![vec![0; 8]]), "raw_input_contents has 1 entries for 2 inputs"),
        (
            request(mixed, vec![vec![0; 8], vec![0; 2]]),
            "input \"b\" has contents, and the request has raw_input_contents; give one of them",
        ),
        (
            request(two(), vec![vec![0; 8], vec![0; 3]]),
            "input \"b\": the data have length 3, but their shape requires 2",
        ),
        (request(two(), vec![]), "input \"a\": the data have length 0, but their shape requires 8"),
        (request(range, vec![]), "the contents of input \"a\" are not UINT8"),
        (
            request(
                vec![input("a", "BOOL", &[2]), input("b", "BOOL", &[1])],
                vec![vec![0; 2], vec![0]],
            ),
            "input \"a\" has 2 rows, \"b\" has 1: they have to be equal",
        ),
    ] {
        let error = Request::parse(&payload, None, None).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let broken = Payload::from(vec![0x0a, 0xff]);
    let error = Request::parse(&broken, None, None).unwrap_err().to_string();
    assert!(error.starts_with("the message is no ModelInferRequest: "), "{error}");
    let unknown = request(vec![input("a", "FP8", &[2])], vec![vec![0; 2]]);
    assert!(Request::parse(&unknown, None, None).unwrap().is_none());
    let claims = request(vec![input("a", "FP32", &[1 << 40, 0])], vec![vec![]]);
    assert!(Request::parse(&claims, None, None).unwrap().is_none(), "rows without data");
}

#[test]
fn output_that_the_client_did_not_ask_for_is_asked_for_and_removed() {
    let body = request(vec![input("x", "BOOL", &[1])], vec![vec![1]]);
    let mut message = ModelInferRequest::decode(body.body).unwrap();
    message.outputs.push(inference::model_infer_request::InferRequestedOutputTensor {
        name: "label".to_owned(),
        ..Default::default()
    });
    let body = Payload::from(message.encode_to_vec());
    let request_with = |output| Request::parse(&body, Some(output), None).unwrap().unwrap();
    assert_eq!(request_with("label").edge_body(), None);
    let edge = ModelInferRequest::decode(request_with("p").edge_body().unwrap().body).unwrap();
    let names: Vec<&str> = edge.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(names, ["label", "p"]);
    let both = request(
        vec![input("label", "BOOL", &[1]), input("p", "FP32", &[1, 2])],
        vec![vec![1], vec![0; 8]],
    );
    let both = answer(&both);
    let stripped = Answer::parse(&both).unwrap().stripped("p");
    let stripped = ModelInferResponse::decode(stripped.body).unwrap();
    assert_eq!(
        (stripped.outputs.len(), &stripped.raw_output_contents[..]),
        (1, &[Bytes::from_static(&[1])][..])
    );
}

#[test]
fn merged_answer_keeps_the_form_of_the_edge_and_differences_are_named() {
    let floats =
        |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let edge = request(vec![input("p", "FP32", &[2, 2])], vec![floats(&[1.0, 2.0, 3.0, 4.0])]);
    let cloud = request(vec![input("p", "FP32", &[1, 2])], vec![floats(&[8.0, 9.0])]);
    let hard = Selection::new(&[false, true]);
    for edge in [edge.clone(), typed(&edge).unwrap()] {
        for cloud in [cloud.clone(), typed(&cloud).unwrap()] {
            let (edge, cloud) = (answer(&edge), answer(&cloud));
            let edge = Answer::parse(&edge).unwrap();
            let merged =
                edge.merge(&Answer::parse(&cloud).unwrap(), &hard, "edge,cloud", None).unwrap();
            let merged = ModelInferResponse::decode(merged.body).unwrap();
            let expected = [1.0, 2.0, 8.0, 9.0];
            match merged.raw_output_contents.first() {
                Some(raw) => assert_eq!(*raw, floats(&expected)),
                None => {
                    assert_eq!(
                        merged.outputs[0].contents.as_ref().unwrap().fp32_contents,
                        expected
                    );
                }
            }
            let by =
                inference::infer_parameter::ParameterChoice::StringParam("edge,cloud".to_owned());
            assert_eq!(merged.parameters["neptune_answered_by"].parameter_choice, Some(by));
            assert_eq!(edge.version().as_deref(), Some("3"));
        }
    }
    let other = answer(&request(vec![input("p", "FP32", &[1, 3])], vec![floats(&[1.0; 3])]));
    let edge = answer(&edge);
    let error =
        Answer::parse(&edge).unwrap().merge(&Answer::parse(&other).unwrap(), &hard, "", None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "outputs of the two models differ (edge p FP32 [-1,2], cloud p FP32 [-1,3]): a request is answered by one of them as a whole"
    );
}

proptest! {
    #[test]
    fn rows_that_are_cut_out_and_put_back_are_the_original(
        (tensors, mask) in (1_usize..6).prop_flat_map(|rows| (
            prop::collection::vec(crate::protocol::oip::any_tensor(rows), 1..4),
            prop::collection::vec(any::<bool>(), rows),
        )),
        is_typed in any::<bool>(),
    ) {
        let inputs = tensors.iter().enumerate();
        let inputs = inputs.map(|(index, (datatype, shape, _))| input(&format!("t{index}"), datatype, shape));
        let raw = tensors.iter().map(|(_, _, data)| data.clone()).collect();
        let whole = request(inputs.collect(), raw);
        let whole = typed(&whole).filter(|_| is_typed).unwrap_or(whole);
        let hard = Selection::new(&mask);
        let Some(sent) = Request::parse(&whole, None, None).unwrap() else { return Ok(()) };
        let part = sent.cloud_body(&hard).unwrap();
        let (edge, cloud) = (answer(&whole), answer(&part));
        let edge = Answer::parse(&edge).unwrap();
        let merged = edge.merge(&Answer::parse(&cloud).unwrap(), &hard, "x", None).unwrap();
        let mut merged = ModelInferResponse::decode(merged.body).unwrap();
        merged.parameters.clear();
        prop_assert_eq!(merged.encode_to_vec(), answer(&whole).body);
    }

    #[test]
    fn no_message_fails(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        data in prop::collection::vec(any::<u8>(), 0..30),
        shape in prop::collection::vec(prop_oneof![0_i64..5, any::<i64>()], 0..3),
        datatype in prop::sample::select(vec!["FP32", "BYTES", "BOOL", "FP16", "none"]),
        mask in prop::collection::vec(any::<bool>(), 0..5),
    ) {
        let _ = message(bytes.clone().into());
        let hard = Selection::new(&mask);
        let tensors = request(vec![input("x", datatype, &shape)], vec![data]);
        for payload in [Payload::from(bytes), answer(&tensors), tensors] {
            let _ = (Target::from_message(&payload.body), renamed(&payload, "m", true));
            if let Ok(Some(request)) = Request::parse(&payload, Some("y"), None) {
                let _ = (request.cloud_body(&hard), request.edge_body());
            }
            if let Some(answer) = Answer::parse(&payload) {
                let _ = (answer.scores(None, mask.len()), answer.stripped("x"));
                let _ = answer.merge(&answer, &hard, "", Some("x"));
            }
        }
    }
}

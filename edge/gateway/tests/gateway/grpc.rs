//! The Open Inference Protocol over gRPC: easy answers, split batches, other methods, refusals.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use neptune_gateway::protocol::grpc::{
    inference::{
        InferTensorContents, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
        ServerLiveRequest, ServerLiveResponse, infer_parameter::ParameterChoice,
    },
    prefix,
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer},
};
use tonic::Code;

use crate::{
    grpc_server::{
        GrpcServer, SERVICE, Script, call, channel, cloud_model, decision, edge_model, floats,
        infer, parts, raw_infer, rows, scores, setup,
    },
    harness::Setup,
};

async fn servers(changes: Value) -> (Setup, GrpcServer, GrpcServer) {
    let (edge, cloud) = (GrpcServer::start(edge_model).await, GrpcServer::start(cloud_model).await);
    (setup(edge.address, cloud.address, changes).await, edge, cloud)
}

#[tokio::test]
async fn easy_answer_is_the_edges() {
    let (setup, edge, cloud) = servers(json!({})).await;
    for is_raw in [true, false] {
        let request = rows(&[0.875, 0.9375], is_raw);
        let answer =
            infer(&setup, &[("authorization", "Bearer client")], request.clone()).await.unwrap();
        assert_eq!(decision(&answer), parts("edge", "easy"));
        assert_eq!(answer.metadata().get("x-neptune-confidence").unwrap(), "0.8750");
        assert_eq!(answer.metadata().get("x-server").unwrap(), "1", "the edge's metadata");
        let Script::Answer(expected) = edge_model(&request) else { panic!("an answer") };
        assert_eq!(*answer.get_ref(), *expected);
        let (headers, received) = edge.received().pop().unwrap();
        assert_eq!(
            (received, &headers["authorization"]),
            (request, &"Bearer client".parse().unwrap())
        );
    }
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn hard_rows_are_uploaded_in_one_call_and_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let (setup, _edge, cloud) = servers(json!({"cloud": {"tokenFile": token}})).await;
    for is_raw in [true, false] {
        let request = rows(&[0.875, 0.5, 0.9375, 0.625], is_raw);
        let metadata = [("authorization", "Bearer client"), ("traceparent", "00-a-b-01")];
        let answer = infer(&setup, &metadata, request).await.unwrap();
        assert_eq!(decision(&answer), parts("edge,cloud,edge,cloud", "easy,hard,easy,hard"));
        let message = answer.get_ref();
        assert_eq!(scores(message), [0.875, 0.125, 0.0, 1.0, 0.9375, 0.0625, 0.0, 1.0]);
        assert_eq!((&*message.model_name, &*message.id), ("small", "7"));
        assert_eq!(message.raw_output_contents.is_empty(), !is_raw);
        let by = ParameterChoice::StringParam("edge,cloud,edge,cloud".to_owned());
        assert_eq!(message.parameters["neptune_answered_by"].parameter_choice, Some(by));
        let (headers, sent) = cloud.received().pop().unwrap();
        let mut expected = rows(&[0.5, 0.625], is_raw);
        expected.model_name = "big".to_owned();
        expected.inputs[1].contents = sent.inputs[1].contents.clone();
        if is_raw {
            expected.raw_input_contents[1] = Bytes::from_static(b"\x01\0\0\0t\x03\0\0\0ttt");
        } else {
            let texts = sent.inputs[1].contents.clone().unwrap().bytes_contents;
            assert_eq!(texts, ["t", "ttt"]);
        }
        assert_eq!(sent, expected);
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(headers["traceparent"], "00-a-b-01");
        assert!(headers["grpc-timeout"].to_str().unwrap().ends_with('m'));
    }
    let status = setup.status().await;
    assert_eq!(
        (&status["samples"]["inference"], &status["samples"]["cloud"]),
        (&json!(8), &json!(4))
    );
    let metrics = setup.page("/metrics").await;
    let line = r#"neptune_gateway_requests_total{service="test",protocol="oip",code="200"} 2"#;
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

#[tokio::test]
async fn pinned_request_never_reaches_the_cloud() {
    let (setup, edge, cloud) = servers(json!({})).await;
    let by_metadata = infer(&setup, &[("x-neptune-route", "edge")], rows(&[0.5], true)).await;
    let mut named = rows(&[0.5], true);
    named.model_name = "small@edge".to_owned();
    let by_name = infer(&setup, &[], named.clone()).await;
    for answer in [by_metadata, by_name] {
        assert_eq!(decision(&answer.unwrap()), parts("edge", "pinned"));
    }
    edge.become_script(|_| Script::Fail(tonic::Status::unavailable("loading")));
    let refused = infer(&setup, &[], named).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::Unavailable,
            "this request is pinned to the edge, whose model server does not answer"
        )
    );
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn models_with_other_outputs_answer_requests_as_a_whole() {
    let (setup, _edge, cloud) = servers(json!({})).await;
    cloud.become_script(|request| {
        let Script::Answer(mut answer) = cloud_model(request) else { panic!("an answer") };
        answer.outputs[0].name = "q".to_owned();
        Script::Answer(answer)
    });
    let request = rows(&[0.875, 0.5], true);
    let first = infer(&setup, &[], request.clone()).await.unwrap();
    assert_eq!(decision(&first), parts("edge", "easy,fallback"), "found out by this answer");
    let second = infer(&setup, &[], request).await.unwrap();
    assert_eq!(decision(&second), parts("cloud", "hard"));
    assert_eq!(
        (&*second.get_ref().outputs[0].name, cloud.received()[1].1.inputs[0].shape[0]),
        ("q", 2)
    );
}

#[tokio::test]
async fn shadows_are_compared_after_the_answer() {
    let (setup, _edge, cloud) = servers(json!({"hardExample": {"shadowRatio": 1}})).await;
    let answer = infer(&setup, &[], rows(&[0.875, 0.0625, 0.125], true)).await.unwrap();
    assert_eq!(decision(&answer), parts("edge", "easy"));
    setup.until("three shadows", |status| status["samples"]["shadow"] == 3).await;
    assert_eq!(
        (&setup.status().await["samples"]["agreed"], cloud.received().len()),
        (&json!(2), 1)
    );
}

#[tokio::test]
async fn other_methods_and_errors_pass_unchanged() {
    let (setup, edge, cloud) = servers(json!({})).await;
    let name = "small".to_owned();
    let request = ModelMetadataRequest { name: name.clone(), ..Default::default() };
    let metadata =
        call::<_, ModelMetadataResponse>(&setup, "ModelMetadata", &[], request).await.unwrap();
    assert_eq!((&metadata.get_ref().name, decision(&metadata)), (&name, parts("", "")));
    let live = call::<_, ServerLiveResponse>(&setup, "ServerLive", &[], ServerLiveRequest {}).await;
    let live = live.unwrap_err();
    assert_eq!((live.code(), live.message()), (Code::Unimplemented, "no such method at the edge"));
    let memory = call::<_, ServerLiveResponse>(
        &setup,
        "SystemSharedMemoryStatus",
        &[],
        ServerLiveRequest {},
    );
    let memory = memory.await.unwrap_err();
    assert_eq!(
        (memory.code(), memory.message()),
        (Code::Unimplemented, "SystemSharedMemoryStatus: shared memory of Triton is not supported")
    );
    let mut unknown = rows(&[0.5], true);
    unknown.model_name = "other".to_owned();
    let unknown = infer(&setup, &[], unknown).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "no model other"));
    // A server without compression refuses it, and the gateway leaves that to it.
    let compressed =
        infer(&setup, &[("grpc-encoding", "gzip")], rows(&[0.5], true)).await.unwrap_err();
    assert_eq!(compressed.code(), Code::Unimplemented);
    assert!(compressed.message().contains("gzip"), "{compressed:?}");
    edge.become_script(|_| Script::Answer(Box::default()));
    let empty = infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
    assert_eq!(decision(&empty), parts("edge", "unjudged"));
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn streams_pass_in_both_directions() {
    let (setup, _edge, _cloud) = servers(json!({"timeouts": {"client": "200ms"}})).await;
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let stream = futures::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|message| (message, receiver))
    });
    let mut client = tonic::client::Grpc::new(channel(&setup).await);
    client.ready().await.unwrap();
    let path = format!("{SERVICE}ModelStreamInfer").parse().unwrap();
    let codec = tonic_prost::ProstCodec::<ModelInferResponse, ModelInferResponse>::default();
    sender.send(named("0")).unwrap();
    let mut answer = client.streaming(tonic::Request::new(stream), path, codec).await.unwrap();
    assert_eq!(decision(&answer), parts("edge", "unjudged"));
    assert_eq!(answer.get_mut().message().await.unwrap(), Some(named("0")));
    // Longer than a client may pause within a message.
    tokio::time::sleep(Duration::from_millis(400)).await;
    sender.send(named("1")).unwrap();
    assert_eq!(answer.get_mut().message().await.unwrap(), Some(named("1")));
    drop(sender);
    assert_eq!(answer.get_mut().message().await.unwrap(), None);
    let trailers = answer.get_mut().trailers().await.unwrap().unwrap();
    assert_eq!(trailers.get("x-end").unwrap(), "1");
}

fn named(name: &str) -> ModelInferResponse {
    ModelInferResponse { model_name: name.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn malformed_messages_are_refused_with_the_reason() {
    let (setup, edge, _cloud) = servers(json!({"limits": {"maxBodyBytes": 400}})).await;
    let mut mixed = rows(&[0.5], true);
    mixed.inputs[0].contents = Some(InferTensorContents::default());
    let mut fewer = rows(&[0.5], true);
    fewer.raw_input_contents.pop();
    let mut short = rows(&[0.5], true);
    short.raw_input_contents[0] = floats(&[0.5, 0.5]);
    let mut unequal = rows(&[0.5], true);
    unequal.inputs[0].shape = vec![2, 1];
    unequal.raw_input_contents[0] = floats(&[0.5, 0.5]);
    let long = rows(&[0.5; 100], true);
    let invalid = Code::InvalidArgument;
    for (request, code, message) in [
        (
            mixed,
            invalid,
            "input \"x\" has contents, and the request has raw_input_contents; give one of them",
        ),
        (fewer, invalid, "raw_input_contents has 1 entries for 2 inputs"),
        (short, invalid, "input \"x\": the data have length 8, but their shape requires 4"),
        (unequal, invalid, "input \"x\" has 2 rows, \"text\" has 1: they have to be equal"),
        (
            long,
            Code::ResourceExhausted,
            "the body has more than 400 bytes; maxBodyBytes is the limit",
        ),
    ] {
        let status = infer(&setup, &[], request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, message));
    }
    let sound = rows(&[0.875], true).encode_to_vec();
    let sound = Bytes::from([&prefix(sound.len()).unwrap()[..], &sound].concat());
    let send = async |kind: &str, body: Bytes| {
        let headers = raw_infer(&setup, &[("content-type", kind)], body).await;
        headers["grpc-status"].to_str().unwrap().to_owned()
    };
    for body in [&b""[..], b"\0\0\0\0\x05abc", b"\0\xff\xff\xff\xff", b"\0\0\0\0\x02\x0a\xff"] {
        let status = send("application/grpc", Bytes::from_static(body)).await;
        assert_eq!(status, "3", "{body:?}");
    }
    for kind in ["application/json", "application/grpc-web", "application/grpcx"] {
        assert_eq!(send(kind, sound.clone()).await, "3", "{kind}");
    }
    assert!(edge.received().is_empty());
    let metrics = setup.page("/metrics").await;
    for line in [r#"code="400"} 11"#, r#"code="413"} 1"#] {
        assert!(metrics.text().contains(line), "{line}: {}", metrics.text());
    }
    assert_eq!(send("application/grpc+proto", sound).await, "0");
}

#[tokio::test]
async fn cloud_is_reached_over_tls_with_the_authorities_of_the_file() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()).into();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let cloud = GrpcServer::serve(Some(TlsAcceptor::from(Arc::new(config))), cloud_model).await;
    let edge = GrpcServer::start(edge_model).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, issued.cert.pem()).unwrap();
    let url = format!("https://localhost:{}", cloud.address.port());
    for (changes, expected) in [
        (json!({"cloud": {"grpcUrl": url, "caFile": file}}), ("cloud", "hard")),
        (json!({"cloud": {"grpcUrl": url}}), ("edge", "fallback")),
    ] {
        let setup = setup(edge.address, cloud.address, changes).await;
        let answer = infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
        assert_eq!(decision(&answer), parts(expected.0, expected.1));
    }
}

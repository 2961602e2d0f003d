//! gRPC with a cloud or an edge that does not work, and with a client that does not wait.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use neptune_gateway::{clock, protocol::grpc::prefix};
use prost::Message as _;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tonic::{Code, Status};

use crate::{
    grpc_server::{
        GrpcServer, Script, cloud_model, decision, edge_model, infer, parts, raw_infer, rows,
        scores, setup,
    },
    harness::dead_address,
};

/// What `cloudTotal` of the harness permits, and some room for a busy machine.
const BOUND: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn broken_cloud_fails_no_request_and_is_left_alone() {
    // Three, their retries, and one more after each pause that a busy machine exceeds.
    let three = 3..=10;
    for (what, calls, script) in [
        ("black hole", three.clone(), (|| Script::Never) as fn() -> Script),
        ("UNAVAILABLE", three.clone(), || Script::Fail(Status::unavailable("loading"))),
        ("INTERNAL", three.clone(), || Script::Fail(Status::internal("broken"))),
        ("no outputs", three, || Script::Answer(Box::default())),
        ("UNAUTHENTICATED", 1..=1, || Script::Fail(Status::unauthenticated("who"))),
    ] {
        let edge = GrpcServer::start(edge_model).await;
        let cloud = GrpcServer::start(move |_| script()).await;
        let setup = setup(edge.address, cloud.address, json!({})).await;
        for request in 0..6 {
            let begin = clock::now();
            let answer = infer(&setup, &[], rows(&[0.5, 0.875], true)).await.unwrap();
            assert_eq!(decision(&answer), parts("edge", "fallback,easy"), "{what} {request}");
            assert!(begin.elapsed() < BOUND, "{what} {request}: {:?}", begin.elapsed());
        }
        let received = cloud.received().len();
        assert!(calls.contains(&received), "{what}: {received} calls");
    }
}

#[tokio::test]
async fn dead_cloud_is_left_alone_and_used_again_when_it_works() {
    let edge = GrpcServer::start(edge_model).await;
    let setup = setup(edge.address, dead_address(), json!({})).await;
    for _ in 0..4 {
        let answer = infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
        assert_eq!(decision(&answer), parts("edge", "fallback"));
    }
    assert_eq!(setup.status().await["cloud"], "LeftAlone");
    let cloud = GrpcServer::start(|_| Script::Fail(Status::internal("broken"))).await;
    let setup = crate::grpc_server::setup(edge.address, cloud.address, json!({})).await;
    for _ in 0..4 {
        infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
    }
    assert_eq!(setup.status().await["cloud"], "LeftAlone");
    cloud.become_script(cloud_model);
    let used = tokio::time::timeout(Duration::from_secs(10), async {
        while decision(&infer(&setup, &[], rows(&[0.5], true)).await.unwrap()).1 != "hard" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(used.await.is_ok());
}

#[tokio::test]
async fn request_that_the_cloud_refuses_does_not_open_the_breaker() {
    let edge = GrpcServer::start(edge_model).await;
    let cloud = GrpcServer::start(|_| Script::Fail(Status::invalid_argument("no"))).await;
    let setup = setup(edge.address, cloud.address, json!({})).await;
    for _ in 0..5 {
        let answer = infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
        assert_eq!(decision(&answer), parts("edge", "fallback"));
    }
    let state = &setup.status().await["cloud"];
    assert_eq!((cloud.received().len(), state), (5, &json!("RequestsRefused")));
}

#[tokio::test]
async fn cloud_answers_while_the_edge_is_down() {
    let loading = GrpcServer::start(|_| Script::Fail(Status::unavailable("loading"))).await;
    let hanging = GrpcServer::start(|_| Script::Never).await;
    let cloud = GrpcServer::start(cloud_model).await;
    for edge in [loading.address, hanging.address, dead_address()] {
        let setup = setup(edge, cloud.address, json!({"timeouts": {"edge": "300ms"}})).await;
        let mut request = rows(&[0.875, 0.5], true);
        request.model_version = "3".to_owned();
        let answer = infer(&setup, &[], request).await.unwrap();
        assert_eq!(decision(&answer), parts("cloud", "edge-down"));
        assert_eq!(scores(answer.get_ref()), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(cloud.received().pop().unwrap().1.model_version, "");
    }
}

#[tokio::test]
async fn nobody_that_answers_is_unavailable_with_the_reason() {
    let (edge, cloud) = (dead_address(), dead_address());
    for (changes, end) in [
        (json!({}), "(connection refused), and the cloud gave no answer either"),
        (json!({"onEdgeFailure": "Error"}), "(connection refused), and onEdgeFailure is Error"),
    ] {
        let setup = setup(edge, cloud, changes).await;
        let status = infer(&setup, &[], rows(&[0.5], true)).await.unwrap_err();
        let message = format!("the model server at {edge} does not answer {end}");
        assert_eq!((status.code(), status.message()), (Code::Unavailable, &*message));
    }
    let edge = GrpcServer::start(edge_model).await;
    let setup = setup(edge.address, cloud, json!({"onCloudFailure": "Error"})).await;
    let status = infer(&setup, &[], rows(&[0.5], true)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(
        status.message(),
        "the cloud gave no answer to hard samples, and onCloudFailure is Error"
    );
}

#[tokio::test]
async fn timeout_of_the_client_shortens_the_waiting() {
    let edge = GrpcServer::start(|_| Script::Never).await;
    let cloud = GrpcServer::start(|_| Script::Never).await;
    let timeouts =
        json!({"timeouts": {"edge": "60s", "cloudFirstByte": "60s", "cloudTotal": "60s"}});
    let setup = setup(edge.address, cloud.address, timeouts).await;
    let message = rows(&[0.5], true).encode_to_vec();
    let body = Bytes::from([&prefix(message.len()).unwrap()[..], &message].concat());
    let headers = |timeout| {
        [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", timeout)]
    };
    let begin = clock::now();
    let refused = raw_infer(&setup, &headers("300m"), body.clone()).await;
    assert_eq!(refused["grpc-status"], "4");
    let text = refused["grpc-message"].to_str().unwrap();
    assert!(text.contains("no%20answer%20for%200.3%20s"), "{text}");
    edge.become_script(edge_model);
    let answer = raw_infer(&setup, &headers("2S"), body).await;
    assert_eq!(
        (&answer["grpc-status"], &answer["x-neptune-decision"]),
        (&"0".parse().unwrap(), &"fallback".parse().unwrap())
    );
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn requests_over_the_limit_are_refused() {
    let edge = GrpcServer::start(|_| Script::Never).await;
    let cloud = dead_address();
    let changes = json!({"limits": {"maxInFlight": 1}, "timeouts": {"edge": "1s"}});
    let setup = Arc::new(setup(edge.address, cloud, changes).await);
    let shared = Arc::clone(&setup);
    let waiting = tokio::spawn(async move { infer(&shared, &[], rows(&[0.5], true)).await });
    while edge.received().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let status = infer(&setup, &[], rows(&[0.5], true)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

/// An address whose first connection is silent. Every other one reaches the target.
async fn silent_once(target: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        let _silent = listener.accept().await.unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut other = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move {
                // An error is a side that went away.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
            });
        }
    });
    (address, accepting)
}

#[tokio::test]
async fn connection_that_went_silent_is_replaced() {
    let edge = GrpcServer::start(edge_model).await;
    let cloud = GrpcServer::start(cloud_model).await;
    let (silent_edge, edge_task) = silent_once(edge.address).await;
    let (silent_cloud, cloud_task) = silent_once(cloud.address).await;
    for (edge, cloud, first) in
        [(silent_edge, cloud.address, "edge-down"), (edge.address, silent_cloud, "fallback")]
    {
        let setup = setup(edge, cloud, json!({"timeouts": {"edge": "600ms"}})).await;
        for expected in [first, "hard"] {
            let answer = infer(&setup, &[], rows(&[0.5], true)).await.unwrap();
            assert_eq!(decision(&answer).1, expected);
        }
    }
    edge_task.abort();
    cloud_task.abort();
}

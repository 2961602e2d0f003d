//! A cloud or an edge that does not work: every client is answered, in bounded time.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use hyper::StatusCode;
use neptune_gateway::clock;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    harness::{Script, Server, Setup, dead_address, ok, status},
    oip::{INFER, cloud_model, edge_model, rows},
};

/// What `cloudTotal` of the harness permits, and some room for a busy machine.
const BOUND: Duration = Duration::from_millis(2_500);

/// Sends hard requests, and returns how often the cloud was called.
async fn every_request_is_answered(
    what: &str,
    script: impl Fn() -> Script + Send + Sync + 'static,
) -> usize {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(move |_| script()).await;
    let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
    for request in 0..8 {
        let begin = clock::now();
        let answer = setup.post(INFER, rows(&[0.6, 0.9])).await;
        assert_eq!(answer.status, 200, "{what} {request}");
        assert_eq!(answer.decision(), ("edge", "fallback,easy"), "{what} {request}");
        assert!(begin.elapsed() < BOUND, "{what} {request}: {:?}", begin.elapsed());
    }
    let status = setup.status().await;
    assert_eq!(status["samples"]["fallback"], 8, "{what}");
    cloud.received().len()
}

#[tokio::test]
async fn broken_cloud_fails_no_request_and_is_left_alone() {
    // Three, their retries, and one more after each pause that a busy machine exceeds.
    let three = 3..=10;
    for (what, calls, script) in [
        ("black hole", three.clone(), (|| Script::Never) as fn() -> Script),
        ("connection cut", three.clone(), || Script::Reset),
        ("503", three.clone(), || status(503, "busy")),
        ("500", three.clone(), || status(500, "{}")),
        ("wrong JSON", three.clone(), || ok("{\"outputs\":")),
        ("another JSON", three.clone(), || ok("{}")),
        ("1 B/s", three, || Script::Slow("{\"outputs\":[]}".to_owned())),
        ("429 with a pause", 1..=1, || Script::RetryAfter(StatusCode::TOO_MANY_REQUESTS, 60)),
        ("503 with a pause", 1..=1, || Script::RetryAfter(StatusCode::SERVICE_UNAVAILABLE, 60)),
        ("401", 1..=1, || status(401, "{}")),
    ] {
        let received = every_request_is_answered(what, script).await;
        assert!(calls.contains(&received), "{what}: {received} calls");
    }
}

#[tokio::test]
async fn dead_and_resetting_clouds_fail_no_request() {
    let edge = Server::start(edge_model).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let resetting = listener.local_addr().unwrap();
    let resets = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
            // The request was not read: closing sends RST.
            drop(stream);
        }
    });
    for cloud in [dead_address(), resetting] {
        let setup = Setup::start(edge.address, Some(cloud), json!({})).await;
        for _ in 0..8 {
            let answer = setup.post(INFER, rows(&[0.6])).await;
            assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "fallback")));
        }
        assert_eq!(setup.status().await["cloud"], "LeftAlone");
    }
    resets.abort();
}

#[tokio::test]
async fn cloud_that_works_again_is_used_again() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| status(500, "{}")).await;
    let changes = json!({"cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    assert_eq!(setup.status().await["cloud"], "Unknown", "no call had a result yet");
    for _ in 0..4 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    let status = setup.status().await;
    assert_eq!(status["cloud"], "LeftAlone");
    let message = status["problems"][0]["message"].as_str().unwrap();
    assert!(
        message.contains(" is left alone after 3 failures (500 Internal Server Error"),
        "{message}"
    );
    cloud.become_script(cloud_model);
    let used = tokio::time::timeout(Duration::from_secs(10), async {
        while setup.post(INFER, rows(&[0.6])).await.decision() != ("cloud", "hard") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(used.await.is_ok());
    assert_eq!(setup.status().await["cloud"], "Reachable");
}

#[tokio::test]
async fn request_that_the_cloud_refuses_does_not_open_the_breaker() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| status(400, r#"{"error":"too long"}"#)).await;
    let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
    for _ in 0..6 {
        assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "fallback"));
    }
    let state = &setup.status().await["cloud"];
    assert_eq!((cloud.received().len(), state), (6, &json!("RequestsRefused")));
}

#[tokio::test]
async fn failed_cloud_is_an_error_if_configured() {
    let edge = Server::start(edge_model).await;
    let cloud = dead_address();
    let setup = Setup::start(edge.address, Some(cloud), json!({"onCloudFailure": "Error"})).await;
    let answer = setup.post(INFER, rows(&[0.9, 0.6])).await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.error(),
        "the cloud gave no answer to hard samples, and onCloudFailure is Error"
    );
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.status, 200);
}

#[tokio::test]
async fn call_is_repeated_once_if_no_byte_of_an_answer_came() {
    let edge = Server::start(edge_model).await;
    let calls = AtomicUsize::new(0);
    let cloud = Server::start(move |request| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Script::Reset,
        2 => status(500, "{}"),
        _ => cloud_model(request),
    })
    .await;
    let changes = json!({"cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
    assert_eq!(cloud.received().len(), 2);
    // An answer that reports an error is not repeated.
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "fallback"));
    assert_eq!(cloud.received().len(), 3);
}

#[tokio::test]
async fn edge_that_closed_an_idle_connection_is_asked_again() {
    let edge = Server::start(edge_model).await;
    let setup = Setup::start(edge.address, None, json!({})).await;
    let calls = AtomicUsize::new(0);
    edge.become_script(move |request| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Script::Reset,
        _ => edge_model(request),
    });
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.decision(), ("edge", "easy"));
    assert_eq!(edge.received().len(), 2);
}

#[tokio::test]
async fn clients_deadline_limits_the_cloud() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| Script::Never).await;
    let changes = json!({"timeouts": {"cloudFirstByte": "1m", "cloudTotal": "1m"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    let begin = clock::now();
    let answer = setup.post_with(INFER, &[("x-request-timeout-ms", "300")], rows(&[0.6])).await;
    assert_eq!(answer.decision(), ("edge", "fallback"));
    assert!(begin.elapsed() < BOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn short_deadlines_of_clients_do_not_open_the_breaker_for_others() {
    let edge = Server::start(edge_model).await;
    let pause = Duration::from_millis(200);
    let cloud =
        Server::start(move |request| Script::Late(pause, cloud_model(request).into())).await;
    let changes = json!({"cloud": {"modelName": "big"}, "timeouts": {"cloudFirstByte": "5s", "cloudTotal": "5s"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    // A faulty client before, between and after the others.
    for _ in 0..3 {
        for _ in 0..3 {
            let short = [("x-request-timeout-ms", "50")];
            let answer = setup.post_with(INFER, &short, rows(&[0.6])).await;
            assert_eq!(answer.decision().0, "edge");
        }
        assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
        let long = [("x-request-timeout-ms", "4000")];
        let answer = setup.post_with(INFER, &long, rows(&[0.6])).await;
        assert_eq!(answer.decision(), ("cloud", "hard"));
    }
    assert_eq!(setup.status().await["cloud"], "Reachable");
}

#[tokio::test]
async fn request_whose_time_is_over_at_the_edge_takes_nothing_from_the_cloud() {
    let edge = Server::start(|_| Script::Never).await;
    let cloud = Server::start(cloud_model).await;
    let changes = json!({
        "cloud": {"modelName": "big"}, "hardExample": {"maxUploadRatio": 0},
        "timeouts": {"edge": "500ms"},
    });
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    for _ in 0..55 {
        let short = [("x-request-timeout-ms", "20")];
        let refused = setup.post_with(INFER, &short, rows(&[0.9])).await;
        assert_eq!(refused.status, 504, "{}", refused.error());
        assert!(refused.error().ends_with("the time that the client gave is over"));
        assert_eq!(refused.header("x-neptune-decision"), "deadline");
    }
    assert_eq!(cloud.received().len(), 0);
    assert_eq!(setup.post(INFER, rows(&[0.9; 50])).await.decision(), ("cloud", "edge-down"));
}

#[tokio::test]
async fn slow_client_does_not_make_the_edge_down() {
    let edge = Server::start(|request| ok(request.body.len())).await;
    let changes = json!({"timeouts": {"edge": "300ms"}});
    let setup = Setup::start(edge.address, None, changes).await;
    let mut stream = tokio::net::TcpStream::connect(setup.running().address).await.unwrap();
    let head = "POST /v2/models/small/generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                connection: close\r\ncontent-length: 6\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..6 {
        // Within the time of the client's pauses, together longer than the edge's time.
        tokio::time::sleep(Duration::from_millis(150)).await;
        stream.write_all(b"x").await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with('6'), "{answer}");
    assert_eq!(setup.status().await["problems"], json!([]));
}

#[tokio::test]
async fn cloud_answers_while_the_edge_is_down_within_the_cap() {
    let cloud = Server::start(cloud_model).await;
    let edge = dead_address();
    let changes = json!({"cloud": {"modelName": "big"}, "hardExample": {"maxUploadRatio": 0}});
    let setup = Setup::start(edge, Some(cloud.address), changes).await;
    let answer = setup.post(INFER, rows(&[0.9; 45])).await;
    assert_eq!(answer.decision(), ("cloud", "edge-down"));
    assert_eq!(setup.status().await["samples"]["cloud"], 45);
    let refused = setup.post(INFER, rows(&[0.9; 6])).await;
    assert_eq!(refused.status, 503);
    assert_eq!(
        refused.error(),
        format!(
            "the model server at {edge} does not answer (connection refused), and the budget of uploads is used up"
        )
    );
    let passed = setup.post("/v2/models/small/generate", "{}").await;
    assert_eq!(
        (passed.status.as_u16(), passed.error()),
        (503, format!("the model server at {edge} does not answer (connection refused)"))
    );
}

#[tokio::test]
async fn both_sides_down_are_named() {
    let (edge, cloud) = (dead_address(), dead_address());
    let setup = Setup::start(edge, Some(cloud), json!({})).await;
    let server = format!("the model server at {edge} does not answer (connection refused)");
    for _ in 0..3 {
        let answer = setup.post(INFER, rows(&[0.9])).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.error(), format!("{server}, and the cloud gave no answer either"));
    }
    let answer = setup.post(INFER, rows(&[0.9])).await;
    let expected = format!("{server}, and the cloud is left alone for another ");
    assert!(answer.error().starts_with(&expected), "{}", answer.error());
    assert!(answer.error().ends_with(" s after 3 failures"), "{}", answer.error());
    assert_eq!(setup.status().await["samples"]["inference"], 0);
}

#[tokio::test]
async fn edge_that_hangs_is_given_up_in_time() {
    let edge = Server::start(|_| Script::Never).await;
    let cloud = Server::start(cloud_model).await;
    let changes = json!({"timeouts": {"edge": "200ms"}, "cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    let begin = clock::now();
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.decision(), ("cloud", "edge-down"));
    assert!(begin.elapsed() < BOUND);
}

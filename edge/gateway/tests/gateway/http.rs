//! What HTTP the gateway takes, and what it answers otherwise.

use neptune_harness::eventually_async;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    completions,
    harness::{Script, Server, Setup, ok, raw},
    oip::{INFER, edge_model, rows},
    streams,
};

async fn setup() -> (Setup, Server) {
    let edge = Server::start(edge_model).await;
    (Setup::start(edge.address, None, json!({})).await, edge)
}

/// The status of the answer to these bytes.
async fn code(setup: &Setup, request: &str) -> String {
    let answer = raw(setup.running().address, request.as_bytes()).await;
    answer.split(' ').nth(1).unwrap_or("none").to_owned()
}

async fn is_down(setup: &Setup) -> bool {
    setup.status().await["problems"].to_string().contains("ModelServerDown")
}

#[tokio::test]
async fn request_without_one_valid_host_is_malformed() {
    let edge = Server::start(|_| ok("{}")).await;
    let setup = Setup::start(edge.address, None, json!({})).await;
    let with = |hosts: &str| format!("GET /v2 HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
    for hosts in [
        "",
        "host: localhost\r\nhost: localhost\r\n",
        "host:\r\n",
        "host: a b\r\n",
        "host: me@localhost\r\n",
        "host: localhost:99999\r\n",
        "host: localhost/x\r\n",
    ] {
        assert_eq!(code(&setup, &with(hosts)).await, "400", "{hosts:?}");
    }
    assert!(edge.received().is_empty());
    assert_eq!(code(&setup, &with("host: localhost:80\r\n")).await, "200");
    assert_eq!(code(&setup, "GET /v2 HTTP/1.0\r\n\r\n").await, "200");
}

#[tokio::test]
async fn transfer_coding_other_than_chunked_is_not_supported() {
    let (setup, edge) = setup().await;
    for coding in ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let request = format!(
            "POST {INFER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\ntransfer-encoding: {coding}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        );
        assert_eq!(code(&setup, &request).await, "501", "{coding}");
    }
    assert!(edge.received().is_empty());
}

#[tokio::test]
async fn requests_without_a_path_never_reach_the_model_server() {
    let (setup, edge) = setup().await;
    for (line, expected) in [
        ("CONNECT localhost:80", "501"),
        ("CONNECT *", "400"),
        ("OPTIONS *", "501"),
        ("POST *", "400"),
        ("GET *", "400"),
    ] {
        let request = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(code(&setup, &request).await, expected, "{line}");
        assert!(!is_down(&setup).await, "{line}");
    }
    assert!(edge.received().is_empty());
}

#[tokio::test]
async fn client_that_ends_its_side_gives_its_place_to_others() {
    let edge = Server::start(|_| Script::Never).await;
    let changes = json!({"limits": {"maxInFlight": 1}, "timeouts": {"edge": "5m"}});
    let setup = Setup::start(edge.address, None, changes).await;
    let body = rows(&[0.9]);
    let mut stream = TcpStream::connect(setup.running().address).await.unwrap();
    let request = format!(
        "POST {INFER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    eventually_async("the request at the edge", async || edge.received().len() == 1).await;
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.status, 503, "its place is taken");
    stream.shutdown().await.unwrap();
    edge.become_script(edge_model);
    let is_served = async || setup.post(INFER, rows(&[0.9])).await.status == 200;
    eventually_async("another request to be served", is_served).await;
}

#[tokio::test]
async fn answer_of_the_edge_that_is_too_large_is_no_failure_of_its_server() {
    let edge = Server::start(|_| ok("x".repeat(2_000))).await;
    let changes = json!({"limits": {"maxBodyBytes": 1_000}});
    let setup = Setup::start(edge.address, Some(edge.address), changes).await;
    let answer = setup.post(INFER, rows(&[0.9])).await;
    assert_eq!(answer.status, 502);
    let text = answer.error();
    assert!(text.contains("more than 1000 bytes") && text.contains("maxBodyBytes"), "{text}");
    assert!(!text.contains("does not answer"), "{text}");
    assert!(!is_down(&setup).await);
    assert_eq!(edge.received().len(), 1, "the cloud is not asked");
}

#[tokio::test]
async fn content_coding_other_than_identity_is_refused() {
    let (setup, edge) = setup().await;
    let answer = setup.post_with(INFER, &[("content-encoding", "identity")], rows(&[0.9])).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "easy")));
    for coding in ["gzip", "identity, gzip"] {
        let answer = setup.post_with(INFER, &[("content-encoding", coding)], rows(&[0.9])).await;
        assert_eq!((answer.status.as_u16(), answer.header("accept-encoding")), (415, "identity"));
        assert!(answer.error().contains(coding), "{}", answer.text());
    }
    assert_eq!(edge.received().len(), 1);
    // What is not decided passes as it is.
    let passed = setup.post_with("/v2/other", &[("content-encoding", "gzip")], "{}").await;
    assert_eq!(edge.received()[1].headers["content-encoding"], "gzip", "{passed:?}");
}

#[tokio::test]
async fn stalled_stream_of_the_edge_is_a_timeout() {
    let stalled = |kind: &'static str| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await.unwrap();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 9\r\n\r\nd"
                    );
                    stream.write_all(head.as_bytes()).await.unwrap();
                    // Until the gateway goes away.
                    while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
                });
            }
        });
        address
    };
    for kind in ["application/json", "text/event-stream"] {
        let changes = json!({
            "protocol": "openai", "timeouts": {"edge": "300ms"},
            "hardExample": {"algorithm": "LogProb"},
        });
        let setup = Setup::start(stalled(kind).await, None, changes).await;
        let body = streams::ask(0.9, json!({"logprobs": true, "top_logprobs": 2}));
        let answer = setup.post("/v1/chat/completions", body).await;
        assert_eq!(answer.status, 504, "{kind}: {}", answer.text());
        assert_ne!(answer.header("x-neptune-decision"), "deadline", "nobody set one");
    }
}

#[tokio::test]
async fn question_with_a_star_as_target_is_malformed() {
    let (edge, cloud) = completions::servers().await;
    let setup = completions::setup(&edge, &cloud, json!({})).await;
    let request = "POST * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(code(&setup, request).await, "400");
    assert!(!is_down(&setup).await);
}

//! Limits, reloads, the end, and what survives it.

use std::{sync::Arc, time::Duration};

use hyper::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::{
    harness::{Script, Server, Setup, ok, raw},
    oip::{INFER, edge_model, rows, servers},
};

#[tokio::test]
async fn body_of_40_megabytes_is_refused() {
    let edge = Server::start(edge_model).await;
    let setup = Setup::start(edge.address, None, json!({})).await;
    let expected = "the body has more than 33554432 bytes; maxBodyBytes is the limit";
    let large = vec![b' '; 40 * 1024 * 1024];
    for path in [INFER, "/other"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            large.len()
        );
        let answer = raw(setup.running().address, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains(expected), "{answer}");
    }
    assert!(edge.received().is_empty());
    let small = json!({"limits": {"maxBodyBytes": 100}});
    let setup = Setup::start(edge.address, None, small).await;
    for path in [INFER, "/other"] {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        );
        for _ in 0..3 {
            request.extend(["32\r\n", &"x".repeat(50), "\r\n"]);
        }
        let answer = raw(setup.running().address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn requests_over_the_limit_are_asked_to_come_back() {
    let edge = Server::start(|_| Script::Never).await;
    let changes = json!({"limits": {"maxInFlight": 2}, "timeouts": {"edge": "1s"}});
    let setup = Arc::new(Setup::start(edge.address, None, changes).await);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let setup = Arc::clone(&setup);
            tokio::spawn(async move { setup.post(INFER, rows(&[0.9])).await })
        })
        .collect();
    while edge.received().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = setup.post(INFER, rows(&[0.9])).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, "1"));
    for answer in waiting {
        assert_eq!(answer.await.unwrap().status, 503);
    }
    edge.become_script(edge_model);
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.status, 200);
}

#[tokio::test]
async fn clients_that_send_slowly_are_cut_off() {
    let edge = Server::start(edge_model).await;
    let changes = json!({"timeouts": {"client": "300ms"}});
    let setup = Setup::start(edge.address, None, changes).await;
    let address = setup.running().address;
    // A head that does not end.
    raw(address, b"POST / HTTP/1.1\r\nhost: localhost\r\n").await;
    // A body that does not end.
    for path in [INFER, "/other"] {
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{{");
        let answer = raw(address, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn change_of_the_configuration_under_load_loses_no_request() {
    let (edge, _cloud, config) = servers().await;
    let mut setup = Setup::start(edge.address, None, config).await;
    let address = setup.running().address;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let client = hyper_util::client::legacy::Client::builder(
                    hyper_util::rt::TokioExecutor::new(),
                )
                .build_http::<http_body_util::Full<bytes::Bytes>>();
                let mut answered = 0;
                while !*stopped.borrow() {
                    let request = hyper::Request::post(format!("http://{address}{INFER}"))
                        .header("content-type", "application/json")
                        .body(rows(&[0.7]).into())
                        .unwrap();
                    assert_eq!(client.request(request).await.unwrap().status(), 200);
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    // Hard, then easy, then an invalid file, then hard again.
    setup.reconfigure(json!({"hardExample": {"threshold": 0.6}}));
    setup.until("the new threshold", |status| status["threshold"] == 0.6).await;
    assert_eq!(setup.post(INFER, rows(&[0.7])).await.decision(), ("edge", "easy"));
    setup.reconfigure(json!({"unknown": 1}));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(setup.status().await["threshold"], 0.6, "the old one stays in force");
    setup.reconfigure(json!({"hardExample": {"threshold": 2}}));
    setup.revert(&["unknown"]);
    setup.reconfigure(json!({"hardExample": {"threshold": 0.8}}));
    setup.until("the last threshold", |status| status["threshold"] == 0.8).await;
    stop.send_replace(true);
    for client in clients {
        assert!(client.await.unwrap() > 10);
    }
}

#[tokio::test]
async fn requests_in_flight_are_answered_at_the_end() {
    let edge = Server::start(|_| Script::Stream {
        pieces: vec![(Duration::from_millis(300), "{}".to_owned())],
        breaks: false,
    })
    .await;
    let mut setup = Setup::start(edge.address, None, json!({})).await;
    let address = setup.running().address;
    let request = "POST /slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let answer = tokio::spawn(async move { raw(address, request.as_bytes()).await });
    while edge.received().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    setup.stop().await;
    let answer = answer.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("{}"), "{answer}");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_was_learnt_survives_a_restart_of_the_same_version() {
    let edge = Server::start(edge_model).await;
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("state.json");
    let config = |version: &str| {
        json!({
            "state": file, "cloud": {"url": "http://127.0.0.1:1"},
            "edge": {"modelVersion": version},
            "hardExample": {"goal": {"uploadRatio": 0.2}, "threshold": 0.5},
        })
    };
    let mut setup = Setup::start(edge.address, None, config("1")).await;
    let many: Vec<f64> = (0..100).map(|row| 0.5 + f64::from(row) / 200.0).collect();
    setup.post(INFER, rows(&many)).await;
    let learnt = setup.status().await["threshold"].clone();
    assert!(learnt.as_f64().unwrap() > 0.55, "{learnt}");
    setup.stop().await;
    let same = Setup::start(edge.address, None, config("1")).await;
    assert_eq!(same.status().await["threshold"], learnt);
    let other = Setup::start(edge.address, None, config("2")).await;
    assert_eq!(other.status().await["threshold"], 0.5);
    std::fs::write(&file, "damaged").unwrap();
    let damaged = Setup::start(edge.address, None, config("1")).await;
    assert_eq!(damaged.status().await["threshold"], 0.5);
}

#[tokio::test]
async fn reload_does_not_double_the_requests_in_flight() {
    let edge = Server::start(|_| Script::Never).await;
    let changes = json!({"limits": {"maxInFlight": 2}, "timeouts": {"edge": "20s"}});
    let mut setup = Setup::start(edge.address, None, changes).await;
    let address = setup.running().address;
    let hanging = || async move {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"POST /v2/models/m/generate HTTP/1.1\r\nhost: localhost\r\n\
                        content-type: application/json\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(request).await.unwrap();
        stream
    };
    let _first = hanging().await;
    let asked = async |count: usize| {
        while edge.received().len() < count {
            tokio::task::yield_now().await;
        }
    };
    asked(1).await;
    for threshold in [0.7, 0.6] {
        setup.reconfigure(json!({"hardExample": {"threshold": threshold}}));
        setup.until("the reload", |status| status["threshold"] == threshold).await;
    }
    let _second = hanging().await;
    asked(2).await;
    assert_eq!(
        setup.post("/v2/models/m/generate", "{}").await.status,
        503,
        "both places are taken"
    );
    assert_eq!(edge.received().len(), 2);
    // Another limit applies to those in flight too.
    let changes = json!({"hardExample": {"threshold": 0.5}, "limits": {"maxInFlight": 3}});
    setup.reconfigure(changes);
    setup.until("the reload", |status| status["threshold"] == 0.5).await;
    let _third = hanging().await;
    asked(3).await;
    assert_eq!(setup.post("/v2/models/m/generate", "{}").await.status, 503);
}

#[tokio::test]
async fn unknown_paths_pass_byte_for_byte_both_ways() {
    let edge = Server::start(|request| {
        let header = request.headers.get("x-from").map(|value| value.to_str().unwrap().to_owned());
        ok(format!("{} {} {:?} {:?}", request.method, request.path, header, request.body))
    })
    .await;
    let setup = Setup::start(edge.address, None, json!({})).await;
    let put = setup
        .send(Method::PUT, "/any/p%20ath?a=1&a=2", &[("x-from", "me")], &b"\x00\xff"[..])
        .await;
    assert_eq!(put.text(), r#"PUT /any/p%20ath?a=1&a=2 Some("me") b"\0\xff""#);
    let page = setup.page("/healthz").await;
    assert_eq!((page.status.as_u16(), page.text()), (200, "ok\n"));
    assert_eq!(setup.page("/other").await.status, 404);
}

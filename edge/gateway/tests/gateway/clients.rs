//! Clients with keys: who is answered, what a client may do, and what is counted for it.

use std::{sync::Arc, time::Duration};

use hyper::Method;
use neptune_gateway::config::digest_text;
use neptune_gateway::protocol::grpc::inference::{
    ModelInferResponse, ServerLiveRequest, ServerLiveResponse,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tonic::Code;

use crate::{
    completions,
    grpc_server::{self, GrpcServer},
    harness::{Answered, Script, Server, Setup, ok, raw},
    oip::{INFER, edge_model, rows, servers},
};

const HALL: &str = "npk_hall";
const NOTEBOOK: &str = "npk_notebook";

pub fn digest(key: &str) -> String {
    digest_text(Sha256::digest(key).into())
}

fn client(name: &str, changes: Value) -> Value {
    let mut client = json!({"name": name, "keySha256": [digest(&format!("npk_{name}"))]});
    crate::harness::merge(&mut client, changes);
    client
}

pub fn clients() -> Value {
    json!({"clients": [client("hall", json!({})), client("notebook", json!({}))]})
}

/// Timeouts that a busy machine keeps.
fn patient() -> Value {
    json!({"edge": "20s", "cloudConnect": "20s", "cloudFirstByte": "20s", "cloudTotal": "20s"})
}

/// A gateway between two model servers, with these clients.
async fn setup(clients: Value) -> (Setup, Server, Server) {
    let (edge, cloud, mut config) = servers().await;
    config["clients"] = clients;
    config["timeouts"] = patient();
    (Setup::start(edge.address, None, config).await, edge, cloud)
}

async fn ask(setup: &Setup, key: &str, first: f64) -> Answered {
    setup.post_with(INFER, &[("authorization", &format!("Bearer {key}"))], rows(&[first])).await
}

#[tokio::test]
async fn request_without_a_key_is_refused_in_the_form_of_its_protocol() {
    let edge = Server::start(completions::edge_model).await;
    for (protocol, algorithm, path, pointer) in [
        ("openai", "LogProb", "/v1/chat/completions", "/error/message"),
        ("oip", "MaxProbability", INFER, "/error"),
        ("tfserving", "MaxProbability", "/v1/models/small:predict", "/error"),
    ] {
        let mut config = clients();
        config["protocol"] = json!(protocol);
        config["hardExample"] = json!({"algorithm": algorithm});
        let setup = Setup::start(edge.address, None, config).await;
        edge.become_script(completions::edge_model);
        for path in [path, "/v1/models", "/other"] {
            let answer = setup.post(path, "{}").await;
            assert_eq!(answer.status, 401, "{protocol} {path}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
            let text = answer.json().pointer(pointer).unwrap().as_str().unwrap().to_owned();
            assert!(text.contains("Authorization: Bearer"), "{text}");
            if protocol == "openai" {
                assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
            }
        }
        assert!(
            edge.received().iter().all(|request| request.headers.get("content-type").is_none()
                || request.json()["max_tokens"] == 1),
            "only the gateway's own probe"
        );
        let page = setup.page("/metrics").await;
        let counted = r#"code="401"} 3"#;
        assert!(page.text().contains(counted), "{}", page.text());
    }
}

#[tokio::test]
async fn key_is_consumed_and_reaches_no_model_server() {
    let (setup, edge, cloud) = setup(clients()["clients"].clone()).await;
    for (first, by) in [(0.9, "edge"), (0.5, "cloud")] {
        let answer = ask(&setup, HALL, first).await;
        assert_eq!((answer.status.as_u16(), answer.decision().0), (200, by), "{}", answer.text());
    }
    let headers = [("authorization", "bearer npk_notebook")];
    setup.send(Method::GET, "/v2/models/small", &headers, "").await;
    let received = [edge.received(), cloud.received()].concat();
    assert_eq!(received.len(), 4);
    for request in received {
        assert!(!request.headers.contains_key("authorization"), "{request:?}");
        assert!(!format!("{request:?}").contains("npk_"), "{request:?}");
    }
    for path in ["/metrics", "/status", "/healthz"] {
        let page = setup.page(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.text().contains("npk_") && !page.text().contains(&digest(HALL)), "{path}");
    }
}

#[tokio::test]
async fn health_of_the_model_server_needs_no_key_and_nothing_else_is_open() {
    let (setup, edge, _cloud) = setup(clients()["clients"].clone()).await;
    edge.become_script(|_| ok("{}"));
    let wrong = [("authorization", "Bearer wrong")];
    for headers in [&[][..], &wrong] {
        for path in ["/v2/health/ready", "/v2/health/live"] {
            assert_eq!(setup.send(Method::GET, path, headers, "").await.status, 200, "{path}");
        }
    }
    assert!(edge.received().iter().all(|request| !request.headers.contains_key("authorization")));
    for (method, path) in [
        (Method::POST, "/v2/health/ready"),
        (Method::GET, "/v2/health/ready/"),
        (Method::GET, "/v2/health/../models/small"),
        (Method::GET, "/V2/health/ready"),
        (Method::GET, "/v2"),
        (Method::GET, "/health"),
        (Method::OPTIONS, "/v2/models"),
    ] {
        let answer = setup.send(method.clone(), path, &[], "").await;
        assert_eq!(answer.status, 401, "{method} {path}");
    }
}

#[tokio::test]
async fn malformed_credentials_are_refused() {
    let (setup, edge, _cloud) = setup(clients()["clients"].clone()).await;
    for values in [
        &["Bearer npk_hall", "Bearer npk_hall"][..],
        &["Bearer npk_hall", "Bearer npk_other"],
        &["Bearer NPK_HALL"],
        &["Bearer npk_hal"],
        &["Bearer npk_hall2"],
        &["Basic npk_hall"],
        &["npk_hall"],
        &["Bearer "],
        &[""],
    ] {
        let headers: Vec<_> = values.iter().map(|value| ("authorization", *value)).collect();
        let answer = setup.post_with(INFER, &headers, rows(&[0.9])).await;
        assert_eq!(answer.status, 401, "{values:?}");
    }
    // Two of them in another case of the name are two as well.
    let two = format!(
        "POST {INFER} HTTP/1.1\r\nhost: localhost\r\nAuthorization: Bearer {HALL}\r\nAUTHORIZATION: Bearer {HALL}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    assert!(raw(setup.running().address, two.as_bytes()).await.starts_with("HTTP/1.1 401 "));
    assert!(edge.received().is_empty());
}

#[tokio::test]
async fn header_of_a_megabyte_is_refused_and_others_are_answered() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (setup, edge, _cloud) = setup(clients()["clients"].clone()).await;
    let head = format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {HALL}");
    let mut stream = tokio::net::TcpStream::connect(setup.running().address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // The gateway may close the connection before it has all of it.
    let piece = [b'a'; 8 * 1024];
    for _ in 0..128 {
        if stream.write_all(&piece).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(edge.received().is_empty());
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
}

#[tokio::test]
async fn client_may_use_only_its_models() {
    let one = client("hall", json!({"models": ["small"]}));
    let (setup, edge, _cloud) = setup(json!([one, client("notebook", json!({}))])).await;
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
    let received = edge.received().len();
    let infer = |path: &'static str, key: &'static str| {
        let setup = &setup;
        async move {
            let key = format!("Bearer {key}");
            setup.post_with(path, &[("authorization", &key)], rows(&[0.9])).await
        }
    };
    for path in [
        "/v2/models/other/infer",
        "/v2/models/other/versions/1/infer",
        "/v2/models/Small/infer",
        "/v2/models/other@edge/infer",
        "/v2/repository/index",
        "/v2/repository/models/small/unload",
        "/v1/embeddings",
    ] {
        let answer = infer(path, HALL).await;
        assert_eq!(answer.status, 403, "{path}");
        let text = answer.error();
        assert!(text.contains("client hall may not use") && text.ends_with("use small"), "{text}");
    }
    assert_eq!(edge.received().len(), received);
    assert_eq!(infer("/v2/models/small@edge/infer", HALL).await.status, 200);
    assert_eq!(infer("/v2/models/other/infer", NOTEBOOK).await.status, 404, "the edge's answer");
    let hall = &setup.status().await["clients"][0];
    let counts = ["requests", "refused", "samples"].map(|field| hall[field].as_u64().unwrap());
    assert_eq!(counts, [9, 7, 2]);
}

#[tokio::test]
async fn completion_for_another_model_is_refused() {
    let edge = Server::start(completions::edge_model).await;
    let mut config = json!({"protocol": "openai", "hardExample": {"algorithm": "LogProb"}});
    config["clients"] = json!([client("hall", json!({"models": ["small"]}))]);
    let setup = Setup::start(edge.address, None, config).await;
    let ask = |body: Value| {
        let setup = &setup;
        async move {
            let key = format!("Bearer {HALL}");
            setup.post_with(completions::CHAT, &[("authorization", &key)], body).await
        }
    };
    let question = |model: Value| json!({"model": model, "messages": [{"content": "0.9"}]});
    assert_eq!(ask(question(json!("small"))).await.status, 200);
    for model in [json!("other"), Value::Null, json!(["small"])] {
        assert_eq!(ask(question(model.clone())).await.status, 403, "{model}");
    }
    for body in [json!([]), json!("text")] {
        assert_eq!(ask(body.clone()).await.status, 403, "{body}");
    }
    // The last of two members counts for most servers, the first for others.
    let twice = r#"{"model": "small", "model": "other", "messages": [{"content": "0.9"}]}"#;
    let headers = [("authorization", "Bearer npk_hall")];
    let answer = setup.post_with(completions::CHAT, &headers, twice).await;
    assert_ne!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn rate_of_a_client_is_limited_and_others_are_answered() {
    let limited = client("hall", json!({"requestsPerMinute": 3}));
    let (mut setup, _edge, _cloud) = setup(json!([limited, client("notebook", json!({}))])).await;
    for _ in 0..3 {
        assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
    }
    for _ in 0..2 {
        let answer = ask(&setup, HALL, 0.9).await;
        assert_eq!(answer.status, 429);
        let wait: u64 = answer.header("retry-after").parse().unwrap();
        assert!((50..=61).contains(&wait), "{wait}");
        assert!(answer.error().contains("client hall has sent 3 requests"), "{}", answer.error());
        assert_eq!(ask(&setup, NOTEBOOK, 0.9).await.status, 200);
    }
    // Another limit applies at once, and the last minute still counts.
    let clients = |limit| {
        let hall = client("hall", json!({"requestsPerMinute": limit}));
        json!({"clients": [hall, client("notebook", json!({}))], "hardExample": {"threshold": 0.7}})
    };
    setup.reconfigure(clients(5));
    setup.until("the reload", |status| status["threshold"] == 0.7).await;
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 429);
    let page = setup.page("/metrics").await;
    for line in [
        r#"neptune_gateway_client_requests_total{client="hall",result="accepted"} 5"#,
        r#"neptune_gateway_client_requests_total{client="hall",result="rate_limited"} 3"#,
        r#"neptune_gateway_client_requests_total{client="notebook",result="accepted"} 2"#,
        r#"neptune_gateway_client_samples_total{client="hall",decision="easy"} 5"#,
    ] {
        assert!(page.text().contains(line), "{line}: {}", page.text());
    }
}

#[tokio::test]
async fn samples_of_a_client_that_never_uploads_stay_at_the_edge() {
    let pinned = client("notebook", json!({"uploads": "Never"}));
    let (setup, edge, cloud) = setup(json!([client("hall", json!({})), pinned])).await;
    assert_eq!(ask(&setup, NOTEBOOK, 0.5).await.decision(), ("edge", "pinned"));
    assert!(cloud.received().is_empty());
    assert_eq!(ask(&setup, HALL, 0.5).await.decision(), ("cloud", "hard"));
    edge.close();
    edge.become_script(|_| Script::Reset);
    let answer = ask(&setup, NOTEBOOK, 0.5).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(ask(&setup, HALL, 0.5).await.decision(), ("cloud", "edge-down"));
    assert_eq!(cloud.received().len(), 2);
}

#[tokio::test]
async fn rotation_loses_no_request_in_flight_and_ends_the_old_key() {
    let (mut setup, edge, _cloud) = setup(clients()["clients"].clone()).await;
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200, "the configuration was read");
    edge.become_script(|request| {
        let answer = edge_model(request);
        Script::Late(Duration::from_millis(1500), Box::new(answer))
    });
    let address = setup.running().address;
    let headers = [("authorization", "Bearer npk_hall"), ("content-type", "application/json")];
    let in_flight = setup.to(address, Method::POST, INFER, &headers, rows(&[0.9]));
    let rotated = json!({"clients": [
        {"name": "hall", "keySha256": [digest("npk_new"), digest("npk_newer")]},
        client("notebook", json!({})),
    ]});
    let path = setup.config_path();
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    crate::harness::merge(&mut config, rotated.clone());
    std::fs::write(setup.folder.path().join("new"), config.to_string()).unwrap();
    std::fs::rename(setup.folder.path().join("new"), path).unwrap();
    let new_is_known = async { while ask(&setup, "npk_new", 0.9).await.status != 200 {} };
    let (answer, ()) = tokio::join!(in_flight, new_is_known);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 401);
    assert_eq!(ask(&setup, "npk_newer", 0.9).await.status, 200);
    // The client is the same: its counts go on.
    let hall = setup.status().await["clients"][0].clone();
    assert_eq!((&hall["name"], &hall["samples"]), (&json!("hall"), &json!(4)));
    // Without clients, requests need no key.
    setup.reconfigure(json!({"clients": []}));
    let open = async { while setup.post(INFER, rows(&[0.9])).await.status != 200 {} };
    tokio::time::timeout(Duration::from_secs(20), open).await.unwrap();
}

#[tokio::test]
async fn counts_of_clients_continue_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let (edge, _cloud, mut config) = servers().await;
    config["clients"] = clients()["clients"].clone();
    config["timeouts"] = patient();
    config["state"] = json!(state.path().join("state.json"));
    let counts = |status: &Value, client: usize| {
        let client = &status["clients"][client];
        ["requests", "samples", "cloud"].map(|field| client[field].as_u64().unwrap_or_default())
    };
    let mut setup = Setup::start(edge.address, None, config.clone()).await;
    for first in [0.9, 0.5, 0.9] {
        assert_eq!(ask(&setup, HALL, first).await.status, 200);
    }
    assert_eq!(counts(&setup.status().await, 0), [3, 3, 1]);
    setup.stop().await;
    let mut setup = Setup::start(edge.address, None, config.clone()).await;
    assert_eq!(ask(&setup, HALL, 0.9).await.status, 200);
    assert_eq!(ask(&setup, NOTEBOOK, 0.9).await.status, 200);
    let status = setup.status().await;
    assert_eq!((counts(&status, 0), counts(&status, 1)), ([4, 4, 1], [1, 1, 0]));
    // The counts of a removed client end.
    setup.reconfigure(json!({"clients": [client("notebook", json!({}))]}));
    setup.until("the reload", |status| status["clients"][0]["name"] == "notebook").await;
    setup.reconfigure(clients());
    setup.until("the reload", |status| status["clients"][0]["name"] == "hall").await;
    assert_eq!(counts(&setup.status().await, 0), [0, 0, 0]);
}

#[tokio::test]
async fn grpc_has_the_codes_of_refused_clients() {
    let edge = GrpcServer::start(grpc_server::edge_model).await;
    let cloud = GrpcServer::start(grpc_server::cloud_model).await;
    let changes = json!({"clients": [
        client("hall", json!({"models": ["small"], "requestsPerMinute": 3})),
        client("notebook", json!({})),
    ]});
    let setup = grpc_server::setup(edge.address, cloud.address, changes).await;
    let infer = |key: Option<&'static str>, model: &'static str| {
        let setup = &setup;
        async move {
            let mut message = grpc_server::rows(&[0.875], true);
            message.model_name = model.to_owned();
            let metadata: Vec<_> = key.map(|key| ("authorization", key)).into_iter().collect();
            let answer = grpc_server::infer(setup, &metadata, message).await;
            answer.map(tonic::Response::<ModelInferResponse>::into_inner)
        }
    };
    let refused = infer(None, "small").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("Authorization: Bearer"), "{}", refused.message());
    let refused = infer(Some("Bearer npk_other"), "small").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    infer(Some("Bearer npk_hall"), "small").await.unwrap();
    let (headers, _) = edge.received().pop().unwrap();
    assert!(!headers.contains_key("authorization"));
    let refused = infer(Some("Bearer npk_hall"), "other").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let hall = [("authorization", "Bearer npk_hall")];
    // Its message is empty, as that of `ServerLive`.
    let index: Result<tonic::Response<ServerLiveResponse>, _> =
        grpc_server::call(&setup, "RepositoryIndex", &hall, ServerLiveRequest::default()).await;
    assert_eq!(index.unwrap_err().code(), Code::PermissionDenied);
    let refused = infer(Some("Bearer npk_hall"), "small").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.metadata().contains_key("retry-after"));
    let live: Result<tonic::Response<ServerLiveResponse>, _> =
        grpc_server::call(&setup, "ServerLive", &[], ServerLiveRequest::default()).await;
    assert_ne!(live.map(drop).map_err(|status| status.code()), Err(Code::Unauthenticated));
}

#[tokio::test]
async fn chain_shows_a_key_of_its_own() {
    let (edge, cloud, mut config) = servers().await;
    config["clients"] = clients()["clients"].clone();
    config["timeouts"] = patient();
    config["id"] = json!("upper");
    let upper = Setup::start(edge.address, None, config).await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, format!("{NOTEBOOK}\n")).unwrap();
    let lower_edge = Server::start(edge_model).await;
    let lower = Setup::start(
        lower_edge.address,
        Some(upper.running().address),
        json!({"id": "lower", "cloud": {"tokenFile": token, "modelName": "small"},
            "clients": [client("hall", json!({}))], "timeouts": patient()}),
    )
    .await;
    let answer = ask(&lower, HALL, 0.5).await;
    assert_eq!(answer.decision(), ("cloud", "hard"), "{}", answer.text());
    assert_eq!(cloud.received().len(), 1);
    let status = upper.status().await;
    assert_eq!(status["clients"][1]["samples"], 1, "{status}");
    std::fs::write(&token, "npk_other\n").unwrap();
    let refused =
        async { while ask(&lower, HALL, 0.5).await.decision() != ("edge", "fallback") {} };
    tokio::time::timeout(Duration::from_secs(20), refused).await.unwrap();
    lower.until("the refused token", |status| status["cloud"] == "TokenRefused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_connection_is_recognized_with_each_request() {
    let (setup, _edge, _cloud) = setup(clients()["clients"].clone()).await;
    let setup = Arc::new(setup);
    let tasks = (0..8).map(|number| {
        let setup = Arc::clone(&setup);
        tokio::spawn(async move {
            for turn in 0..25 {
                let (key, code) = match (number + turn) % 3 {
                    0 => (HALL, 200),
                    1 => (NOTEBOOK, 200),
                    _ => ("npk_other", 401),
                };
                assert_eq!(ask(&setup, key, 0.9).await.status, code);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let status = setup.status().await;
    let samples = |client: usize| status["clients"][client]["samples"].as_u64().unwrap();
    let all = status["samples"]["inference"].as_u64().unwrap();
    assert_eq!(samples(0) + samples(1), all);
    assert!(samples(0) > 60 && samples(1) > 60, "{status}");
}

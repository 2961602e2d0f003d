//! A cloud that answers, and refuses every request.

use serde_json::{Value, json};
use tonic::Status;

use crate::{
    completions::{
        CHAT, cloud_model as completions_cloud_model, question, servers as chat_servers,
        setup as chat_setup,
    },
    grpc_server::{
        GrpcServer, Script as GrpcScript, cloud_model as grpc_cloud_model,
        edge_model as grpc_edge_model, infer, rows as grpc_rows, setup as grpc_setup,
    },
    harness::{Script, Server, Setup, status},
    oip::{INFER, cloud_model, edge_model, rows},
    streams,
};

/// The state of the cloud, and the problems: `REASON: MESSAGE`.
async fn state(setup: &Setup) -> (String, Vec<String>) {
    let status = setup.status().await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let problems = status["problems"].as_array().unwrap().iter();
    let problems = problems
        .map(|problem| format!("{}: {}", text(&problem["reason"]), text(&problem["message"])));
    (text(&status["cloud"]), problems.collect())
}

fn refused(host: &str, reason: &str, remedy: &str) -> (String, Vec<String>) {
    let message = format!(
        "CloudRefusesRequests: {host} refuses every request ({reason}): hard samples get the edge's \
         answers; {remedy}"
    );
    ("RequestsRefused".to_owned(), vec![message])
}

fn reachable() -> (String, Vec<String>) {
    ("Reachable".to_owned(), Vec::new())
}

/// The state before the third refused call, which makes it a problem.
fn after_calls(calls: usize) -> (String, Vec<String>) {
    if calls == 0 { ("Unknown".to_owned(), Vec::new()) } else { reachable() }
}

const NAME: &str = "check url and modelName of the cloud";
const FORM: &str =
    "check modelName and protocol of the cloud, and whether it supports what clients send";

#[tokio::test]
async fn cloud_that_refuses_each_call_is_named_with_status_and_text() {
    let edge = Server::start(edge_model).await;
    let long = "x".repeat(300);
    for (code, body, reason, remedy) in [
        (404, json!({"error": "no model `b`"}), "404 Not Found: no model `b`".to_owned(), NAME),
        (400, json!({"error": "unknown\n model"}), "400 Bad Request: unknown model".into(), FORM),
        (422, json!({}), "422 Unprocessable Entity: {}".to_owned(), FORM),
        (
            400,
            json!({"error": {"message": long}}),
            format!("400 Bad Request: {}...", &long[..253]),
            FORM,
        ),
        (405, json!({"detail": "no"}), "405 Method Not Allowed: no".to_owned(), FORM),
    ] {
        let cloud = Server::start(move |_| status(code, &body)).await;
        let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
        for calls in 0..3 {
            assert_eq!(state(&setup).await, after_calls(calls), "{code} after {calls} calls");
            assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "fallback"));
        }
        let host = format!("http://{}", cloud.address);
        assert_eq!(state(&setup).await, refused(&host, &reason, remedy));
        let metrics = setup.page("/metrics").await;
        assert!(metrics.text().contains("\nneptune_gateway_breaker_open 0\n"), "it is called");
    }
}

#[tokio::test]
async fn refusal_ends_with_the_first_accepted_call() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| status(404, "{}")).await;
    let changes = json!({"cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    for _ in 0..4 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    assert_eq!(state(&setup).await.0, "RequestsRefused");
    cloud.become_script(cloud_model);
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
    assert_eq!(state(&setup).await, reachable());
    // The cloud accepted a call a moment ago: these are mistakes of single requests.
    cloud.become_script(|_| status(400, "{}"));
    for _ in 0..5 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    assert_eq!(state(&setup).await, reachable());
}

#[tokio::test]
async fn corrected_configuration_ends_the_refusal() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(cloud_model).await;
    let changes = json!({"cloud": {"modelName": "bgi"}});
    let mut setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    for _ in 0..3 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    let reason = "404 Not Found: no model at /v2/models/bgi/infer";
    let host = format!("http://{}", cloud.address);
    assert_eq!(state(&setup).await, refused(&host, reason, NAME));
    setup.reconfigure(json!({"cloud": {"modelName": "big"}}));
    setup.until("no problem", |status| status["cloud"] == "Unknown").await;
    assert_eq!(state(&setup).await, after_calls(0));
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn failure_after_refusals_is_shown_instead_of_them_until_it_ends() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| status(404, "{}")).await;
    let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
    for _ in 0..3 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    cloud.become_script(|_| Script::RetryAfter(hyper::StatusCode::SERVICE_UNAVAILABLE, 1));
    setup.post(INFER, rows(&[0.6])).await;
    let (cloud_state, problems) = state(&setup).await;
    assert_eq!(cloud_state, "LeftAlone");
    assert!(problems.len() == 1 && problems[0].starts_with("CloudLeftAlone: "), "{problems:?}");
    cloud.become_script(|_| status(404, "{}"));
    let refuses = async {
        while state(&setup).await.0 != "RequestsRefused" {
            setup.post(INFER, rows(&[0.6])).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(std::time::Duration::from_secs(20), refuses).await.is_ok());
}

#[tokio::test]
async fn chats_and_streams_that_are_refused_are_named_without_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ps3cret").unwrap();
    let token = json!({"cloud": {"tokenFile": token}});
    let (edge, cloud) = chat_servers().await;
    let chats = chat_setup(&edge, &cloud, token.clone()).await;
    let (streams, _edge, cloud_of_streams) = streams::start(token).await;
    for (setup, cloud, body) in
        [(chats, cloud, question(0.2)), (streams, cloud_of_streams, streams::ask(0.2, json!({})))]
    {
        cloud.become_script(|_| {
            let message = "The model `x` does not exist for t0ps3cret or key sk-abcdef123456.";
            status(404, json!({"error": {"message": message, "code": 404}}))
        });
        for _ in 0..3 {
            setup.post(CHAT, &body).await;
        }
        let host = format!("http://{}", cloud.address);
        let reason = "404 Not Found: The model `x` does not exist for [redacted] or key [redacted]";
        assert_eq!(state(&setup).await, refused(&host, reason, NAME), "{body}");
    }
}

#[tokio::test]
async fn refused_token_is_named_with_status_and_text() {
    let (edge, cloud) = chat_servers().await;
    cloud.become_script(|_| status(403, json!({"detail": "not for model big"})));
    let setup = chat_setup(&edge, &cloud, json!({})).await;
    setup.post(CHAT, question(0.2)).await;
    let (cloud_state, problems) = state(&setup).await;
    let begin = format!(
        "CloudRefusesToken: http://{} refuses requests without a token (403 Forbidden: not for \
         model big): ",
        cloud.address
    );
    assert_eq!(cloud_state, "TokenRefused");
    assert!(problems.len() == 1 && problems[0].starts_with(&begin), "{problems:?}");
}

#[tokio::test]
async fn refused_token_is_tried_again_when_its_file_is_written_with_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken").unwrap();
    let (edge, cloud) = chat_servers().await;
    cloud.become_script(|_| status(401, json!({"detail": "not active yet"})));
    let setup = chat_setup(&edge, &cloud, json!({"cloud": {"tokenFile": token}})).await;
    for _ in 0..3 {
        setup.post(CHAT, question(0.2)).await;
    }
    assert_eq!(state(&setup).await.0, "TokenRefused");
    assert_eq!(cloud.received().len(), 1, "it is not called again for a minute");
    cloud.become_script(completions_cloud_model);
    std::fs::write(&token, "t0ken").unwrap();
    setup.until("a reset", |status| status["cloud"] == "Unknown").await;
    assert_eq!(setup.post(CHAT, question(0.2)).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn grpc_that_is_refused_is_named_with_its_code() {
    let edge = GrpcServer::start(grpc_edge_model).await;
    for (refusal, reason, remedy) in [
        (Status::not_found("no model 'b'"), "gRPC NotFound: no model 'b'", NAME),
        (Status::invalid_argument("no\ninput"), "gRPC InvalidArgument: no input", FORM),
        (Status::unimplemented(""), "gRPC Unimplemented", FORM),
    ] {
        let cloud = GrpcServer::start(move |_| GrpcScript::Fail(refusal.clone())).await;
        let setup = grpc_setup(edge.address, cloud.address, json!({})).await;
        for calls in 0..3 {
            assert_eq!(state(&setup).await, after_calls(calls), "after {calls} calls");
            infer(&setup, &[], grpc_rows(&[0.5], true)).await.unwrap();
        }
        let host = format!("http://{}", cloud.address);
        assert_eq!(state(&setup).await, refused(&host, reason, remedy));
        cloud.become_script(grpc_cloud_model);
        infer(&setup, &[], grpc_rows(&[0.5], true)).await.unwrap();
        assert_eq!(state(&setup).await, reachable());
    }
}

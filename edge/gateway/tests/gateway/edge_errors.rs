//! An edge whose model server answers with errors, and requests that are not decided.

use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    completions::{
        CHAT, cloud_model as chat_cloud, edge_model as chat_edge, question, servers, setup,
    },
    grpc_server::{
        GrpcServer, Script as GrpcScript, cloud_model as grpc_cloud, infer, rows as grpc_rows,
        setup as grpc_setup,
    },
    harness::{Script, Server, Setup, status},
    oip::{INFER, cloud_model, edge_model, rows},
    streams,
};

fn context_too_long() -> Script {
    let error = json!({"code": 400, "type": "exceed_context_size_error",
        "message": "request (9412 tokens) exceeds the available context size (8192 tokens)"});
    status(400, json!({"error": error}))
}

/// Returns the problems in the status, each as `REASON: MESSAGE`.
async fn problems(setup: &Setup) -> Vec<String> {
    let status = setup.status().await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let problems = status["problems"].as_array().unwrap().iter();
    problems.map(|one| format!("{}: {}", text(&one["reason"]), text(&one["message"]))).collect()
}

#[tokio::test]
async fn prompt_beyond_the_edges_context_is_a_sample_for_the_cloud() {
    let (edge, cloud) = servers().await;
    let chats = setup(&edge, &cloud, json!({})).await;
    let (streams, edge_of_streams, _cloud) = streams::start(json!({})).await;
    edge.become_script(|_| context_too_long());
    edge_of_streams.become_script(|_| context_too_long());
    let answer = chats.post(CHAT, question(0.9)).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("cloud", "edge-error")));
    assert_eq!(answer.json()["id"], "cloud");
    let answer = streams.post(CHAT, streams::ask(0.9, json!({}))).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("cloud", "edge-error")));
    for setup in [&chats, &streams] {
        let samples = &setup.status().await["samples"];
        assert_eq!((&samples["inference"], &samples["cloud"]), (&json!(1), &json!(1)));
        assert_eq!(samples["hard"], 0, "it was not judged");
    }
}

#[tokio::test]
async fn client_gets_the_edges_own_error_if_the_cloud_may_not_or_does_not_answer() {
    let (edge, cloud) = servers().await;
    let budget = json!({"hardExample": {"goal": {"uploadRatio": 0.1}}});
    let pinned = json!({"neverUpload": {"headers": ["x-route: edge"]}});
    for (what, changes, cloud_fails) in [
        ("onEdgeFailure", json!({"onEdgeFailure": "Error"}), false),
        ("pinned", pinned, false),
        ("cloud", json!({}), true),
        ("budget", budget, false),
    ] {
        edge.become_script(chat_edge);
        cloud.become_script(
            move |request| {
                if cloud_fails { status(503, "{}") } else { chat_cloud(request) }
            },
        );
        let setup = setup(&edge, &cloud, changes).await;
        edge.become_script(|_| context_too_long());
        let post = async || setup.post_with(CHAT, &[("x-route", "edge")], question(0.9)).await;
        if what == "budget" {
            while post().await.status == 200 {
                assert!(cloud.received().len() < 80, "the cap");
            }
        }
        let answer = post().await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert_eq!(answer.json()["error"]["type"], "exceed_context_size_error", "{what}");
    }
}

#[tokio::test]
async fn mistake_of_the_client_stays_an_error_and_is_asked_nowhere_else() {
    let (edge, cloud) = servers().await;
    let setup = setup(&edge, &cloud, json!({})).await;
    edge.become_script(|_| status(400, json!({"error": {"message": "Invalid 'temperature'"}})));
    assert_eq!(setup.post(CHAT, question(0.9)).await.status, 400);
    assert!(cloud.received().is_empty());
    assert_eq!(setup.status().await["samples"]["inference"], 0);
}

#[tokio::test]
async fn overloaded_edge_gives_batches_to_the_cloud() {
    let cloud = Server::start(cloud_model).await;
    for code in [429, 500, 501] {
        let edge = Server::start(move |_| status(code, json!({"error": "queue is full"}))).await;
        let setup =
            Setup::start(edge.address, Some(cloud.address), json!({"cloud": {"modelName": "big"}}))
                .await;
        let answer = setup.post(INFER, rows(&[0.9, 0.8])).await;
        assert_eq!(answer.status, 200, "{code}: {}", answer.text());
        assert_eq!(answer.decision(), ("cloud", "edge-error"), "{code}");
        assert_eq!(setup.status().await["samples"]["cloud"], 2, "{code}");
    }
}

#[tokio::test]
async fn overloaded_edge_gives_batches_of_grpc_to_the_cloud() {
    let edge = GrpcServer::start(|_| GrpcScript::Fail(Status::resource_exhausted("full"))).await;
    let cloud = GrpcServer::start(grpc_cloud).await;
    let setup = grpc_setup(edge.address, cloud.address, json!({})).await;
    infer(&setup, &[], grpc_rows(&[0.9], true)).await.unwrap();
    assert_eq!(cloud.received().len(), 1);
    edge.become_script(|_| GrpcScript::Fail(Status::invalid_argument("bad shape")));
    let refused = infer(&setup, &[], grpc_rows(&[0.9], true)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "bad shape"));
    assert_eq!(cloud.received().len(), 1);
}

#[tokio::test]
async fn edge_that_refuses_every_request_is_named_until_it_answers() {
    let cloud = Server::start(cloud_model).await;
    let edge = Server::start(|_| status(400, json!({"error": "unexpected shape"}))).await;
    let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
    for _ in 0..3 {
        assert_eq!(problems(&setup).await, [""; 0]);
        setup.post(INFER, rows(&[0.9])).await;
    }
    let expected = format!(
        "ModelServerRefusesRequests: the model server at {} refuses every request (400 Bad \
         Request: unexpected shape): none is judged, and the cloud answers only what is beyond the \
         capacity of the edge; check what clients send",
        edge.address
    );
    assert_eq!(problems(&setup).await, [expected]);
    edge.become_script(edge_model);
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.decision(), ("edge", "easy"));
    assert_eq!(problems(&setup).await, [""; 0]);
}

#[tokio::test]
async fn requests_that_are_not_decided_are_named_with_what_is_decided() {
    let cloud = Server::start(cloud_model).await;
    let edge = Server::start(|_| crate::harness::ok("{}")).await;
    let config = json!({"edge": {"model": "small"}});
    let setup = Setup::start(edge.address, Some(cloud.address), config).await;
    let begin = "RequestsUndecided: the last requests are not decided and pass to the edge's model \
                 server, because they";
    for (path, why) in [
        (
            "/v2/models/other/infer",
            "name the model `other`, and this service decides `small`; let clients name `small`",
        ),
        ("/v2/repository/index", "are to /v2/repository/index"),
    ] {
        // As many as make samples without a confidence a problem.
        for _ in 0..20 {
            assert_eq!(setup.post(path, rows(&[0.9])).await.decision(), ("edge", "unjudged"));
        }
        assert_eq!(problems(&setup).await, [format!("{begin} {why}")]);
    }
    assert_eq!(setup.status().await["samples"]["unjudged"], 40);
    edge.become_script(edge_model);
    setup.post(INFER, rows(&[0.9])).await;
    assert_eq!(problems(&setup).await, [""; 0]);
}

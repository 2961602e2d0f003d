//! What a gateway reports when a side or its configuration does not work.

use std::time::Duration;

use neptune_gateway::clock;
use serde_json::{Value, json};

use crate::{
    grpc_server::{
        GrpcServer, Script as GrpcScript, infer, rows as grpc_rows, setup as grpc_setup,
    },
    harness::{Answered, Script, Server, Setup, dead_address, ok, status},
    oip::{INFER, cloud_model, edge_model, rows},
};

/// The problems: reasons and messages.
async fn problems(setup: &Setup) -> Vec<(String, String)> {
    let status = setup.status().await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let problems = status["problems"].as_array().unwrap().iter();
    problems.map(|problem| (text(&problem["reason"]), text(&problem["message"]))).collect()
}

async fn reasons(setup: &Setup) -> Vec<String> {
    problems(setup).await.into_iter().map(|(reason, _)| reason).collect()
}

/// Sends hard samples until an answer is as expected: the breaker pauses.
async fn until(setup: &Setup, is_expected: impl Fn(&Answered) -> bool) {
    let sending = tokio::time::timeout(Duration::from_secs(20), async {
        while !is_expected(&setup.post(INFER, rows(&[0.6])).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(sending.await.is_ok(), "{}", setup.status().await);
}

#[tokio::test]
async fn cloud_of_another_form_is_named_with_what_was_expected_and_came() {
    let edge = Server::start(edge_model).await;
    for (script, received) in [
        ((|| ok("{\"outputs\":")) as fn() -> Script, "incomplete or malformed JSON"),
        (|| ok(json!({"predictions": [[0.1]], "id": "secret"})), "a JSON object with "),
        (|| Script::Answer(hyper::StatusCode::OK, "text/html", "<html>secret".into()), "HTML"),
    ] {
        let cloud = Server::start(move |_| script()).await;
        let changes = json!({"cloud": {"modelName": "big"}});
        let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
        for call in 0..3 {
            assert_eq!(reasons(&setup).await, [""; 0], "after {call} calls");
            assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "fallback"));
        }
        let reported = problems(&setup).await;
        let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
        let url = format!("http://{}/v2/models/big/infer", cloud.address);
        let expected = format!(
            "{url} answers in another form than the protocol: expected a JSON object with outputs, \
             received {received}"
        );
        assert_eq!(reason, "CloudAnswerInvalid");
        assert!(message.starts_with(&expected) && !message.contains("secret"), "{message}");
        assert_eq!(setup.status().await["cloud"], "LeftAlone", "the breaker is the same");
    }
}

#[tokio::test]
async fn answer_in_the_form_of_the_protocol_ends_the_problem() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| ok("{}")).await;
    let changes = json!({"cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    for _ in 0..3 {
        setup.post(INFER, rows(&[0.6])).await;
    }
    assert_eq!(reasons(&setup).await, ["CloudAnswerInvalid"]);
    // Another failure is another problem.
    cloud.become_script(|_| status(500, "{}"));
    until(&setup, |_| !cloud.received().is_empty()).await;
    assert_eq!(reasons(&setup).await, ["CloudLeftAlone"]);
    cloud.become_script(cloud_model);
    until(&setup, |answer| answer.decision() == ("cloud", "hard")).await;
    assert_eq!(reasons(&setup).await, [""; 0]);
}

#[tokio::test]
async fn answers_with_other_rows_are_a_problem_although_the_cloud_works() {
    let edge = Server::start(edge_model).await;
    let cloud = Server::start(|_| {
        let output =
            json!({"name": "p", "datatype": "FP64", "shape": [2, 2], "data": [0, 1, 0, 1]});
        ok(json!({"model_name": "big", "outputs": [output]}))
    })
    .await;
    let setup = Setup::start(edge.address, Some(cloud.address), json!({})).await;
    for _ in 0..3 {
        assert_eq!(setup.post(INFER, rows(&[0.6, 0.9])).await.decision().0, "edge");
    }
    let reported = problems(&setup).await;
    let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
    let begin = format!("the answers of http://{} do not fit the edge's: ", cloud.address);
    assert!(reason == "CloudAnswerInvalid" && message.starts_with(&begin), "{message}");
    assert_eq!(setup.status().await["cloud"], "Reachable");
}

#[tokio::test]
async fn edge_that_is_down_is_reported_also_if_clients_get_errors() {
    let edge = dead_address();
    for changes in [json!({"onEdgeFailure": "Error"}), json!({})] {
        let setup = Setup::start(edge, None, changes).await;
        assert_eq!(setup.post(INFER, rows(&[0.9])).await.status, 503);
        let reported = problems(&setup).await;
        let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
        assert_eq!(reason, "ModelServerDown");
        assert!(message.contains(&edge.to_string()), "{message}");
    }
    // A path that is not decided.
    let setup = Setup::start(edge, None, json!({})).await;
    assert_eq!(setup.post("/v2/models/small/generate", "{}").await.status, 503);
    assert_eq!(reasons(&setup).await, ["ModelServerDown"]);
}

#[tokio::test]
async fn deadline_of_a_client_does_not_make_the_edge_down() {
    let edge = Server::start(|_| Script::Never).await;
    let setup = Setup::start(edge.address, None, json!({"timeouts": {"edge": "1m"}})).await;
    let begin = clock::now();
    let answer = setup.post_with(INFER, &[("x-request-timeout-ms", "100")], rows(&[0.9])).await;
    assert_eq!(answer.status, 504);
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(reasons(&setup).await, [""; 0]);
}

#[tokio::test]
async fn grpc_of_the_edge_is_down_by_its_own_address() {
    let (edge, cloud) = (dead_address(), GrpcServer::start(|_| GrpcScript::Never).await);
    let setup = grpc_setup(edge, cloud.address, json!({"onEdgeFailure": "Error"})).await;
    infer(&setup, &[], grpc_rows(&[0.9], true)).await.unwrap_err();
    let reported = problems(&setup).await;
    let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(reason, "ModelServerDown");
    assert!(message.contains(&edge.to_string()), "{message}");
}

#[tokio::test]
async fn message_of_another_form_over_grpc_is_a_problem() {
    let edge = GrpcServer::start(crate::grpc_server::edge_model).await;
    let cloud = GrpcServer::start(|_| GrpcScript::Answer(Box::default())).await;
    let setup = grpc_setup(edge.address, cloud.address, json!({})).await;
    for _ in 0..3 {
        infer(&setup, &[], grpc_rows(&[0.5], true)).await.unwrap();
    }
    let reported = problems(&setup).await;
    let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
    let expected = format!(
        "http://{}/inference.GRPCInferenceService/ModelInfer answers in another form than the \
         protocol: expected a ModelInferResponse with outputs",
        cloud.address
    );
    assert!(reason == "CloudAnswerInvalid" && message.starts_with(&expected), "{message}");
}

#[tokio::test]
async fn invalid_change_of_the_configuration_is_a_problem_until_it_is_corrected() {
    let edge = Server::start(edge_model).await;
    let mut setup = Setup::start(edge.address, None, json!({})).await;
    setup.reconfigure(json!({"hardExample": {"threshold": 2}}));
    let has_problem = |status: &Value| !status["problems"].as_array().unwrap().is_empty();
    setup.until("the problem", has_problem).await;
    let reported = problems(&setup).await;
    let [(reason, message)] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(reason, "ConfigurationInvalid");
    let field = "not used: hardExample.threshold is 2; it has to be from 0 to 1; the one before";
    assert!(message.contains(field), "{message}");
    assert_eq!(setup.post(INFER, rows(&[0.9])).await.decision(), ("edge", "easy"));
    // The content of before is a change, too.
    setup.reconfigure(json!({"hardExample": {"threshold": 0.8}}));
    setup.until("no problem", |status| !has_problem(status)).await;
}

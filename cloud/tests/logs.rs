//! `LogRequests`, and `kubectl neptune logs`: the test is the agent.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{Agent, Harness, SERVICE};
use kube::{Api, ResourceExt as _, api::PostParams};
use neptune_api::{LogRequest, LogRequestPhase, LogRequestReason, LogRequestStatus};
use neptune_wire::{AgentFeature, AnswerReason, LogSource, NodeAnswer, NodeRequest, Topic, encode};
use serde_json::{Value, json};

fn object(name: &str, spec: &Value) -> LogRequest {
    let object = json!({"apiVersion": "neptune.io/v1alpha1", "kind": "LogRequest",
        "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

fn spec(worker: &str) -> Value {
    json!({"objectRef": {"kind": "JointInferenceService", "name": SERVICE}, "worker": worker})
}

async fn create(harness: &Harness, name: &str, spec: &Value) -> LogRequest {
    let api: Api<LogRequest> = harness.api();
    api.create(&PostParams::default(), &object(name, spec)).await.unwrap()
}

async fn ended(harness: &Harness, name: &str) -> LogRequestStatus {
    let has_ended = |it: &LogRequest| it.status.is_some();
    harness.until(name, "the end of the request", has_ended).await.status.unwrap()
}

fn answer(agent: &Agent, request: &NodeRequest, text: &str) {
    let answer = NodeAnswer {
        id: request.id.clone(),
        text: text.to_owned(),
        truncated: false,
        next: Some("2026-11-24T06:00:00.000000001Z".to_owned()),
        problem: None,
    };
    agent.publish(&Topic::Answer(agent.node.clone()), encode(&answer), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_the_node_is_the_status_of_the_request() {
    let harness = Harness::start().await;
    let (mut agent, task) = harness.counting_agent().await;
    create(&harness, "old", &spec("edge")).await;
    let old = ended(&harness, "old").await;
    assert_eq!(old.reason, Some(LogRequestReason::AgentTooOld));
    agent.report_offer(vec![AgentFeature::Logs], Vec::new());
    agent.flushed().await;

    let created = create(&harness, "log", &spec("edge")).await;
    let request = agent.request().await;
    assert_eq!(request.id.as_str(), created.uid().unwrap());
    assert_eq!((request.worker, request.tail_lines), (LogSource::Edge, 100));
    assert_eq!((&request.uid, &request.since), (&task.metadata.uid, &None));
    // Control characters are refused: the request is repeated.
    answer(&agent, &request, "\u{1b}[2J");
    assert_eq!(agent.request().await, request, "after five seconds");
    answer(&agent, &request, "a line\n");
    let status = ended(&harness, "log").await;
    assert_eq!((status.phase, status.text.as_str()), (LogRequestPhase::Succeeded, "a line\n"));
    assert_eq!(status.next.as_deref(), Some("2026-11-24T06:00:00.000000001Z"));

    create(&harness, "refused", &spec("edge")).await;
    let request = agent.request().await;
    let message = "its operator can allow it".to_owned();
    let refused = NodeAnswer::refused(request.id, AnswerReason::LogsNotAllowed, message.clone());
    agent.publish(&Topic::Answer(agent.node.clone()), encode(&refused), false);
    let status = ended(&harness, "refused").await;
    assert_eq!((status.reason, status.message), (Some(LogRequestReason::LogsNotAllowed), message));
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_no_node_can_answer_fails_at_once() {
    let harness = Harness::start().await;
    let (agent, _) = harness.counting_agent().await;
    create(&harness, "cloud", &spec("cloud")).await;
    let cloud = ended(&harness, "cloud").await;
    assert_eq!(cloud.reason, Some(LogRequestReason::WorkerNotFound));
    assert!(cloud.message.starts_with("no agent runs the cloud worker"), "{}", cloud.message);
    let mut elsewhere = spec("edge");
    elsewhere["node"] = "solar-corona-cloud".into();
    create(&harness, "elsewhere", &elsewhere).await;
    let elsewhere = ended(&harness, "elsewhere").await;
    assert!(elsewhere.message.contains("it runs on edge0"), "{}", elsewhere.message);

    agent.vanish();
    harness.status("the offline node", |status| status.reason == "NodeOffline").await;
    create(&harness, "offline", &spec("edge")).await;
    assert_eq!(ended(&harness, "offline").await.reason, Some(LogRequestReason::NodeOffline));
}

#[tokio::test(flavor = "multi_thread")]
async fn spec_of_a_request_is_checked_and_fixed() {
    let harness = Harness::without_controller().await;
    let api: Api<LogRequest> = harness.api();
    let mut created = create(&harness, "a", &spec("edge")).await;
    created.spec.tail_lines = Some(5);
    let changed = api.replace("a", &PostParams::default(), &created).await.unwrap_err();
    assert!(changed.to_string().contains("create another LogRequest"), "{changed}");
    let mut both = spec("edge");
    both["sinceSeconds"] = 5.into();
    both["sinceTime"] = "2026-11-24T06:00:00Z".into();
    let mut many = spec("edge");
    many["tailLines"] = 1001.into();
    for (refused, why) in
        [(spec("server"), "must be edge or cloud"), (both, "not both"), (many, "1000")]
    {
        let error = api.create(&PostParams::default(), &object("b", &refused)).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_prints_the_log_and_deletes_its_request() {
    let harness = Harness::start().await;
    let (mut agent, _) = harness.counting_agent().await;
    agent.report_offer(vec![AgentFeature::Logs], Vec::new());
    agent.flushed().await;
    let arguments = ["logs", SERVICE, "edge", "--tail", "7", "--since", "10m"];
    let (output, ()) = tokio::join!(harness.command(&arguments), async {
        let request = agent.request().await;
        assert_eq!((request.tail_lines, request.since.is_some()), (7, true));
        answer(&agent, &request, "a line\nanother\n");
    });
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "a line\nanother\n");
    let left = harness.api::<LogRequest>().list(&kube::api::ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "{left:?}");

    let (other, error) = ("no-such-service", harness.command(&["logs", "no-such-service"]).await);
    assert!(!error.status.success());
    assert!(text(&error.stderr).contains(other), "{}", text(&error.stderr));
}

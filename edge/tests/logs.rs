//! Logs of workers that the cloud requests, with a real engine and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use harness::{Agent, Broker, BusyboxImage, Cloud, SERVICE, runs, service, unique};
use neptune_harness::within;
use neptune_wire::{
    AgentFeature, AnswerReason, LogKind, LogSource, MAX_ANSWER_BYTES, NodeAnswer, NodeRequest,
    RequestKind, Topic, decode, encode,
};
use serde_json::Value;

/// A service with one worker that runs this shell script.
fn writing(worker: &str, image: &BusyboxImage, script: &str) -> Value {
    let mut content = service(worker, &image.0, script);
    content["workers"][0].as_object_mut().unwrap().remove("model");
    content
}

fn request(id: &str) -> NodeRequest {
    NodeRequest {
        id: id.parse().unwrap(),
        kind: RequestKind::Log,
        object: SERVICE.parse().unwrap(),
        uid: "uid-of-s".to_owned(),
        worker: LogSource::Edge,
        tail_lines: 1000,
        since: None,
    }
}

async fn answer(cloud: &Cloud, request: &NodeRequest) -> NodeAnswer {
    cloud.publish(&Topic::Request(cloud.node.clone()), encode(request), false);
    let topic = Topic::Answer(cloud.node.clone());
    let is_answer = |answer: &NodeAnswer| answer.id == request.id;
    let answer = cloud
        .message(&topic, "the answer", |payload| {
            decode::<NodeAnswer>(payload).ok().filter(is_answer)
        })
        .await;
    answer.check().unwrap();
    answer
}

/// The answer that has this text. Each request has an ID of its own.
async fn text_with(cloud: &Cloud, text: &str) -> NodeAnswer {
    within(text, async {
        for n in 0.. {
            let answer = answer(cloud, &request(&format!("until-{n}"))).await;
            if answer.text.contains(text) {
                return answer;
            }
        }
        unreachable!()
    })
    .await
}

#[tokio::test]
async fn log_is_sent_once_per_request_and_continued_with_its_time() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let node = cloud.node("the birth", |report| report.online).await;
    assert!(node.supports.contains(&AgentFeature::Logs));
    assert_eq!(node.remote_logs, [LogKind::Worker, LogKind::Server]);
    let refused = answer(&cloud, &request("early")).await.problem.unwrap();
    assert_eq!(refused.reason, AnswerReason::WorkerNotFound);

    let script = r"trap 'exit 0' TERM
        echo out; echo err >&2; busybox printf 'a\033[31mb\377\000\r\n'
        while [ ! -e /tmp/go ]; do sleep 0.1; done
        echo more; while :; do sleep 1 & wait $!; done";
    cloud.insert(SERVICE, &writing(&unique("w"), &image, script));
    cloud.status(SERVICE, "running", runs).await;
    let first = text_with(&cloud, "a[31mb\u{fffd}\n").await;
    let mut lines: Vec<&str> = first.text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a[31mb\u{fffd}", "err", "out"], "the engine merges the streams");
    assert!(!first.truncated);

    let container = agent.containers().first().unwrap().clone();
    harness::docker(&["exec", &container, "busybox", "touch", "/tmp/go"]);
    text_with(&cloud, "more\n").await;
    let repeated = answer(&cloud, &request(first.id.as_str())).await;
    assert_eq!(repeated, first, "also after the log grew");
    let next = NodeRequest { since: first.next.clone(), ..request("next") };
    let next = answer(&cloud, &next).await;
    assert_eq!((next.text.as_str(), next.truncated), ("more\n", false));
    let tail = answer(&cloud, &NodeRequest { tail_lines: 1, ..request("tail") }).await;
    assert_eq!((tail.text.as_str(), tail.truncated), ("more\n", false));
    let log = agent.log();
    assert!(log.contains("log requested") && log.contains("tail"), "{log}");
}

#[tokio::test]
async fn end_of_a_large_log_is_sent_also_after_the_exit() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    // Lines of 8 KiB: the last thousand are more than is read at a time.
    let script = "line=$(busybox head -c 8000 /dev/zero | busybox tr '\\0' x)
        i=0; while [ $i -lt 1100 ]; do echo $line; i=$((i + 1)); done; echo the end";
    cloud.insert(SERVICE, &writing(&unique("w"), &image, script));
    cloud.status(SERVICE, "completed", |report| report.workers[0].reason.is_some()).await;
    let large = text_with(&cloud, "the end\n").await;
    assert!(large.truncated && large.text.ends_with("x\nthe end\n"));
    assert!(large.text.len() > MAX_ANSWER_BYTES / 2, "{}", large.text.len());
}

#[tokio::test]
async fn log_stays_on_a_node_whose_operator_does_not_allow_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    agent.extra = ["--remote-logs", "server,training"].map(str::to_owned).to_vec();
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.insert(SERVICE, &writing(&unique("w"), &image, "echo secret; sleep 100"));
    cloud.status(SERVICE, "running", runs).await;
    let refused = answer(&cloud, &request("a")).await;
    let expected = format!(
        "node {} does not send logs of workers; its operator can allow it with --remote-logs worker",
        agent.node
    );
    let problem = refused.problem.unwrap();
    assert_eq!((problem.reason, problem.message), (AnswerReason::LogsNotAllowed, expected));
    assert_eq!(refused.text, "");
}

#[tokio::test]
async fn last_lines_of_a_failed_worker_follow_remote_logs() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    for (kinds, expected) in [
        ("worker", "last log lines: a line of the log;"),
        (
            "server,training",
            "not reported (--remote-logs worker of the agent allows it); run docker logs ",
        ),
    ] {
        let mut agent = Agent::new(&broker.url());
        agent.extra = vec!["--remote-logs".to_owned(), kinds.to_owned()];
        agent.start();
        let cloud = Cloud::connect(&agent);
        cloud.insert(SERVICE, &writing(&unique("w"), &image, "echo a line of the log; exit 3"));
        let has_text =
            |report: &neptune_wire::StatusReport| report.workers[0].message.contains(expected);
        cloud.status(SERVICE, expected, has_text).await;
    }
}

//! A hundred forged messages of ten malicious nodes, with the shipped ACL and the built controller:
//! the broker denies fifty, the controller rejects the others, and both count every message.

use std::collections::BTreeMap;

use deploy_tests::broker::{ShippedBroker, connect, publish};
use neptune_api::JointInferenceService;
use neptune_e2e::totals;
use neptune_harness::{
    Cluster, Process, eventually_async, free_port, programs, within,
    workspace::{program, root},
};
use neptune_wire::{Counters, Index, NodeReport, StatusReport, Sync, Topic, TopicPrefix, decode};
use serde_json::json;
use tokio::task::JoinSet;

const CONTROLLER: &str = "neptune_cloud";
const NODES: usize = 10;
/// The node that has a password and is not a Node of the cluster.
const UNREGISTERED: &str = "edge9";

fn node(n: usize) -> String {
    format!("edge{}", n % NODES)
}

/// A report on the service with these counters.
fn report(uid: &str, seq: u64, inference: u64, hard: u64) -> String {
    json!({
        "schemaVersion": 1, "instance": "i", "epoch": 1, "seq": seq, "uid": uid, "revision": 1,
        "phase": "Running", "status": "running",
        "output": {"models": [], "taskInfo": {"inferenceNumber": inference, "hardExampleNumber": hard,
            "uploadCloudRatio": 0.0, "startTime": "", "currentTime": ""}},
    })
    .to_string()
}

fn status_topic(node: &str) -> String {
    format!("neptune/{node}/upstream/default/jointinferenceservices/digits/status")
}

/// Topics on which a node may publish, a payload that the controller rejects there, and the reason.
fn let_through(own: &str, victim: &str, uid: &str) -> [(String, String, &'static str); 5] {
    let birth =
        json!({"instance": "i", "epoch": 9, "online": true, "agentVersion": ""}).to_string();
    let refused = |reason| if own == UNREGISTERED { "unknown_node" } else { reason };
    [
        (status_topic(own), report(uid, 9, 1000, 2000), refused("impossible")),
        (status_topic(own), report("another", 9, 1_000_000, 0), refused("unknown_object")),
        (format!("neptune/{own}/upstream/sync"), birth.clone(), refused("payload")),
        (format!("neptune/{own}/upstream/node"), "forged".to_owned(), refused("payload")),
        (format!("neptune/{own}/upstream/{victim}/node/digits/status"), birth, "topic"),
    ]
}

/// Topics on which a node may not publish, and a payload that would be valid there.
fn denied(victim: &str, uid: &str) -> [(String, String); 5] {
    let will =
        json!({"instance": "i", "epoch": 9, "online": false, "agentVersion": ""}).to_string();
    let sync = json!({"instance": "i", "epoch": 9, "indexRevision": 0, "highest": u64::MAX,
        "complete": false, "objects": {}});
    [
        (status_topic(victim), report(uid, 9, 1_000_000, 0)),
        (format!("neptune/{victim}/upstream/node"), will),
        (format!("neptune/{victim}/upstream/sync"), sync.to_string()),
        (
            format!("neptune/{victim}/downstream/index"),
            json!({"revision": 1, "objects": {}}).to_string(),
        ),
        (format!("neptune/all/upstream/{victim}"), "forged".to_owned()),
    ]
}

/// Number of messages that the controller rejected, by reason.
async fn refused(metrics: &str) -> BTreeMap<String, u64> {
    let Ok(answer) = reqwest::get(metrics).await else { return BTreeMap::new() };
    let text = answer.text().await.unwrap();
    let begin = "neptune_controller_upstream_rejected_total{reason=\"";
    let lines = text.lines().filter_map(|line| line.strip_prefix(begin)?.split_once("\"} "));
    lines.map(|(reason, count)| (reason.to_owned(), count.parse().unwrap())).collect()
}

async fn until_counted(cluster: &Cluster, expected: Counters) {
    let services = kube::Api::<JointInferenceService>::namespaced(cluster.client(), "default");
    let is = |service: Option<&JointInferenceService>| {
        let status = service.and_then(|service| service.status.as_ref());
        status.is_some_and(|status| totals(status) == expected)
    };
    let waiting = kube::runtime::wait::await_condition(services, "digits", is);
    within(&format!("{expected:?} in the status"), Box::pin(waiting)).await.unwrap();
}

/// Applies the CRDs, all nodes but one, and a service on the first node.
fn apply(cluster: &Cluster) -> String {
    let crds = root().join("crds");
    cluster.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]);
    for node in
        (0..NODES).map(node).filter(|node| node != UNREGISTERED).chain(["cloud0".to_owned()])
    {
        let labels = json!({"node-role.kubernetes.io/edge": "", "neptune.io/runtime": "agent"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}});
        cluster.apply(&node.to_string());
    }
    for file in ["models", "service"] {
        let text = std::fs::read_to_string(root().join(format!("examples/digits/{file}.yaml")));
        cluster.apply(&text.unwrap().replace("${MODEL_SERVER}", "http://192.0.2.1"));
    }
    let uid = cluster.kubectl(&["get", "jis", "digits", "-o", "jsonpath={.metadata.uid}"]);
    assert!(!uid.is_empty());
    uid
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_forged_messages_are_rejected_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..NODES).map(node).chain([CONTROLLER.to_owned()]).collect();
    let broker = ShippedBroker::start(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let cluster = Cluster::devcluster(dir.path()).await;
    let uid = apply(&cluster);
    let options = broker.as_cloud(CONTROLLER);
    let port = free_port();
    let identity = options.identity.unwrap();
    let contents =
        [options.ca.unwrap(), identity.certificate.clone(), identity.key.as_str().to_owned()];
    let program = program("neptune-cloud");
    let mut command = programs::controller(&program, cluster.kubeconfig(), port);
    command.args(programs::mqtt(&format!("mqtts://localhost:{}", options.url.port())));
    for (kind, content) in ["ca", "cert", "key"].into_iter().zip(contents) {
        let file = dir.path().join(kind);
        std::fs::write(&file, content).unwrap();
        command.arg(format!("--mqtt-{kind}-file")).arg(file);
    }
    let controller = Process::start("neptune-cloud", dir.path(), &mut command);

    // A valid report first, so that a forged one would change the totals.
    let (victim, events) = connect(broker.as_node("edge0")).await;
    publish(&victim, &status_topic("edge0"), &report(&uid, 1, 42, 7), true).await;
    Box::pin(until_counted(&cluster, Counters { inference: 42, hard: 7, ..Counters::default() }))
        .await;

    drop((victim, events));

    let mut expected = BTreeMap::new();
    let mut tasks = JoinSet::new();
    for n in 0..NODES {
        let (own, victim) = (node(n), node(n + 1));
        for (_, _, reason) in let_through(&own, &victim, &uid) {
            *expected.entry(reason.to_owned()).or_insert(0) += 1;
        }
        let (options, uid) = (broker.as_node(&own), uid.clone());
        tasks.spawn(async move {
            let (link, mut events) = connect(options).await;
            tokio::spawn(async move { while events.next().await.is_some() {} });
            for (topic, payload, _) in let_through(&own, &victim, &uid) {
                publish(&link, &topic, &payload, true).await;
            }
            for (topic, payload) in denied(&victim, &uid) {
                publish(&link, &topic, &payload, true).await;
            }
        });
    }
    tasks.join_all().await;
    broker.until_logged("Denied PUBLISH", 50).await;
    assert_eq!(broker.logged("Denied PUBLISH"), 50);
    let metrics = format!("http://127.0.0.1:{port}/metrics");
    eventually_async("50 rejected messages", async || {
        refused(&metrics).await.values().sum::<u64>() >= 50
    })
    .await;
    assert_eq!(refused(&metrics).await, expected);
    assert_eq!(expected.values().sum::<u64>(), 50);

    // None of them had an effect, neither on the totals nor on the honest node.
    let (victim, _events) = connect(broker.as_node("edge0")).await;
    publish(&victim, &status_topic("edge0"), &report(&uid, 2, 43, 7), true).await;
    Box::pin(until_counted(&cluster, Counters { inference: 43, hard: 7, ..Counters::default() }))
        .await;
    let nodes = reqwest::get(&metrics).await.unwrap().text().await.unwrap();
    let online = nodes.lines().find(|line| line.contains("nodes{state=\"online\"}")).unwrap();
    // A report with refused counters is a sign of life of the node that may publish on its topic.
    assert!(online.ends_with(&format!(" {}", NODES - 1)), "all registered nodes: {online}");
    drop(controller);
}

#[test]
fn denied_messages_are_valid_for_the_node_they_name() {
    for (topic, payload) in &denied("edge1", "uid")[..4] {
        let bytes = payload.as_bytes();
        match Topic::parse(&TopicPrefix::default(), topic).unwrap() {
            Topic::Status(..) => drop(decode::<StatusReport>(bytes).unwrap()),
            Topic::Node(_) => drop(decode::<NodeReport>(bytes).unwrap()),
            Topic::Sync(_) => drop(decode::<Sync>(bytes).unwrap()),
            Topic::Index(_) => drop(decode::<Index>(bytes).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

//! A hundred forgeries of ten nodes that have gone bad, at a mosquitto with the shipped rules and the built controller: what
//! the broker lets through the controller refuses, none is accepted, and each is counted by the one or the other.

use std::{collections::BTreeMap, process::Command, time::Duration};

use deploy_tests::broker::{Broker, connect, say};
use neptune_api::JointInferenceService;
use neptune_e2e::{Cluster, Process, free_port, program, root, totals};
use neptune_wire::{Counters, Index, NodeReport, StatusReport, Sync, Topic, TopicPrefix, decode};
use serde_json::json;
use tokio::task::JoinSet;

const CONTROLLER: &str = "neptune_cloud";
const NODES: usize = 10;
/// The one of them that has a password and is no Node of the cluster.
const UNREGISTERED: &str = "edge9";
const PATIENCE: Duration = Duration::from_secs(60);

fn node(n: usize) -> String {
    format!("edge{}", n % NODES)
}

/// A report on the service, of a worker that counted so much.
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

/// Where a node may publish, and what the controller refuses there, and as what.
fn let_through(own: &str, victim: &str, uid: &str) -> [(String, String, &'static str); 5] {
    let birth =
        json!({"instance": "i", "epoch": 9, "online": true, "agentVersion": ""}).to_string();
    let refused = |reason| if own == UNREGISTERED { "UnknownNode" } else { reason };
    [
        (status_topic(own), report(uid, 9, 1000, 2000), refused("Impossible")),
        (status_topic(own), report("another", 9, 1_000_000, 0), refused("UnknownObject")),
        (format!("neptune/{own}/upstream/sync"), birth.clone(), refused("Payload")),
        (format!("neptune/{own}/upstream/node"), "forged".to_owned(), refused("Payload")),
        (format!("neptune/{own}/upstream/{victim}/node"), birth, "Topic"),
    ]
}

/// Where a node may not publish, and what would be taken there.
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

/// How many messages the controller refused, by reason.
async fn refused(metrics: &str) -> BTreeMap<String, u64> {
    let Ok(answer) = reqwest::get(metrics).await else { return BTreeMap::new() };
    let text = answer.text().await.unwrap();
    let begin = "neptune_controller_upstream_rejected_total{reason=\"";
    let lines = text.lines().filter_map(|line| line.strip_prefix(begin)?.split_once("\"} "));
    lines.map(|(reason, count)| (reason.to_owned(), count.parse().unwrap())).collect()
}

async fn until_counted(cluster: &Cluster, wished: Counters) {
    let services = kube::Api::<JointInferenceService>::namespaced(cluster.client(), "default");
    let is = |service: Option<&JointInferenceService>| {
        let status = service.and_then(|service| service.status.as_ref());
        status.is_some_and(|status| totals(status) == wished)
    };
    let waiting = kube::runtime::wait::await_condition(services.clone(), "digits", is);
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "not {wished:?}: {:#?}", services.get("digits").await);
}

/// What the cluster has: the nodes but one, and a service of the first.
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
async fn of_a_hundred_forgeries_by_ten_nodes_none_is_accepted_and_each_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..NODES).map(node).chain([CONTROLLER.to_owned()]).collect();
    let broker = Broker::start(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let cluster = Cluster::own(dir.path()).await;
    let uid = apply(&cluster);
    let options = broker.as_cloud(CONTROLLER);
    let listen = format!("127.0.0.1:{}", free_port());
    let password = dir.path().join("password");
    std::fs::write(&password, format!("of-{CONTROLLER}")).unwrap();
    let mut command = Command::new(program("neptune-cloud"));
    command.arg("run").args(["--listen", &listen, "--kubeconfig"]).arg(cluster.kubeconfig());
    command.arg("--mqtt-url").arg(format!("mqtts://{CONTROLLER}@localhost:{}", options.url.port()));
    command.arg("--mqtt-ca-file").arg(options.ca_file.unwrap());
    command.arg("--mqtt-password-file").arg(password).env_remove("KUBECONFIG");
    let controller = Process::start("neptune-cloud", dir.path(), &mut command);

    // A good word first, so that a forgery would be seen in the totals.
    let (victim, events) = connect(broker.as_node("edge0")).await;
    say(&victim, &status_topic("edge0"), &report(&uid, 1, 42, 7), true).await;
    until_counted(&cluster, Counters { inference: 42, hard: 7 }).await;

    drop((victim, events));

    let mut wished = BTreeMap::new();
    let mut at_work = JoinSet::new();
    for n in 0..NODES {
        let (own, victim) = (node(n), node(n + 1));
        for (_, _, reason) in let_through(&own, &victim, &uid) {
            *wished.entry(reason.to_owned()).or_insert(0) += 1;
        }
        let (options, uid) = (broker.as_node(&own), uid.clone());
        at_work.spawn(async move {
            let (link, mut events) = connect(options).await;
            tokio::spawn(async move { while events.next().await.is_some() {} });
            for (topic, payload, _) in let_through(&own, &victim, &uid) {
                say(&link, &topic, &payload, true).await;
            }
            for (topic, payload) in denied(&victim, &uid) {
                say(&link, &topic, &payload, true).await;
            }
        });
    }
    at_work.join_all().await;
    assert_eq!(broker.logs("Denied PUBLISH", 50).await, 50);
    let metrics = format!("http://{listen}/metrics");
    let counted = tokio::time::timeout(PATIENCE, async {
        while refused(&metrics).await.values().sum::<u64>() < 50 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(counted.await.is_ok(), "{:?}", refused(&metrics).await);
    assert_eq!(refused(&metrics).await, wished);
    assert_eq!(wished.values().sum::<u64>(), 50);

    // None of them counted, for the service or against the node that speaks the truth.
    let (victim, _events) = connect(broker.as_node("edge0")).await;
    say(&victim, &status_topic("edge0"), &report(&uid, 2, 43, 7), true).await;
    until_counted(&cluster, Counters { inference: 43, hard: 7 }).await;
    let nodes = reqwest::get(&metrics).await.unwrap().text().await.unwrap();
    let online = nodes.lines().find(|line| line.contains("nodes{state=\"Online\"}")).unwrap();
    assert!(online.ends_with(" 1"), "only edge0 has said anything that counts: {online}");
    drop(controller);
}

#[test]
fn what_is_denied_would_be_taken_of_the_node_that_it_names() {
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

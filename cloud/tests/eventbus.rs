//! The controller over `KubeEdge`'s router and `EventBus`: the built program, a cluster in this process, the
//! emulator with its defects, a mosquitto on each node, and the test as the agents.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;
#[path = "bed/kubeedge.rs"]
mod kubeedge;

use std::{collections::BTreeSet, time::Duration};

use bed::{Bed, SERVICE, soon};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use kubeedge::{BusAgent, KubeEdge, batch, install_crds, rules, status_topic};
use serde_json::{Value, json};

const NODE: &str = "edge0";

/// Bytes that `KubeEdge`'s router takes at most.
const LARGEST: usize = 12 << 20;

/// The bed with the sample, and the controller on this fleet.
async fn start(nodes: &[&str], scale: f64, seed: u64) -> (Bed, KubeEdge) {
    let mut bed = Bed::without_controller().await;
    for node in nodes {
        bed.node(node, json!({"node-role.kubernetes.io/edge": ""})).await;
    }
    let kubeedge = KubeEdge::start(&bed, nodes, scale, seed).await;
    bed.over(kubeedge.flags());
    bed.start_controller();
    in_place(&bed).await;
    for node in nodes {
        soon("the node is connected", kubeedge.emulator.connected(node)).await.unwrap();
    }
    (bed, kubeedge)
}

/// Waits until the controller is ready: the rules are in place.
async fn in_place(bed: &Bed) {
    ready(bed, "rules: in place").await;
}

async fn ready(bed: &Bed, text: &str) {
    soon(text, async {
        while !bed.http("/readyz").await.is_some_and(|body| body.contains(text)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Waits until the Rules have these names.
async fn until_rules(bed: &Bed, wished: &[&str]) -> Vec<DynamicObject> {
    let wished: BTreeSet<_> = wished.iter().map(|name| (*name).to_owned()).collect();
    soon(&format!("{wished:?}"), async {
        loop {
            let found = rules(bed, "Rule").list(&ListParams::default()).await.unwrap().items;
            if found.iter().map(ResourceExt::name_any).collect::<BTreeSet<_>>() == wished {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// What the receiver says to who announces so many bytes, before any has come.
async fn announce(kubeedge: &KubeEdge, bytes: usize) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = kubeedge.upstream_url().replace("http://", "");
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /upstream/{NODE} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; "HTTP/1.1 413".len()];
    soon("its answer", stream.read_exact(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn post(url: String, body: impl Into<reqwest::Body>) -> u16 {
    try_post(url, body).await.unwrap()
}

/// `None` of who was answered and hung up on before it had said all.
async fn try_post(url: String, body: impl Into<reqwest::Body>) -> Option<u16> {
    #[expect(clippy::disallowed_methods, reason = "posts as KubeEdge does")]
    let answer = reqwest::Client::new().post(url).body(body).send().await;
    answer.ok().map(|answer| answer.status().as_u16())
}

fn rejected(reason: &str) -> String {
    format!("neptune_controller_upstream_rejected_total{{reason=\"{reason}\"}}")
}

fn posted(result: &str) -> String {
    format!("neptune_controller_router_posts_total{{result=\"{result}\"}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_runs_counts_and_goes_with_no_broker_in_the_cloud() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 1).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    agent.until("the task", |replica| replica.objects().len() == 2).await;
    agent.count(&uid, 10, 2);
    bed.status("it counts", |s| s.inference == 10 && s.hard == 2).await;
    bed.until_metric("neptune_controller_nodes{state=\"Online\"}", 1).await;
    bed.delete().await;
    agent.until("it is gone", |replica| replica.objects().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_gets_what_it_missed_as_soon_as_it_speaks() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 2).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    kubeedge.emulator.cut(NODE).unwrap();
    bed.apply_sample().await;
    bed.until_metric(&posted("NoSession"), 1).await;
    let tries = bed.metric(&posted("NoSession")).await;
    bed.patch(json!({"edgeWorker": {"hardExampleAlgorithm": {"name": "Random"}}})).await;
    assert!(agent.task().is_none());
    assert_eq!(bed.metric(&posted("NoSession")).await, tries, "it is not tried in vain");
    kubeedge.emulator.heal(NODE).unwrap();
    agent.until("the task", |replica| replica.objects().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_node_object_is_not_ready_is_not_tried_until_it_is() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 3).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let set = async |status: &str| {
        let ready = json!({"type": "Ready", "status": status});
        let patch = Patch::Merge(json!({"status": {"conditions": [ready]}}));
        nodes.patch_status(NODE, &PatchParams::default(), &patch).await.unwrap();
    };
    set("Unknown").await;
    bed.models().await;
    bed.apply_sample().await;
    // Another node's message goes on its way after it, and is tried.
    bed.node("edge9", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.patch(json!({"edgeWorker": {"nodeName": "edge9"}})).await;
    bed.until_metric(&posted("NoSession"), 1).await;
    assert_eq!(bed.metric(&posted("Taken")).await, 0, "{}", bed.log());
    set("True").await;
    soon("its index", async {
        while bed.metric(&posted("Taken")).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(kubeedge.emulator.traffic(NODE).unwrap().down.taken, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_delays_no_other() {
    // In real time: each post to the node that is away takes two seconds.
    let (bed, kubeedge) = start(&["away", NODE], 1.0, 4).await;
    kubeedge.emulator.cut("away").unwrap();
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    let sample = bed.apply_sample().await;
    for n in 0..20 {
        let mut service = sample.clone();
        service.metadata = kube::core::ObjectMeta {
            name: Some(format!("away-{n}")),
            ..kube::core::ObjectMeta::default()
        };
        service.spec.edge_worker.node_name = "away".to_owned();
        bed.apply(service).await;
    }
    bed.patch(json!({"edgeWorker": {"hardExampleAlgorithm": {"name": "Random"}}})).await;
    agent
        .until("its task, changed", |replica| {
            replica.objects().values().any(|held| held.content.spec.to_string().contains("Random"))
        })
        .await;
    // Twenty tasks wait for a node that is away; they have cost one post at most by now.
    assert!(bed.metric(&posted("NoSession")).await <= 1);
    bed.until_metric(&posted("NoSession"), 1).await;
    bed.patch(json!({"edgeWorker": {"hardExampleAlgorithm": {"name": "CrossEntropy"}}})).await;
    agent
        .until("its task, changed again", |replica| {
            replica
                .objects()
                .values()
                .any(|held| held.content.spec.to_string().contains("CrossEntropy"))
        })
        .await;
    assert_eq!(bed.metric(&posted("NoSession")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_was_lost_in_silence_is_said_again_until_it_is_confirmed() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 5).await;
    bed.models().await;
    kubeedge.emulator.partition(NODE).unwrap();
    bed.apply_sample().await;
    soon("it is posted into silence", async {
        while kubeedge.emulator.traffic(NODE).unwrap().down.taken < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // A cut loses what is on the way; nobody told the controller.
    kubeedge.emulator.cut(NODE).unwrap();
    kubeedge.emulator.heal(NODE).unwrap();
    assert!(kubeedge.emulator.traffic(NODE).unwrap().down.lost >= 3);
    let agent = BusAgent::start(&kubeedge, NODE).await;
    agent.until("the task", |replica| replica.objects().len() == 2).await;
    soon("it is quiet", async {
        loop {
            let before = agent.heard().len();
            // Longer than the first pause of a repetition.
            tokio::time::sleep(Duration::from_secs(3)).await;
            if agent.heard().len() == before {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_revision_and_no_count_is_lost_in_a_thousand_cuts() {
    let (bed, kubeedge) = start(&[NODE], 0.01, 6).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    let (mut random, mut cuts, mut counted) = (Random(6), 0, 0);
    for round in 0..10 {
        let mut wished = String::new();
        for step in 0..100 {
            fault(&kubeedge, random.below(5)).await;
            cuts += 1;
            counted += random.below(9);
            agent.count(&uid, counted, counted / 3);
            if step % 10 == 0 {
                wished = format!("r{round}s{step}");
                let parameters = json!([{"key": "round", "value": wished}]);
                bed.patch(json!({"edgeWorker": {"workerSpec": {"parameters": parameters}}})).await;
            }
            tokio::time::sleep(Duration::from_millis(random.below(20))).await;
        }
        kubeedge.emulator.heal(NODE).unwrap();
        soon("the node is back", kubeedge.emulator.connected(NODE)).await.unwrap();
        agent
            .until(&wished, |replica| {
                let spec =
                    |held: &neptune_wire::replica::StoredObject| held.content.spec.to_string();
                replica.is_complete()
                    && replica.objects().values().any(|held| spec(held).contains(&wished))
            })
            .await;
        let hard = counted / 3;
        let status = bed.status("all is counted", |s| s.inference >= counted && s.hard >= hard);
        let status = status.await;
        assert_eq!((status.inference, status.hard), (counted, hard));
    }
    let traffic = kubeedge.emulator.traffic(NODE).unwrap();
    assert_eq!(cuts, 1000);
    assert!(traffic.down.lost > 0 && traffic.up.lost > 0, "nothing was at stake: {traffic:?}");
}

/// The next of all that can happen to a node.
async fn fault(kubeedge: &KubeEdge, which: u64) {
    let emulator = &kubeedge.emulator;
    match which {
        0 => emulator.cut(NODE).unwrap(),
        1 => emulator.partition(NODE).unwrap(),
        2 => emulator.restart_edgecore(NODE).await.unwrap(),
        3 => emulator.restart_cloudcore(),
        _ => {
            emulator.cut(NODE).unwrap();
            emulator.heal(NODE).unwrap();
        }
    }
    if which < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        emulator.heal(NODE).unwrap();
    }
}

/// Knuth's generator: what happens is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_are_made_repaired_and_removed_with_their_nodes() {
    let (bed, _kubeedge) = start(&[NODE], 0.05, 7).await;
    let api = rules(&bed, "Rule");
    let made = until_rules(&bed, &["neptune-downstream", "neptune-upstream-edge0"]).await;
    let uid = |rules: &[DynamicObject], name: &str| {
        rules.iter().find(|rule| rule.name_any() == name).unwrap().uid().unwrap()
    };

    // An edit has no effect in cloudcore: the Rule has to be another one.
    let elsewhere = json!({"spec": {"targetResource": {"resource": "http://elsewhere"}}});
    let params = PatchParams::default();
    api.patch("neptune-upstream-edge0", &params, &Patch::Merge(elsewhere)).await.unwrap();
    soon("another Rule", async {
        loop {
            let now = until_rules(&bed, &["neptune-downstream", "neptune-upstream-edge0"]).await;
            if uid(&now, "neptune-upstream-edge0") != uid(&made, "neptune-upstream-edge0") {
                let rule = now.iter().find(|r| r.name_any() == "neptune-upstream-edge0").unwrap();
                let url = rule.data["spec"]["targetResource"]["resource"].as_str().unwrap();
                assert!(url.ends_with("/upstream/edge0"), "{url}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    rules(&bed, "RuleEndpoint").delete("neptune-bus", &DeleteParams::default()).await.unwrap();
    api.delete("neptune-downstream", &DeleteParams::default()).await.unwrap();
    soon("made again", async {
        while rules(&bed, "RuleEndpoint").get_opt("neptune-bus").await.unwrap().is_none()
            || api.get_opt("neptune-downstream").await.unwrap().is_none()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    let theirs = json!({"apiVersion": "rules.kubeedge.io/v1", "kind": "Rule",
        "metadata": {"name": "theirs"}, "spec": {"source": "a", "sourceResource": {},
        "target": "b", "targetResource": {}}});
    let theirs: DynamicObject = serde_json::from_value(theirs).unwrap();
    api.create(&PostParams::default(), &theirs).await.unwrap();
    bed.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.node("worker1", json!({})).await;
    let both = ["neptune-downstream", "neptune-upstream-edge0", "neptune-upstream-edge1", "theirs"];
    until_rules(&bed, &both).await;
    let nodes: Api<Node> = Api::all(bed.client.clone());
    nodes.delete("edge1", &DeleteParams::default()).await.unwrap();
    until_rules(&bed, &["neptune-downstream", "neptune-upstream-edge0", "theirs"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_kubeedge_s_definitions_it_waits_and_says_so() {
    let mut bed = Bed::without_controller().await;
    let kubeedge = KubeEdge::without_crds(&bed, &[NODE], 0.05, 8).await;
    bed.over(kubeedge.flags());
    bed.start_controller();
    ready(&bed, "apply KubeEdge's CRDs").await;
    install_crds(&bed).await;
    in_place(&bed).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    bed.apply_sample().await;
    agent.until("the task", |replica| replica.objects().len() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_has_is_said_and_not_taken() {
    let mut bed = Bed::without_controller().await;
    let kubeedge = KubeEdge::start(&bed, &[NODE], 0.05, 9).await;
    let theirs = json!({"apiVersion": "rules.kubeedge.io/v1", "kind": "RuleEndpoint",
        "metadata": {"name": "neptune-rest"}, "spec": {"ruleEndpointType": "servicebus"}});
    let theirs: DynamicObject = serde_json::from_value(theirs).unwrap();
    let endpoints = rules(&bed, "RuleEndpoint");
    endpoints.create(&PostParams::default(), &theirs).await.unwrap();
    bed.over(kubeedge.flags());
    bed.start_controller();
    ready(&bed, "RuleEndpoint neptune-system/neptune-rest is somebody else's").await;
    endpoints.delete("neptune-rest", &DeleteParams::default()).await.unwrap();
    in_place(&bed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_batch_says_for_others_is_dropped_and_the_rest_counts() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 10).await;
    bed.node("edge1", json!({"node-role.kubernetes.io/edge": ""})).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    until_rules(&bed, &["neptune-downstream", "neptune-upstream-edge0", "neptune-upstream-edge1"])
        .await;
    // Of a service that the controller has not seen yet nobody could know.
    bed.status("the controller knows it", |s| s.observed.is_some()).await;
    let url = |node: &str| format!("{}/upstream/{node}", kubeedge.upstream_url());
    let report = |seq: u64, inference: u64| -> Value {
        json!({"schemaVersion": 1, "instance": "a", "epoch": 1, "seq": seq, "uid": uid,
            "revision": 1, "phase": "Running", "status": "running",
            "output": {"models": [], "taskInfo": {"inferenceNumber": inference,
                "hardExampleNumber": 0, "uploadCloudRatio": 0.0, "startTime": "", "currentTime": ""}}})
    };
    let forged = batch(
        1,
        &[
            // In the name of the node that has the task.
            (status_topic(NODE), report(9, 1_000_000)),
            ("neptune/edge0/upstream/node".to_owned(), json!({"instance": "z"})),
            ("neptune/edge1/downstream/index".to_owned(), json!({"revision": 1})),
            ("somewhere/else".to_owned(), json!(1)),
            ("neptune/edge1/upstream/sync".to_owned(), json!("no sync")),
            (status_topic("edge1"), report(1, 7)),
        ],
    );
    assert_eq!(post(url("edge1"), forged).await, 200);
    bed.until_metric(&rejected("OtherNode"), 2).await;
    bed.until_metric(&rejected("Topic"), 2).await;
    bed.until_metric(&rejected("Payload"), 1).await;
    bed.status("what it may say counts", |s| s.inference == 7).await;

    let good = |seq| batch(seq, &[]);
    for (node, body, status, reason) in [
        ("edge7", good(2).into_bytes(), 404, "UnknownNode"),
        ("Edge0", good(2).into_bytes(), 404, "UnknownNode"),
        (NODE, b"{".to_vec(), 400, "Batch"),
        (NODE, b"\xff\xfe".to_vec(), 400, "Batch"),
        (NODE, Vec::new(), 400, "Batch"),
    ] {
        let before = bed.metric(&rejected(reason)).await;
        assert_eq!(post(url(node), body).await, status, "{node} {reason}");
        assert_eq!(bed.metric(&rejected(reason)).await, before + 1, "{reason}");
    }
    assert_eq!(post(format!("{}/token", url(NODE)), good(3)).await, 403);
    assert_eq!(reqwest::get(url(NODE)).await.unwrap().status().as_u16(), 404);
    assert_eq!(bed.metric(&rejected("Token")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_say_as_much_at_once_as_the_router_takes_and_then_has_to_rest() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 14).await;
    let url = format!("{}/upstream/{NODE}", kubeedge.upstream_url());
    // A node with twice as many objects as anybody has containers.
    let listed = |n: usize| {
        let key = format!("default/jointinferenceservices/a-name-as-long-as-they-are-{n}");
        (key, json!({"revision": 1_763_752_615_123_u64 + n as u64, "hash": "f".repeat(64)}))
    };
    let objects: serde_json::Map<_, _> = (0..5000).map(listed).collect();
    let sync = json!({"instance": "a", "epoch": 1, "indexRevision": 1, "highest": 1, "complete": true,
        "objects": objects});
    let topic = format!("neptune/{NODE}/upstream/sync");
    let mut said = batch(1, &[(topic, sync)]);
    assert!(said.len() > 700_000, "{}", said.len());
    assert_eq!(post(url.clone(), said.clone()).await, 200);
    bed.until_metric("neptune_controller_upstream_messages_total{kind=\"Sync\"}", 1).await;

    let full = " ".repeat(LARGEST - said.len());
    said.push_str(&full);
    soon("it has rested", async {
        while try_post(url.clone(), said.clone()).await != Some(200) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    bed.until_metric("neptune_controller_upstream_messages_total{kind=\"Sync\"}", 2).await;
    let before = bed.metric(&rejected("TooFast")).await;
    soon("several at once are too much", async {
        while bed.metric(&rejected("TooFast")).await == before {
            let posts = (0..3).map(|_| try_post(url.clone(), said.clone()));
            futures::future::join_all(posts).await;
        }
    })
    .await;
    assert_eq!(announce(&kubeedge, LARGEST + 1).await, "HTTP/1.1 413");
    assert_eq!(bed.metric(&rejected("TooLarge")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_batch_turns_nothing_back() {
    let (bed, kubeedge) = start(&[NODE], 0.05, 11).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    let url = format!("{}/upstream/{NODE}", kubeedge.upstream_url());
    let node = |online: bool| {
        let report = json!({"instance": "a", "epoch": 1, "online": online});
        ("neptune/edge0/upstream/node".to_owned(), report)
    };
    let report = |seq: u64, inference: u64| -> (String, Value) {
        let report = json!({"instance": "a", "epoch": 1, "seq": seq, "uid": uid, "revision": 1,
            "phase": "Running", "status": "running", "output": {"models": [],
            "taskInfo": {"inferenceNumber": inference, "hardExampleNumber": 0,
                "uploadCloudRatio": 0.0, "startTime": "", "currentTime": ""}}});
        (status_topic(NODE), report)
    };
    let nodes = |state: &str| format!("neptune_controller_nodes{{state=\"{state}\"}}");
    let says = async |seq, messages: &[(String, Value)]| {
        assert_eq!(post(url.clone(), batch(seq, messages)).await, 200);
    };
    says(1, &[node(true)]).await;
    bed.until_metric(&nodes("Online"), 1).await;
    says(5, &[node(false), report(5, 50)]).await;
    bed.until_metric(&nodes("Offline"), 1).await;
    bed.status("it counts", |s| s.inference == 50).await;
    // From before the goodbye: neither a sign of life nor the end of the object.
    says(4, &[node(true), (status_topic(NODE), Value::Null)]).await;
    says(3, &[report(6, 60)]).await;
    bed.status("what is late counts all the same", |s| s.inference == 60).await;
    assert_eq!(bed.metric(&nodes("Offline")).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_and_can_be_changed_without_a_restart() {
    let mut bed = Bed::without_controller().await;
    let kubeedge = KubeEdge::start(&bed, &[NODE], 0.05, 12).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let (old, new) = ("0123456789abcdef", "fedcba9876543210");
    std::fs::write(&file, format!("{old}\n")).unwrap();
    let mut flags = kubeedge.flags();
    flags.push(format!("--upstream-token-file={}", file.display()));
    bed.over(flags);
    bed.start_controller();
    in_place(&bed).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    agent.until("the task", |replica| replica.objects().len() == 2).await;
    agent.count(&uid, 5, 1);
    bed.status("it counts", |s| s.inference == 5).await;
    let url = format!("{}/upstream/{NODE}", kubeedge.upstream_url());
    let empty = || batch(1, &[]);
    assert_eq!(post(url.clone(), empty()).await, 403);
    assert_eq!(post(format!("{url}/{new}"), empty()).await, 403);
    assert_eq!(bed.metric(&rejected("Token")).await, 2);
    let log = bed.log();
    assert!(!log.contains(old) && !log.contains(new), "{log}");

    std::fs::write(&file, new).unwrap();
    soon("the Rule has the new one", async {
        loop {
            let rule = rules(&bed, "Rule").get_opt("neptune-upstream-edge0").await.unwrap();
            let url = rule.map(|r| r.data["spec"]["targetResource"]["resource"].to_string());
            if url.is_some_and(|url| url.contains(new)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    agent.count(&uid, 6, 1);
    bed.status("it counts on", |s| s.inference == 6).await;
    assert_eq!(post(format!("{url}/{new}"), empty()).await, 200);
    assert_eq!(post(format!("{url}/{old}"), empty()).await, 200, "for a while");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_was_killed_goes_on_where_it_was() {
    let (mut bed, kubeedge) = start(&[NODE], 0.05, 13).await;
    let agent = BusAgent::start(&kubeedge, NODE).await;
    bed.models().await;
    let uid = bed.apply_sample().await.uid().unwrap();
    agent.until("the task", |replica| replica.objects().len() == 2).await;
    agent.count(&uid, 10, 2);
    bed.status("it counts", |s| s.inference == 10).await;
    bed.kill_controller();
    agent.count(&uid, 20, 4);
    let before = rules(&bed, "Rule").get("neptune-upstream-edge0").await.unwrap().uid();
    bed.over(kubeedge.flags());
    bed.start_controller();
    bed.status("what was counted meanwhile", |s| s.inference == 20 && s.hard == 4).await;
    let after = rules(&bed, "Rule").get("neptune-upstream-edge0").await.unwrap().uid();
    assert_eq!(before, after, "what is right is left alone");
    bed.api::<neptune_api::JointInferenceService>()
        .delete(SERVICE, &DeleteParams::background())
        .await
        .unwrap();
    agent.until("it is gone", |replica| replica.objects().is_empty()).await;
}

//! Nodes of one zone share models: the content crosses the uplink once, a killed owner is replaced,
//! and a damaged copy is not used.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use neptune_api::{Model, ModelStatus};
use neptune_e2e::{Fleet, SlowOrigin, Transport};
use neptune_harness::{environment::number, eventually, eventually_async};

over_each_transport!(site_downloads_a_model_once);

const NAME: &str = "shared";

/// The size of the model of the first test in MB, and the rate of its origin in MB/s.
/// `hack/test-peers.sh` sets a larger one.
fn size_and_rate() -> (u64, u64) {
    (number("NEPTUNE_PEERS_TEST_MB").unwrap_or(30) * 1_000_000, 1_000_000)
}

fn content(bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).unwrap()];
    fastrand::Rng::with_seed(7).fill(&mut content);
    content
}

fn sha256(content: &[u8]) -> String {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    let output = child.wait_with_output().unwrap().stdout;
    String::from_utf8(output).unwrap()[..64].to_owned()
}

/// A fleet of three nodes of a zone, each of which knows the two others.
async fn site(transport: Transport) -> Fleet {
    let fleet = Fleet::with_peers(transport, 2).await;
    eventually("each node to know its peers", || {
        let knows = |node: &&str| fleet.agent_log(node).contains("peers=2");
        fleet.edges().iter().all(knows)
    })
    .await;
    fleet
}

/// Creates the model, or changes its nodes.
fn place(fleet: &Fleet, origin: &SlowOrigin, sum: &str, nodes: &[&str]) {
    fleet.apply(&format!(
        "apiVersion: edgeai.io/v1alpha1\nkind: Model\nmetadata: {{name: {NAME}}}\nspec:\n  modelUrl: {}\n  sha256sum: {sum}\n  placement: {{nodeNames: [{}]}}\n",
        origin.url(),
        nodes.join(", "),
    ));
}

/// Waits until all these nodes have the model, and returns the status.
async fn until_placed(fleet: &Fleet, nodes: usize, within: Duration) -> ModelStatus {
    let start = Instant::now();
    let models: Api<Model> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    loop {
        let model = models.get(NAME).await.unwrap();
        let status = model.status.unwrap_or_default();
        if status.placed == Some(format!("{nodes}/{nodes}")) {
            return status;
        }
        assert!(start.elapsed() < within, "not placed within {within:?}: {status:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn sources(status: &ModelStatus) -> BTreeMap<&str, &str> {
    let nodes = status.nodes.iter();
    nodes.map(|it| (it.node.as_str(), it.source.as_deref().unwrap_or_default())).collect()
}

/// The stored file of the model on a node.
fn stored(fleet: &Fleet, node: &str, sum: &str) -> PathBuf {
    fleet.agent_dir(node).join("models/sha256").join(sum).join("plain/model")
}

async fn metric(fleet: &Fleet, node: &str, sample: &str) -> u64 {
    let url = format!("http://127.0.0.1:{}/metrics", fleet.metrics_port(node));
    let page = reqwest::get(url).await.unwrap().text().await.unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {sample} in {page}"))
}

async fn site_downloads_a_model_once(transport: Transport) {
    let (bytes, rate) = size_and_rate();
    let content = content(bytes);
    let sum = sha256(&content);
    let fleet = site(transport).await;
    let origin = SlowOrigin::start(content.clone(), rate).await;
    let one = Duration::from_secs(bytes / rate);

    let start = Instant::now();
    place(&fleet, &origin, &sum, &fleet.edges());
    let status = until_placed(&fleet, 3, one * 3).await;
    let took = start.elapsed();
    let transfer = origin.transfer_time().await;
    let (times, sent) = (took.div_duration_f64(transfer), share(origin.sent(), bytes));
    println!(
        "{transport:?}: {bytes} bytes on 3 nodes in {took:?}, one transfer in {transfer:?}: {times:.3} x one transfer, {sent:.3} x its bytes from the origin"
    );
    for node in fleet.edges() {
        assert!(fs::read(stored(&fleet, node, &sum)).unwrap() == content, "the copy of {node}");
    }
    assert!(sent <= 1.05, "{sent:.3} x the bytes from the origin");
    assert!(times <= 1.15, "{times:.3} x one transfer");

    let sources = sources(&status);
    let owners: Vec<_> = sources.iter().filter(|(_, source)| **source == "Origin").collect();
    assert_eq!(owners.len(), 1, "{sources:?}");
    let mut received = 0;
    for (node, source) in &sources {
        assert!(*source == "Origin" || source.starts_with("Peer:"), "{sources:?}");
        let from_origin = metric(&fleet, node, "neptune_edge_origin_bytes_total ").await;
        assert_eq!(from_origin, if *source == "Origin" { bytes } else { 0 }, "{node}");
        let sample = "neptune_edge_peer_bytes_total{direction=\"received\",source=\"model\"} ";
        received += metric(&fleet, node, sample).await;
    }
    assert!(received >= 2 * bytes, "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_owner_is_replaced_and_continues_when_it_is_back() {
    let (bytes, rate) = (24_000_000, 2_000_000);
    let content = content(bytes);
    let sum = sha256(&content);
    let mut fleet = site(Transport::Mqtt).await;
    let origin = SlowOrigin::start(content.clone(), rate).await;
    place(&fleet, &origin, &sum, &fleet.edges());
    eventually("half of the model", || origin.sent() >= bytes / 2).await;
    let is_owner = |node: &&str| fleet.agent_log(node).contains("downloaded from its URL");
    let owners: Vec<_> =
        fleet.edges().into_iter().filter(is_owner).map(ToOwned::to_owned).collect();
    let [owner] = &owners[..] else { panic!("{owners:?}") };
    fleet.kill_agent(owner);
    let others: Vec<_> = fleet.edges().into_iter().filter(|it| it != owner).collect();
    eventually("the others to have the model", || {
        others.iter().all(|node| stored(&fleet, node, &sum).exists())
    })
    .await;
    let sent = share(origin.sent(), bytes);
    println!("owner killed at one half: {sent:.3} x the bytes from the origin");
    assert!(sent <= 2.0, "{sent:.3} x the bytes from the origin");

    fleet.restart_agent(owner);
    until_placed(&fleet, 3, Duration::from_secs(60)).await;
    assert!(fs::read(stored(&fleet, owner, &sum)).unwrap() == content);
    let sent = share(origin.sent(), bytes);
    assert!(sent <= 2.0, "{sent:.3} x the bytes from the origin after it is back");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_copy_of_a_peer_is_not_used_and_is_replaced() {
    let bytes = 2_000_000;
    let content = content(bytes);
    let sum = sha256(&content);
    let fleet = site(Transport::Mqtt).await;
    let origin = SlowOrigin::start(content.clone(), 10_000_000).await;
    let nodes = fleet.edges();
    place(&fleet, &origin, &sum, &nodes[..1]);
    until_placed(&fleet, 1, Duration::from_secs(60)).await;
    let copy = stored(&fleet, nodes[0], &sum);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).unwrap();
    let file = fs::File::options().write(true).open(&copy).unwrap();
    file.write_all_at(&[!content[1_234_567]], 1_234_567).unwrap();
    drop(file);

    place(&fleet, &origin, &sum, &nodes[..2]);
    let status = until_placed(&fleet, 2, Duration::from_secs(60)).await;
    assert!(fs::read(stored(&fleet, nodes[1], &sum)).unwrap() == content);
    let entry = status.nodes.iter().find(|it| it.node == nodes[1]).unwrap();
    assert_eq!(entry.rejected_peers, [nodes[0]]);
    assert_eq!(entry.source.as_deref(), Some("Origin"));
    assert!(
        metric(&fleet, nodes[1], "neptune_edge_peer_rejected_total{reason=\"wrong_content\"} ")
            .await
            >= 1
    );

    let events: Api<Event> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let expected =
        format!("node {}: peer {} sent other bytes than those of sha256 {sum}", nodes[1], nodes[0]);
    eventually_async("the Event PeerServedWrongContent", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        events.iter().any(|event| {
            event.reason.as_deref() == Some("PeerServedWrongContent")
                && event.note.as_ref().is_some_and(|note| note.starts_with(&expected))
        })
    })
    .await;
    eventually("the damaged copy to be replaced", || {
        fs::read(&copy).is_ok_and(|held| held == content)
    })
    .await;
}

/// `part` of `whole` bytes, both below 2^53.
#[expect(clippy::cast_precision_loss, reason = "exact for such sizes")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

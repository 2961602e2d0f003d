//! Copies of a Dataset on built agents, over links that are cut, through kills of the agents.
//! `REPLICAS_REAL_SIZE=1` uses 1 GB and 20 cuts. `REPLICAS_IDLE_SECONDS` sets how long copies are idle.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs::{self, File},
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, MODEL, SERVICE, docker, eventually, free_port, local_model,
    runs, service, unique,
};
use neptune_wire::{DatasetReport, DatasetState, KeyPin, PeerRoster, ReplicaState, StatusReport};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

const DATASET: &str = "default/datasets/log";
const MIB: u64 = 1024 * 1024;

/// A node with its cloud.
struct Node {
    agent: Agent,
    cloud: Cloud,
    pin: KeyPin,
}

impl Node {
    async fn start(broker: &Broker, options: &[&str]) -> Self {
        let mut agent = Agent::new(&broker.url());
        agent.extra = options.iter().map(|option| (*option).to_owned()).collect();
        let mut cloud = Cloud::connect(&agent);
        if is_real_size() {
            cloud.timeout = Duration::from_secs(1800);
        }
        cloud.subscribed().await;
        agent.start();
        let report = cloud.node("its key", |report| report.key_pin.is_some()).await;
        Self { agent, cloud, pin: report.key_pin.unwrap() }
    }

    /// Sends the Dataset and the only peers of the node.
    fn send(&self, dataset: &Value, peers: &[Value]) {
        self.send_with(dataset, peers, &[]);
    }

    fn send_with(&self, dataset: &Value, peers: &[Value], more: &[(&str, Value)]) {
        let roster = PeerRoster::key(&self.agent.node).to_string();
        let (dataset, peers) = (json!({"spec": dataset}), json!({"peers": {"peers": peers}}));
        let mut all = vec![(DATASET, &dataset), (&roster, &peers)];
        all.extend(more.iter().map(|(key, content)| (*key, content)));
        let all = all.into_iter().map(|(key, content)| (key, self.cloud.insert(key, content)));
        let all: Vec<_> = all.collect();
        self.cloud.index(&all.iter().map(|(key, entry)| (*key, entry)).collect::<Vec<_>>());
    }

    fn as_peer(&self, addresses: &[SocketAddr]) -> Value {
        json!({"node": self.agent.node, "pin": self.pin, "addresses": addresses})
    }

    fn copy(&self) -> PathBuf {
        self.agent.data_dir().join("replicas/uid-of-log/data")
    }

    async fn until(&self, what: &str, matches: impl Fn(&DatasetReport) -> bool) -> DatasetReport {
        let matches = |report: &StatusReport| report.dataset.as_deref().is_some_and(&matches);
        *self.cloud.status(DATASET, what, matches).await.dataset.unwrap()
    }

    /// Waits until the node offers exactly these bytes. Returns their root.
    async fn offers(&self, bytes: u64) -> String {
        let offers =
            |report: &DatasetReport| report.generation.as_ref().is_some_and(|it| it.bytes == bytes);
        self.until("the generation", offers).await.generation.unwrap().root
    }

    /// Waits until the node has a counted copy with this root.
    async fn has_copy(&self, root: &str, samples: u64) -> DatasetReport {
        let has_copy = |report: &DatasetReport| {
            let copy = report.replica.as_ref().and_then(|copy| copy.generation.as_ref());
            let counted = report.tally.as_ref().map(|tally| tally.number_of_samples);
            copy.is_some_and(|copy| copy.root == root)
                && report.replica.as_ref().is_some_and(|it| it.state == ReplicaState::InSync)
                && report.state == DatasetState::Counted
                && counted == Some(samples)
        };
        self.until("the copy", has_copy).await
    }
}

fn is_real_size() -> bool {
    std::env::var_os("REPLICAS_REAL_SIZE").is_some()
}

/// A source whose agent allows copies of its directory, and two replicas, each behind a link.
struct Site {
    source: Node,
    listen: SocketAddr,
    data: tempfile::TempDir,
    replicas: Vec<Node>,
    links: Vec<Link>,
}

impl Site {
    async fn start(broker: &Broker) -> Self {
        let data = tempfile::tempdir().unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let address = listen.to_string();
        let directory = data.path().to_str().unwrap();
        let options =
            ["--allow-data-dir", directory, "--allow-replicate", "--peers-listen", &address];
        // No limit of the rate.
        let rate = ["--peer-rate", "1000000000"];
        let source = Node::start(broker, &[&options[..], &rate[..]].concat()).await;
        let mut site = Self { source, listen, data, replicas: Vec::new(), links: Vec::new() };
        for _ in 0..2 {
            site.replicas.push(Node::start(broker, &["--peers"]).await);
            site.links.push(Link::start(listen).await);
        }
        site
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("log.jsonl")
    }

    /// Sends the Dataset to all nodes, with the file or the directory as its data.
    fn send(&self, url: &str) {
        self.send_with(url, &[]);
    }

    /// The first replica gets more objects.
    fn send_with(&self, url: &str, more: &[(&str, Value)]) {
        let names: Vec<_> = self.replicas.iter().map(|node| node.agent.node.clone()).collect();
        let peers: Vec<_> = self.replicas.iter().map(|node| node.as_peer(&[])).collect();
        let dataset = json!({"dataUrl": url, "format": "jsonl", "replicas": names});
        self.source.send(&dataset, &peers);
        for (number, (node, link)) in self.replicas.iter().zip(&self.links).enumerate() {
            let source = json!({"node": self.source.agent.node, "deletions": "Follow"});
            let dataset = json!({"dataUrl": "", "format": "jsonl", "replicaOf": source});
            let more = if number == 0 { more } else { &[] };
            node.send_with(&dataset, &[self.source.as_peer(&[link.address])], more);
        }
    }
}

/// Writes lines with about so many bytes. Returns how many.
fn append(file: &mut File, bytes: usize) -> u64 {
    let (mut lines, mut count) = (Vec::with_capacity(bytes + 100), 0);
    while lines.len() < bytes {
        writeln!(lines, "{{\"number\": {count}, \"fill\": \"{}\"}}", "x".repeat(count % 60))
            .unwrap();
        count += 1;
    }
    file.write_all(&lines).unwrap();
    count as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_equal_after_cuts_and_kills_while_the_data_grows() {
    let (length, cuts) = if is_real_size() { (1_000_000_000, 20) } else { (12_000_000, 6) };
    let broker = Broker::start().await;
    let mut site = Site::start(&broker).await;
    let mut log = File::create(site.log()).unwrap();
    let mut samples = append(&mut log, length);
    let mut random = fastrand::Rng::with_seed(4);
    for link in &site.links {
        link.cut_after(random.u64(..length as u64 / 10));
    }
    site.send(site.log().to_str().unwrap());
    for cut in 1..=cuts {
        for (number, node) in site.replicas.iter_mut().enumerate() {
            site.links[number].was_cut(cut).await;
            // A part of a record, which no replica gets.
            log.write_all(b"{\"number\": ").unwrap();
            log.write_all(b"0}\n").unwrap();
            samples += 1 + append(&mut log, 300_000);
            if cut % 3 == 1 {
                node.agent.kill();
                node.agent.start();
            }
            let link = &site.links[number];
            if cut == cuts {
                link.restore();
            } else {
                link.cut_after(random.u64(..length as u64 / 25));
            }
        }
        if cut % 4 == 2 {
            site.source.agent.kill();
            site.source.agent.start();
        }
    }
    log.sync_all().unwrap();
    let bytes = fs::metadata(site.log()).unwrap().len();
    let root = site.source.offers(bytes).await;
    for (node, link) in site.replicas.iter().zip(&site.links) {
        node.has_copy(&root, samples).await;
        assert_same(&node.copy().join("log.jsonl"), &site.log());
        // TLS, headers, handshakes, lists and questions are less than 1 % and 1 MiB.
        let more = link.sent().saturating_sub(bytes + bytes / 100 + MIB);
        println!(
            "{bytes} bytes, {cuts} cuts: {} were sent, {more} more than 1.01 and 1 MiB; root {root}",
            link.sent()
        );
        assert!(more <= (cuts + 1) * MIB, "{more}");
    }
}

#[tokio::test]
async fn change_of_a_copy_is_replaced_and_a_removed_copy_deleted() {
    let broker = Broker::start().await;
    let site = Site::start(&broker).await;
    fs::write(site.log(), "{\"a\": 1}\n{\"a\": 2}\n{\"a\":").unwrap();
    site.send(site.data.path().to_str().unwrap());
    let root = site.source.offers(18).await;
    let [replica, other] = &site.replicas[..] else { unreachable!("two replicas") };
    replica.has_copy(&root, 2).await;
    other.has_copy(&root, 2).await;
    let copied = replica.copy().join("log.jsonl");
    assert_eq!(fs::read_to_string(&copied).unwrap(), "{\"a\": 1}\n{\"a\": 2}\n");

    fs::write(&copied, "{\"a\": \"changed\"}\n").unwrap();
    let replaced =
        |report: &DatasetReport| report.replica.as_ref().is_some_and(|copy| copy.overwritten == 1);
    replica.until("the change", replaced).await;
    replica.has_copy(&root, 2).await;
    assert_eq!(fs::read_to_string(&copied).unwrap(), "{\"a\": 1}\n{\"a\": 2}\n");

    replica.cloud.delete(DATASET);
    replica.cloud.index(&[]);
    eventually("the copy is removed", || !replica.copy().exists()).await;
    assert!(other.copy().join("log.jsonl").exists() && site.log().exists());
}

#[tokio::test]
async fn idle_copies_stay_in_sync() {
    // Enough for some questions with the longest pause between them.
    let seconds = std::env::var("REPLICAS_IDLE_SECONDS").map_or(30, |it| it.parse().unwrap());
    let broker = Broker::start().await;
    let site = Site::start(&broker).await;
    fs::write(site.log(), "{\"a\": 1}\n").unwrap();
    site.send(site.data.path().to_str().unwrap());
    let root = site.source.offers(9).await;
    for node in &site.replicas {
        node.has_copy(&root, 1).await;
    }
    let idle = site.replicas.iter().map(|node| {
        node.cloud.no_status(DATASET, Duration::from_secs(seconds), |report| {
            let copy = report.dataset.as_ref().and_then(|it| it.replica.as_ref());
            copy.is_none_or(|copy| copy.state != ReplicaState::InSync)
        })
    });
    futures::future::join_all(idle).await;
}

/// Follows the file from its beginning, as a program that waits for samples.
const FOLLOW: &str =
    "busybox tail -n +1 -f $DATASET_URL/log.jsonl > /dev/shm/followed & trap 'exit 0' TERM; wait";

/// Reads the file once, and prints 1 if what was read ends with a line break.
const COPY: &str = "cat $DATASET_URL/log.jsonl > /dev/shm/copy; \
    busybox tail -c 1 /dev/shm/copy | busybox wc -l";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_reads_whole_records_of_a_copy_that_is_updated() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let site = Site::start(&broker).await;
    let mut log = File::create(site.log()).unwrap();
    let mut samples = append(&mut log, 100_000);
    let (node, link) = (&site.replicas[0], &site.links[0]);
    let mut content = service(&unique("w"), &image.0, FOLLOW);
    content["workers"][0]["dataset"] = "log".into();
    let objects = [(MODEL, local_model(&node.agent)), (SERVICE, content)];
    site.send_with(site.data.path().to_str().unwrap(), &objects);
    node.cloud.status(SERVICE, "running", runs).await;
    let containers = node.agent.containers();
    let [id] = &containers[..] else { unreachable!("one worker: {containers:?}") };
    let shell = |script: &str| docker(&["exec", id, "/bin/sh", "-c", script]);
    let read = || shell("cat $DATASET_URL/log.jsonl") + "\n";
    assert_eq!(shell("echo $DATASET_URL; echo $DATASET_FORMAT"), "/datasets/log\njsonl");
    assert_eq!(read().lines().count() as u64, samples);
    let refused = shell("echo x 2>&1 >> $DATASET_URL/log.jsonl || echo refused");
    assert!(refused.contains("refused"), "{refused}");

    for cut in 1..=3 {
        link.cut_after(MIB + MIB / 4);
        samples += append(&mut log, 4_000_000);
        log.write_all(b"{\"number\": ").unwrap();
        link.was_cut(cut).await;
        // Between two blocks the copy ends with a whole record. The agent may still write the last
        // block that arrived before the cut.
        let whole = || shell(COPY) == "1";
        eventually("the copy to end with a whole record", whole).await;
        for line in shell("cat /dev/shm/copy").lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            assert!(record["number"].is_u64(), "{line}");
        }
        log.write_all(b"0}\n").unwrap();
        samples += 1;
    }
    let root = site.source.offers(fs::metadata(site.log()).unwrap().len()).await;
    node.has_copy(&root, samples).await;
    let expected = fs::read_to_string(site.log()).unwrap();
    assert!(read() == expected, "the container has the copy");
    // The reader that has the file open since the start got each record once.
    let followed = || shell("cat /dev/shm/followed") + "\n" == expected;
    eventually("the reader to have all records", followed).await;

    fs::write(site.log(), "{\"number\": 7}\n").unwrap();
    let root = site.source.offers(14).await;
    node.has_copy(&root, 1).await;
    assert_eq!(read(), "{\"number\": 7}\n", "a replaced file is in the directory of the container");
    assert_eq!(node.agent.containers(), containers, "the worker was not restarted");
}

#[tokio::test]
async fn source_without_consent_offers_nothing() {
    let broker = Broker::start().await;
    let mut site = Site::start(&broker).await;
    fs::write(site.log(), "{}\n").unwrap();
    site.source.agent.terminate().await;
    let directory = site.data.path().to_str().unwrap().to_owned();
    let listen = site.listen.to_string();
    site.source.agent.extra =
        ["--allow-data-dir", &directory, "--peers", "--peers-listen", &listen]
            .map(str::to_owned)
            .into();
    site.source.agent.start();
    site.send(&directory);
    let counted = |report: &DatasetReport| report.state == DatasetState::Counted;
    assert_eq!(site.source.until("the count", counted).await.generation, None);
    let offline = |report: &DatasetReport| {
        let copy = report.replica.as_ref();
        copy.is_some_and(|copy| {
            copy.state == ReplicaState::Offline && copy.message.contains("does not offer")
        })
    };
    let report = site.replicas[0].until("why it has no copy", offline).await;
    assert_eq!(report.replica.unwrap().generation, None);
}

#[track_caller]
fn assert_same(left: &Path, right: &Path) {
    // Not `assert_eq!`, which would print them.
    assert!(
        fs::read(left).unwrap() == fs::read(right).unwrap(),
        "{} {}",
        left.display(),
        right.display()
    );
}

/// Forwards connections to the source, and counts what it sends.
struct Link {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    /// A connection is cut at this number of bytes.
    cut_at: Arc<AtomicU64>,
    cuts: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, cut_at) = (Arc::<AtomicU64>::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let (counter, cuts) = watch::channel(0);
        let (counter, count, limit) = (Arc::new(counter), Arc::clone(&sent), Arc::clone(&cut_at));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (counter, count, limit) =
                    (Arc::clone(&counter), Arc::clone(&count), Arc::clone(&limit));
                tokio::spawn(async move {
                    let server = TcpStream::connect(to).await.ok()?;
                    if forward(client, server, &count, &limit).await {
                        counter.send_modify(|cuts| *cuts += 1);
                    }
                    Some(())
                });
            }
        });
        Self { address, sent, cut_at, cuts, task }
    }

    /// Bytes that arrived, with those of TLS.
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Cuts one connection after so many more bytes.
    fn cut_after(&self, bytes: u64) {
        self.cut_at.store(self.sent() + bytes, Ordering::Relaxed);
    }

    fn restore(&self) {
        self.cut_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Waits until so many connections were cut.
    async fn was_cut(&self, times: u64) {
        let mut cuts = self.cuts.clone();
        let wait = tokio::time::timeout(
            Duration::from_secs(if is_real_size() { 1800 } else { 120 }),
            cuts.wait_for(|cuts| *cuts >= times),
        );
        assert!(wait.await.is_ok(), "cut {times}: {} bytes were sent", self.sent());
    }
}

/// Forwards until an end closes. Returns whether the connection was cut instead.
async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    sent: &AtomicU64,
    cut_at: &AtomicU64,
) -> bool {
    // Otherwise each small file waits for a delayed acknowledgement.
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut piece = vec![0; 16 * 1024];
        loop {
            let read = from_server.read(&mut piece).await.unwrap_or(0);
            let total = sent.load(Ordering::Relaxed) + read as u64;
            if read > 0 && total > cut_at.load(Ordering::Relaxed) {
                // Only this connection: the next one passes until the test sets the next cut.
                cut_at.store(u64::MAX, Ordering::Relaxed);
                return true;
            }
            if read == 0 || to_client.write_all(&piece[..read]).await.is_err() {
                return false;
            }
            sent.fetch_add(read as u64, Ordering::Relaxed);
        }
    };
    tokio::select! {
        _ = up => false,
        is_cut = down => is_cut,
    }
}

//! A data directory that is full, deleted or read-only, with real file systems. Needs root.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    time::{Duration, Instant},
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, SERVICE, SmallDisk, WorkerClient, docker, eventually,
    run_service, runs,
};
use neptune_agent_core::domain::worker_count::{WorkerCount, WorkerRun};
use neptune_edge::storage::Store;
use neptune_wire::{
    Counters, NodeProblemReason, NodeReport, RunReport, RunTotals, StatusReport, WorkerName,
};

/// A time after which a check of the store is due.
const LATER: Duration = Duration::from_secs(60);

type Entry = ((String, WorkerName), WorkerCount);

fn count(inference: u64) -> Entry {
    let mut tally = RunTotals::default();
    let counters = Counters { inference, hard: 0, ..Counters::default() };
    tally.observe(&RunReport { run: Some("c@s"), start: "t", counters, is_inherited: false });
    let count = WorkerCount {
        object: SERVICE.parse().unwrap(),
        tally,
        run: WorkerRun::default(),
        status: "running".into(),
        first_start: String::new(),
        models: Vec::new(),
        departed: 0,
        cloud_unreachable: false,
    };
    (("uid".to_owned(), "w".parse().unwrap()), count)
}

fn save(store: &mut Store, (key, count): &Entry) -> bool {
    store.save_counts(&[(key, Some(count))]).is_ok()
}

fn stored(store: &Store) -> u64 {
    store.counts().unwrap().values().map(|count| count.tally.total().inference).sum()
}

fn reason(store: &Store) -> Option<NodeProblemReason> {
    store.problem().map(|problem| problem.reason)
}

#[test]
fn reserve_lets_the_database_go_on_while_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    let mut store = Store::open(dir.path()).unwrap();
    store.start_epoch("a").unwrap();
    assert_eq!(reason(&store), None);
    disk.fill(false);
    // Several times what fits into the reserve.
    for inference in 1..=5000 {
        assert!(save(&mut store, &count(inference)), "{inference}: {:?}", store.problem());
    }
    store.sync().unwrap();
    assert_eq!((reason(&store), store.is_failing()), (Some(NodeProblemReason::DiskFull), false));
    drop(store);
    // The space that the database returned is gone, too.
    disk.fill(false);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!((stored(&store), reason(&store)), (5000, Some(NodeProblemReason::DiskFull)));
    disk.free();
    store.check(Instant::now());
    assert_eq!((reason(&store), dir.path().join("reserve").exists()), (None, true));
}

#[test]
fn full_disk_without_reserve_is_read_and_written_when_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    let mut store = Store::open(dir.path()).unwrap();
    store.start_epoch("a").unwrap();
    assert!(save(&mut store, &count(7)));
    drop(store);
    disk.fill(true);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!(stored(&store), 7);
    let identity = store.start_epoch("b").unwrap();
    assert_eq!((identity.instance.0.as_str(), identity.epoch), ("a", 2));
    assert!(!save(&mut store, &count(8)));
    assert_eq!((reason(&store), store.is_failing()), (Some(NodeProblemReason::DiskFull), true));
    disk.free();
    store.check(Instant::now() + LATER);
    assert_eq!((reason(&store), store.is_failing()), (None, false));
    assert!(save(&mut store, &count(8)));
    drop(store);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!((stored(&store), store.start_epoch("b").unwrap().epoch), (8, 3));
}

#[test]
fn database_cannot_be_created_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    disk.fill(true);
    let error = Store::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("is full") && error.contains("free at least 8 MiB"), "{error}");
}

fn has_problem(reason: NodeProblemReason) -> impl Fn(&NodeReport) -> bool {
    move |node| node.online && node.problems.iter().any(|problem| problem.reason == reason)
}

fn is_well(node: &NodeReport) -> bool {
    node.online && node.problems.is_empty()
}

fn counted(report: &StatusReport) -> u64 {
    report.output.task_info.as_ref().map_or(0, |task| task.counters.inference)
}

#[expect(clippy::unnecessary_wraps, reason = "an agent may have no disk of its own")]
fn small(agent: &Agent) -> Option<SmallDisk> {
    Some(SmallDisk::mount(&agent.data_dir()))
}

/// An agent with a service that runs and has counted 10.
struct Fixture {
    agent: Agent,
    cloud: Cloud,
    worker: String,
    disk: Option<SmallDisk>,
    _broker: Broker,
    _image: BusyboxImage,
}

impl Fixture {
    async fn start(disk: impl FnOnce(&Agent) -> Option<SmallDisk>) -> Self {
        let (broker, image) = (Broker::start().await, BusyboxImage::import());
        let mut agent = Agent::new(&broker.url());
        let disk = disk(&agent);
        agent.start();
        let cloud = Cloud::connect(&agent);
        let worker = run_service(&cloud, &agent, &image).await;
        WorkerClient::connect(&agent, &worker).publish("run", 10, 0).await;
        cloud.status(SERVICE, "10 counted", |report| counted(report) == 10).await;
        Self { agent, cloud, worker, disk, _broker: broker, _image: image }
    }

    async fn publish(&self, inference: u64) {
        WorkerClient::connect(&self.agent, &self.worker).publish("run", inference, 0).await;
    }

    fn errors(&self) -> Vec<String> {
        let log = self.agent.log();
        log.lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn full_disk_at_boot_still_starts_workers() {
    let mut fixture = Fixture::start(small).await;
    for with_reserve in [false, true] {
        let epoch = fixture.cloud.node("online", |node| node.online).await.epoch;
        fixture.agent.terminate().await;
        for container in fixture.agent.containers() {
            docker(&["rm", "--force", &container]);
        }
        fixture.disk.as_ref().unwrap().fill(with_reserve);
        fixture.agent.start();
        let full = has_problem(NodeProblemReason::DiskFull);
        let node = fixture.cloud.node("disk full", |it| it.epoch > epoch && full(it)).await;
        assert!(node.problems[0].message.contains("free at least 8 MiB"), "{node:?}");
        let report = fixture.cloud.status(SERVICE, "running again", |report| {
            report.epoch > epoch && runs(report) && report.workers[0].message.contains("DiskFull")
        });
        assert_eq!(counted(&report.await), 10);
        fixture.disk.as_ref().unwrap().free();
        fixture.cloud.node("well again", |it| it.epoch > epoch && is_well(it)).await;
    }
    fixture.publish(25).await;
    fixture.cloud.status(SERVICE, "counted by another run", |report| counted(report) == 35).await;
}

#[tokio::test]
async fn disk_that_fills_later_stops_no_report_and_is_logged_once() {
    let fixture = Fixture::start(small).await;
    fixture.disk.as_ref().unwrap().fill(true);
    for inference in 11..=60 {
        fixture.publish(inference).await;
    }
    fixture.cloud.node("disk full", has_problem(NodeProblemReason::DiskFull)).await;
    docker(&["kill", &fixture.agent.containers()[0]]);
    let report = fixture
        .cloud
        .status(SERVICE, "restarted", |report| report.workers[0].restarts == 1 && runs(report))
        .await;
    // What was stored before the disk was full.
    assert!((10..60).contains(&counted(&report)), "{report:?}");
    let errors = fixture.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("is full") && errors[0].contains("free at least 8 MiB"));
    fixture.disk.as_ref().unwrap().free();
    fixture.cloud.node("well again", is_well).await;
    fixture.cloud.status(SERVICE, "all counted", |report| counted(report) == 60).await;
}

#[tokio::test]
async fn deleted_data_directory_is_reported_and_no_run_counts_twice() {
    let mut fixture = Fixture::start(|_| None).await;
    let first = fixture.cloud.node("online", |node| node.online).await.instance;
    fs::remove_dir_all(fixture.agent.data_dir()).unwrap();
    let lost = has_problem(NodeProblemReason::DataDirectoryLost);
    let node = fixture.cloud.node("directory lost", lost).await;
    assert!(node.problems[0].message.contains("restart the agent"), "{node:?}");
    let containers = fixture.agent.containers();
    fixture.publish(30).await;
    fixture.cloud.status(SERVICE, "counted further", |report| counted(report) == 30).await;
    let errors = fixture.errors();
    assert!(errors.len() == 1 && errors[0].contains("was deleted or replaced"), "{errors:?}");

    fixture.agent.terminate().await;
    fixture.agent.start();
    fixture.cloud.node("a new instance", |node| is_well(node) && node.instance != first).await;
    eventually("the worker to be adopted", || fixture.agent.containers() == containers).await;
    let of_new = |report: &StatusReport| report.instance != first && runs(report);
    fixture.cloud.status(SERVICE, "running", of_new).await;
    // The first message is the base line of the new instance: 30 are counted by the first one.
    fixture.publish(30).await;
    fixture.publish(42).await;
    let further = |report: &StatusReport| of_new(report) && counted(report) == 12;
    fixture.cloud.status(SERVICE, "only what is new", further).await;
    assert_eq!(fixture.agent.containers(), containers);
}

#[tokio::test]
async fn read_only_data_directory_is_reported_and_workers_go_on() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let disk = |agent: &Agent| Some(SmallDisk::mount_file(&agent.data_dir(), file.path()));
    let fixture = Fixture::start(disk).await;
    fixture.disk.as_ref().unwrap().abort();
    fixture.publish(30).await;
    let read_only = has_problem(NodeProblemReason::DataDirectoryReadOnly);
    let node = fixture.cloud.node("read-only", read_only).await;
    assert!(node.problems[0].message.contains("mount it writable"), "{node:?}");
    docker(&["kill", &fixture.agent.containers()[0]]);
    let restarted = |report: &StatusReport| {
        let worker = &report.workers[0];
        worker.restarts == 1 && runs(report) && worker.message.contains("DataDirectoryReadOnly")
    };
    let report = fixture.cloud.status(SERVICE, "restarted", restarted).await;
    assert_eq!(counted(&report), 10, "what is stored");
    assert_eq!(fixture.errors().len(), 1, "{:?}", fixture.errors());
}

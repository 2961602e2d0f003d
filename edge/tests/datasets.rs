//! Datasets on the built agent, with real files, real Docker and a real broker.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fmt::Write as _, fs, io::Write as _, path::PathBuf, process::Command};

use harness::{Agent, Broker, BusyboxImage, Cloud, FileServer, IDLE, docker, service, unique};
use jiff::Timestamp;
use neptune_wire::{DatasetReason, DatasetReport, DatasetState, StatusReport, WorkerReason};
use serde_json::{Value, json};

const DATASET: &str = "default/datasets/d";
const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";

/// An agent that allows one directory, which exists.
fn agent(broker: &Broker) -> Agent {
    let mut agent = Agent::new(&broker.url());
    fs::create_dir(data(&agent, "")).unwrap();
    agent.extra = vec!["--allow-data-dir".to_owned(), data(&agent, "").display().to_string()];
    agent.start();
    agent
}

fn data(agent: &Agent, name: &str) -> PathBuf {
    agent.dir.path().join("allowed").join(name)
}

fn lines(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, n| {
        writeln!(text, "{n},a line").unwrap();
        text
    })
}

fn dataset(url: &str, format: &str) -> Value {
    json!({"spec": {"dataUrl": url, "format": format, "nodeName": "any", "header": false}})
}

fn dataset_report(report: &StatusReport) -> &DatasetReport {
    report.dataset.as_deref().unwrap()
}

fn counted(samples: u64) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let status = dataset_report(report);
        status.state == DatasetState::Counted
            && status.tally.as_ref().is_some_and(|tally| tally.number_of_samples == samples)
    }
}

fn fails(reason: DatasetReason) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        dataset_report(report).state == DatasetState::Failed
            && dataset_report(report).reason == Some(reason)
    }
}

#[tokio::test]
async fn restart_rereads_no_counted_data_and_delete_forgets_it() {
    let broker = Broker::start().await;
    let mut agent = agent(&broker);
    let cloud = Cloud::connect(&agent);
    let path = data(&agent, "a.csv");
    fs::write(&path, lines(100_000)).unwrap();
    let listed = cloud.insert(DATASET, &dataset(path.to_str().unwrap(), "csv"));
    cloud.index(&[(DATASET, &listed)]);
    let first = cloud.status(DATASET, "counted", counted(100_000)).await;
    assert_eq!(dataset_report(&first).content, listed.hash);
    let (before, size) = (dataset_report(&first).bytes_read, fs::metadata(&path).unwrap().len());
    assert!(before >= size);

    // After a clean exit, and after a kill.
    for (samples, kill) in [(100_001, false), (100_002, true)] {
        if kill {
            agent.kill();
        } else {
            agent.terminate().await;
        }
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"1,2\n").unwrap();
        agent.start();
        let later = cloud.status(DATASET, "the appended line", counted(samples)).await;
        let read = dataset_report(&later).bytes_read - before;
        assert!((1..20_000).contains(&read), "{read} of {size} bytes were read");
    }

    cloud.delete(DATASET);
    cloud.index(&[]);
    let topic = neptune_wire::Topic::Status(agent.node.clone(), DATASET.parse().unwrap());
    cloud
        .message(&topic, "the status to be cleared", |payload| payload.is_empty().then_some(()))
        .await;

    // Recreated under the same UID, it is counted from the start.
    let listed = cloud.insert(DATASET, &dataset(path.to_str().unwrap(), "csv"));
    cloud.index(&[(DATASET, &listed)]);
    let again = cloud.status(DATASET, "counted again", counted(100_002)).await;
    assert!((size..size + 20_000).contains(&dataset_report(&again).bytes_read), "{again:?}");
}

/// A count may be finished before its watch was checked the first time.
#[tokio::test]
async fn every_count_has_the_time_of_its_data() {
    let broker = Broker::start().await;
    let agent = agent(&broker);
    let cloud = Cloud::connect(&agent);
    let keys: Vec<_> = (0..50).map(|n| format!("default/datasets/d{n}")).collect();
    let listed: Vec<_> = keys
        .iter()
        .map(|key| {
            let path = data(&agent, &key.replace('/', "-"));
            fs::write(&path, lines(1)).unwrap();
            (key.as_str(), cloud.insert(key, &dataset(path.to_str().unwrap(), "csv")))
        })
        .collect();
    let index: Vec<_> = listed.iter().map(|(key, listed)| (*key, listed)).collect();
    cloud.index(&index);
    for key in &keys {
        let report = cloud.status(key, "counted", counted(1)).await;
        let seen = &dataset_report(&report).tally.as_ref().unwrap().changed_at;
        assert!(seen.parse::<Timestamp>().is_ok(), "{key} was seen at {seen:?}");
    }
}

#[tokio::test]
async fn uncountable_data_is_reported_with_a_remedy() {
    let broker = Broker::start().await;
    let agent = agent(&broker);
    let cloud = Cloud::connect(&agent);
    fs::write(data(&agent, "a.json"), "[1, 2").unwrap();
    fs::write(agent.dir.path().join("outside.csv"), "1\n").unwrap();
    let at = |name: &str| data(&agent, name).display().to_string();
    let outside = agent.dir.path().join("outside.csv").display().to_string();
    for (url, format, reason, help) in [
        (at("none.csv"), "csv", DatasetReason::PathMissing, "create it"),
        (outside, "csv", DatasetReason::OutsideAllowedDirectories, "--allow-data-dir"),
        (at("a.json"), "images", DatasetReason::WrongKindOfPath, "needs a directory"),
        (at("a.json"), "parquet", DatasetReason::UnknownFormat, "csv, txt, xml, json"),
        (at("../a.json"), "json", DatasetReason::DataUrlInvalid, "spec.dataUrl"),
        ("ftp://h/a".to_owned(), "json", DatasetReason::DataUrlInvalid, "s3://bucket/key"),
        (
            "http://169.254.169.254/a".to_owned(),
            "json",
            DatasetReason::DatasetUnavailable,
            "a metadata service",
        ),
    ] {
        let listed = cloud.insert(DATASET, &dataset(&url, format));
        cloud.index(&[(DATASET, &listed)]);
        let of_this = |report: &StatusReport| {
            dataset_report(report).content == listed.hash && fails(reason)(report)
        };
        let report = cloud.status(DATASET, &format!("{reason:?}"), of_this).await;
        let message = &dataset_report(&report).message;
        assert!(message.contains(help), "{message}");
    }
}

#[tokio::test]
async fn data_on_a_server_is_downloaded_and_counted() {
    let broker = Broker::start().await;
    let files = FileServer::serve(lines(50).as_bytes()).await;
    let agent = agent(&broker);
    let cloud = Cloud::connect(&agent);
    let listed = cloud.insert(DATASET, &dataset(&files.url, "csv"));
    cloud.index(&[(DATASET, &listed)]);
    let report = cloud.status(DATASET, "counted", counted(50)).await;
    assert_eq!(dataset_report(&report).tally.as_ref().unwrap().bytes, lines(50).len() as u64);
    assert!(dataset_report(&report).message.is_empty(), "{}", dataset_report(&report).message);
}

#[tokio::test]
async fn worker_gets_dataset_read_only_and_restarts_on_new_url() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = agent(&broker);
    let cloud = Cloud::connect(&agent);
    let worker = unique("w");
    let model = agent.dir.path().join("small.bin");
    fs::write(&model, "a model").unwrap();
    let model = cloud.insert(MODEL, &json!({"spec": {"modelUrl": model}}));
    let mut content = service(&worker, &image.0, IDLE);
    content["workers"][0]["dataset"] = "d".into();
    let task = cloud.insert(SERVICE, &content);
    cloud.index(&[(MODEL, &model), (SERVICE, &task)]);
    let waits = |reason| {
        move |report: &StatusReport| {
            report.workers.first().is_some_and(|worker| worker.reason == Some(reason))
        }
    };
    cloud.status(SERVICE, "waiting", waits(WorkerReason::DatasetNotReceived)).await;

    let (a, b) = (data(&agent, "a.csv"), data(&agent, "b.csv"));
    let listed = cloud.insert(DATASET, &dataset(a.to_str().unwrap(), "csv"));
    cloud.index(&[(MODEL, &model), (SERVICE, &task), (DATASET, &listed)]);
    cloud.status(SERVICE, "missing", waits(WorkerReason::DatasetUnavailable)).await;
    fs::write(&a, "the data").unwrap();
    fs::write(&b, "other data").unwrap();
    let runs = |report: &StatusReport| {
        report.workers.iter().all(|worker| worker.state == neptune_wire::WorkerState::Running)
    };
    cloud.status(SERVICE, "running", runs).await;
    let id = agent.containers()[0].clone();
    let shell = |id: &str, script: &str| docker(&["exec", id, "/bin/sh", "-c", script]);
    assert_eq!(shell(&id, "cat $DATASET_URL; echo; echo $DATASET_FORMAT"), "the data\ncsv");
    let written = shell(&id, "echo x 2>&1 >> $DATASET_URL || echo refused");
    assert!(written.contains("refused"), "{written}");
    assert_eq!(fs::read_to_string(&a).unwrap(), "the data");

    // The running worker keeps a file that was deleted.
    fs::remove_file(&a).unwrap();
    cloud.status(DATASET, "missing", fails(DatasetReason::PathMissing)).await;
    assert_eq!(agent.containers(), std::slice::from_ref(&id));

    let listed = cloud.insert(DATASET, &dataset(b.to_str().unwrap(), "csv"));
    cloud.index(&[(MODEL, &model), (SERVICE, &task), (DATASET, &listed)]);
    // The new container exists before it can execute a command.
    let reads_other = || {
        let containers = agent.containers();
        let read = |id: &String| {
            let args = ["exec", id, "/bin/sh", "-c", "cat $DATASET_URL"];
            Command::new("docker").args(args).output().unwrap().stdout
        };
        containers.len() == 1 && containers[0] != id && read(&containers[0]) == b"other data"
    };
    harness::eventually("another container to read the other data", reads_other).await;
}

//! Datasets: counted on their node, shown by kubectl, and mounted into the worker that names them.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use neptune_api::{DatasetStatus, JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{Fleet, KillTarget, Transport, is_running};
use neptune_harness::workspace::{root, run};
use serde_json::Value;

use crate::digits;

over_each_transport!(
    sample_dataset_applies_unchanged_and_reports_what_is_missing,
    appended_csv_lines_are_counted_in_seconds_without_rereading,
    missing_data_is_reported_and_counted_once_it_exists,
    service_waits_for_its_dataset_and_mounts_it_read_only,
);

/// Lines of a file. With a header, one of them is not a sample.
const LINES: usize = 1797;

fn reason(status: &DatasetStatus) -> &str {
    status.conditions.first().map_or("", |ready| &ready.reason)
}

fn has(samples: i64) -> impl Fn(&DatasetStatus) -> bool {
    move |status| reason(status) == "Counted" && status.number_of_samples == Some(samples)
}

fn csv(fleet: &Fleet, name: &str, file: &Path, more: &str) -> String {
    format!(
        "apiVersion: edgeai.io/v1alpha1\nkind: Dataset\nmetadata: {{name: {name}}}\n\
         spec: {{dataUrl: {}, format: csv, nodeName: {}{more}}}\n",
        file.display(),
        fleet.edge
    )
}

fn lines(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, n| {
        writeln!(text, "{n},\"a quoted, field\",{}", n % 10).unwrap();
        text
    })
}

fn append(path: &Path, text: &str) {
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

async fn sample_dataset_applies_unchanged_and_reports_what_is_missing(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let sample = fs::read_to_string(root().join("common/api/tests/samples/dataset.yaml"));
    let sample = sample.unwrap();
    fleet.apply(&sample);
    let status = fleet
        .until_dataset("dataset-examp", "a condition", |status| !reason(status).is_empty())
        .await;
    assert_eq!(reason(&status), "NodeNotFound", "{status:#?}");

    // On an existing node that allows other directories.
    fleet.apply(&sample.replace("edge0", &fleet.edge));
    let outside = |status: &DatasetStatus| reason(status) == "OutsideAllowedDirectories";
    let status = fleet.until_dataset("dataset-examp", "outside", outside).await;
    let message = &status.conditions[0].message;
    let allowed = fleet.data_dir().display().to_string();
    assert!(message.contains("/code/data") && message.contains(&allowed), "{message}");

    let unknown = sample.replace("edge0", &fleet.edge).replace("\"txt\"", "\"parquet\"");
    fleet.apply(&unknown);
    let is_unknown = |status: &DatasetStatus| reason(status) == "UnknownFormat";
    let status = fleet.until_dataset("dataset-examp", "unknown", is_unknown).await;
    assert!(status.conditions[0].message.contains("csv, txt, xml, json, jsonl, images, tfrecord"));
}

async fn appended_csv_lines_are_counted_in_seconds_without_rereading(transport: Transport) {
    let mut fleet = Fleet::start(transport).await;
    let file = fleet.data_dir().join("a.csv");
    fs::write(&file, lines(LINES)).unwrap();
    fleet.apply(&csv(&fleet, "headed", &file, ""));
    fleet.apply(&csv(&fleet, "bare", &file, ", header: false, labelColumn: \"2\""));
    let headed = fleet.until_dataset("headed", "1796 samples", has(1796)).await;
    let bare = fleet.until_dataset("bare", "1797 samples", has(1797)).await;
    assert_eq!((headed.columns.len(), bare.labels["3"]), (3, 180), "{bare:#?}");
    assert_eq!(headed.bytes, Some(i64::try_from(lines(LINES).len()).unwrap()));
    assert!(headed.update_time.is_some());
    let table = fleet.kubectl(&["get", "datasets"]);
    let row: Vec<_> =
        table.lines().find(|line| line.starts_with("headed")).unwrap().split_whitespace().collect();
    assert_eq!((row[1], row[2]), ("1796", fleet.edge.as_str()), "{table}");

    // EventBus transports one batch per second, and the status is written once per second.
    let within = match transport {
        Transport::Mqtt | Transport::Rumqttd => Duration::from_secs(2),
        Transport::EventBus | Transport::KubeEdge(_) => Duration::from_secs(4),
    };
    let appended = Instant::now();
    append(&file, &lines(10));
    let more = fleet.until_dataset("headed", "1806 samples", has(1806)).await;
    assert!(appended.elapsed() < within, "{:?}", appended.elapsed());
    let read = more.bytes_read.unwrap() - headed.bytes_read.unwrap();
    assert!((1..4096).contains(&read), "{read} of {:?} bytes were read", more.bytes);

    // A restarted agent does not read it again, either.
    fleet.kill(KillTarget::Agent).await;
    append(&file, &lines(10));
    let later = fleet.until_dataset("headed", "1816 samples", has(1816)).await;
    let read = later.bytes_read.unwrap() - headed.bytes_read.unwrap();
    assert!((1..8192).contains(&read), "{read} of {:?} bytes were read", later.bytes);

    fleet.kubectl(&["delete", "dataset", "headed", "bare"]);
    fleet.nothing_retained("headed").await;
}

async fn missing_data_is_reported_and_counted_once_it_exists(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let file = fleet.data_dir().join("later/b.csv");
    fleet.apply(&csv(&fleet, "later", &file, ""));
    let missing = |status: &DatasetStatus| reason(status) == "PathMissing";
    let status = fleet.until_dataset("later", "missing", missing).await;
    assert_eq!(status.number_of_samples, None);
    let path = file.display().to_string();
    assert!(status.conditions[0].message.contains(&path), "{}", status.conditions[0].message);
    let events = fleet.kubectl(&["get", "events", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).unwrap();
    let has_event =
        events["items"].as_array().unwrap().iter().any(|event| event["reason"] == "PathMissing");
    assert!(has_event, "{events:#}");

    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, lines(5)).unwrap();
    fleet.until_dataset("later", "counted", has(4)).await;
    fs::remove_file(&file).unwrap();
    let gone = fleet.until_dataset("later", "missing again", missing).await;
    assert_eq!(gone.number_of_samples, Some(4), "the last count stays in the status");
}

async fn service_waits_for_its_dataset_and_mounts_it_read_only(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let models = digits::models().await;
    fleet.apply(&digits::models_manifest(&fleet, &models));
    let service = digits::service_manifest(&fleet, 20, 0);
    let name = "    hardExampleAlgorithm:";
    fleet.apply(&service.replace(name, &format!("    dataset: {{name: digits-test}}\n{name}")));
    let pending = |reason: &'static str| {
        move |status: &JointInferenceServiceStatus| {
            status.conditions.last().is_some_and(|last| {
                last.type_ == JisConditionType::Pending && last.reason.as_deref() == Some(reason)
            })
        }
    };
    fleet.until(digits::NAME, "waiting for the dataset", pending("DatasetNotFound")).await;

    let file = fleet.data_dir().join("test.csv");
    fs::copy(root().join("examples/digits/data/test.csv"), &file).unwrap();
    let path = file.display().to_string();
    let manifest =
        fleet.manifest("examples/datasets/digits.yaml", &[("/code/data/digits/test.csv", &path)]);
    fleet.apply(&manifest.replace(&fleet.edge, &fleet.cloud));
    fleet.until(digits::NAME, "waiting for its node", pending("DatasetElsewhere")).await;
    fleet.apply(&manifest);
    fleet.until(digits::NAME, "running", is_running).await;
    let counted = fleet.until_dataset("digits-test", "counted", has(600)).await;
    assert_eq!(counted.labels.len(), 10);

    let id = fleet.container(&fleet.edge);
    let shown: Value =
        serde_json::from_str(&run(Command::new("docker").args(["inspect", &id]))).unwrap();
    let mounts = shown[0]["Mounts"].as_array().unwrap();
    let mount =
        mounts.iter().find(|mount| mount["Destination"] == "/datasets/digits-test/test.csv");
    let mount = mount.unwrap_or_else(|| panic!("{mounts:#?}"));
    assert_eq!((&mount["RW"], &mount["Source"]), (&false.into(), &path.into()));
    let env = shown[0]["Config"]["Env"].to_string();
    for variable in [
        "DATASET_URL=/datasets/digits-test/test.csv",
        "DATASET_FORMAT=csv",
        "DATA_PATH_PREFIX=/datasets/digits-test",
    ] {
        assert!(env.contains(variable), "{variable} is not in {env}");
    }

    fleet.kubectl(&["delete", "dataset", "digits-test"]);
    fleet.until(digits::NAME, "the deleted dataset", pending("DatasetNotFound")).await;
    assert_eq!(fleet.container(&fleet.edge), id, "the running worker is not replaced");
}

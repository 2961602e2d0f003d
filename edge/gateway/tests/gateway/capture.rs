//! Captured samples: which ones become records, and that a kill, a full disk and a slow writer cost
//! no request.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::stream::{self, StreamExt as _};
use neptune_datasets::{LocalDataset, PathPolicy, ReadMeter};
use neptune_harness::{Process, environment::seed, free_port, wait::eventually};
use neptune_sources::FormatOptions;
use serde_json::{Value, json};

use crate::{
    harness::{Server, Setup, merge, raw},
    oip::{INFER, cloud_model, edge_model, rows, servers},
    process::PROGRAM,
};

/// The segments of a directory, in order.
fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    paths
}

/// The records of a directory. Each has to be complete.
fn records(directory: &Path) -> Vec<Value> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let text: String = segments(directory).into_iter().map(read).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn size(directory: &Path) -> u64 {
    // A running gateway may remove one meanwhile.
    let lengths = segments(directory).into_iter().filter_map(|path| fs::metadata(path).ok());
    lengths.map(|metadata| metadata.len()).sum()
}

async fn capturing(changes: Value) -> (Server, Server, Setup, tempfile::TempDir) {
    let (edge, cloud, mut config) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    merge(&mut config, json!({"capture": {"directory": folder.path()}}));
    merge(&mut config, changes);
    let setup = Setup::start(edge.address, None, config).await;
    (edge, cloud, setup, folder)
}

/// The first class's probability of each record's row, its decision and its label.
fn described(records: &[Value]) -> Vec<(f64, &str, Option<u64>)> {
    let sample = |record: &'_ Value| {
        let input = &record["request"]["inputs"][0];
        assert_eq!(input["shape"], json!([1, 2]), "{record}");
        let row = input["data"].as_array().unwrap();
        let first = row[0].as_array().map_or(&row[0], |row| &row[0]).as_f64().unwrap();
        let decision = record["decision"].as_str().unwrap().to_owned();
        (first, decision, record["label"].as_u64())
    };
    let known = |name: String| {
        let names = ["hard", "easy", "fallback", "pinned", "edge-down", "over-budget"];
        names.into_iter().find(|known| *known == name).unwrap()
    };
    let described = records.iter().map(sample);
    described.map(|(first, decision, label)| (first, known(decision), label)).collect()
}

#[tokio::test]
async fn hard_rows_become_records_with_both_answers() {
    let (_edge, cloud, mut setup, folder) = capturing(json!({})).await;
    setup.post(INFER, rows(&[0.9, 0.6, 0.95, 0.7])).await;
    let pin = [("x-neptune-route", "edge")];
    setup.post_with(INFER, &pin, rows(&[0.6])).await;
    cloud.close();
    setup.stop().await;
    let records = records(folder.path());
    assert_eq!(described(&records), [(0.6, "hard", Some(1)), (0.7, "hard", Some(1))]);
    let [record, _] = &records[..] else { unreachable!() };
    assert_eq!(record["edge"]["outputs"][0]["data"], json!([0.6, 0.4]));
    assert_eq!(record["cloud"]["outputs"][0]["data"], json!([0.0, 1.0]));
    assert_eq!(record["cloud"]["outputs"][0]["shape"], json!([1, 2]));
    assert_eq!((&record["edgeModel"], &record["cloudModel"]), (&json!("small:1"), &json!("big")));
    assert!((record["confidence"].as_f64().unwrap() - 0.6).abs() < 1e-9);
    let ids: BTreeSet<_> = records.iter().map(|record| record["id"].to_string()).collect();
    assert_eq!(ids.len(), 2);
}

#[tokio::test]
async fn all_samples_are_recorded_once_and_shadows_with_the_cloud() {
    let changes = json!({
        "capture": {"what": "All", "pinned": true},
        "hardExample": {"shadowRatio": 1, "maxUploadRatio": 1},
    });
    let (_edge, _cloud, mut setup, folder) = capturing(changes).await;
    setup.post(INFER, rows(&[0.9, 0.6, 0.95])).await;
    let pin = [("x-neptune-route", "edge")];
    setup.post_with(INFER, &pin, rows(&[0.7])).await;
    setup.until("the shadows", |status| status["samples"]["shadow"] == 2).await;
    setup.until("the records", |status| status["capture"]["captured"] == 4).await;
    setup.stop().await;
    let records = records(folder.path());
    let mut samples = described(&records);
    samples.sort_by(|one, other| one.0.total_cmp(&other.0));
    let shadow = Some(1);
    let expected = [
        (0.6, "hard", Some(1)),
        (0.7, "pinned", None),
        (0.9, "easy", shadow),
        (0.95, "easy", shadow),
    ];
    assert_eq!(samples, expected);
}

#[tokio::test]
async fn sample_without_the_cloud_is_recorded_only_as_one_of_all() {
    for (what, expected) in [("Uploaded", 0), ("All", 1)] {
        let (_edge, cloud, mut setup, folder) = capturing(json!({"capture": {"what": what}})).await;
        cloud.become_script(|_| crate::harness::status(503, "later"));
        assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "fallback"));
        setup.stop().await;
        let records = records(folder.path());
        assert_eq!(records.len(), expected);
        for record in records {
            assert_eq!((&record["cloud"], record.get("label")), (&Value::Null, None));
        }
    }
}

#[tokio::test]
async fn cloud_in_the_edges_place_is_recorded_as_uploaded() {
    for (what, expected) in [("Hard", 0), ("Uploaded", 2)] {
        let (edge, _cloud, mut setup, folder) = capturing(json!({"capture": {"what": what}})).await;
        edge.become_script(|_| crate::harness::status(503, "later"));
        assert_eq!(setup.post(INFER, rows(&[0.6, 0.7])).await.decision(), ("cloud", "edge-down"));
        setup.stop().await;
        let records = records(folder.path());
        assert_eq!(records.len(), expected);
        for record in records {
            assert_eq!((&record["edge"], &record["label"]), (&Value::Null, &json!(1)));
        }
    }
}

#[tokio::test]
async fn unwritable_directory_is_a_problem_and_no_failed_request() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("absent/hard");
    let changes = json!({"capture": {"directory": directory}});
    let (_edge, _cloud, mut setup, _) = capturing(changes).await;
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
    setup.until("the count", |status| status["capture"]["dropped"] == 1).await;
    setup
        .until("the problem", |status| {
            let problem = &status["problems"][0];
            let text = problem["message"].as_str().unwrap_or_default();
            problem["reason"] == "CaptureFailing" && text.contains("No such file or directory")
        })
        .await;
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    setup.until("the problem is solved", |status| status["problems"] == json!([])).await;
    setup.post(INFER, rows(&[0.6])).await;
    setup.until("a record", |status| status["capture"]["captured"] == 1).await;
    let page = setup.page("/metrics").await;
    for line in [
        "neptune_gateway_capture_samples_total{result=\"captured\"} 1",
        "neptune_gateway_capture_samples_total{result=\"failed\"} 1",
    ] {
        assert!(page.text().contains(line), "{}", page.text());
    }
    setup.stop().await;
    assert_eq!(records(&directory).len(), 1);
}

#[tokio::test]
async fn other_directory_is_used_without_a_restart() {
    let (_edge, _cloud, mut setup, folder) = capturing(json!({})).await;
    setup.post(INFER, rows(&[0.6])).await;
    let other = tempfile::tempdir().unwrap();
    setup.reconfigure(json!({"capture": {"directory": other.path(), "share": 1}}));
    eventually("the other directory is locked", || {
        other.path().join(".neptune-capture.lock").exists()
    })
    .await;
    setup.post(INFER, rows(&[0.7])).await;
    setup.revert(&["capture"]);
    setup.reconfigure(json!({}));
    setup.until("nothing is captured", |status| status["capture"].is_null()).await;
    setup.post(INFER, rows(&[0.75])).await;
    setup.stop().await;
    assert_eq!(described(&records(folder.path())), [(0.6, "hard", Some(1))]);
    assert_eq!(described(&records(other.path())), [(0.7, "hard", Some(1))]);
}

#[tokio::test]
async fn completion_is_recorded_with_the_text_as_its_label() {
    use crate::completions::{CHAT, question, servers, setup};
    let (edge, cloud) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let mut setup = setup(&edge, &cloud, json!({"capture": {"directory": folder.path()}})).await;
    for p in [0.95, 0.3] {
        setup.post(CHAT, question(p)).await;
    }
    setup.stop().await;
    let records = records(folder.path());
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&record["label"], &record["decision"]), (&json!("Paris!"), &json!("hard")));
    assert_eq!(record["request"], question(0.3));
    assert_eq!((&record["edge"]["id"], &record["cloud"]["id"]), (&json!("edge"), &json!("cloud")));
}

#[tokio::test]
async fn streamed_answer_is_not_recorded() {
    use crate::{
        completions::{CHAT, question},
        streams::{ask, start},
    };
    let folder = tempfile::tempdir().unwrap();
    let capture = json!({"directory": folder.path(), "what": "All"});
    let (mut setup, _edge, _cloud) = start(json!({"capture": capture})).await;
    for p in [0.9, 0.2] {
        setup.post(CHAT, ask(p, json!({}))).await;
    }
    setup.post(CHAT, question(0.9)).await;
    setup.stop().await;
    let records = records(folder.path());
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!(record["request"], question(0.9));
}

#[tokio::test]
async fn image_of_a_request_is_a_file_beside_its_record() {
    use crate::completions::{CHAT, question, servers, setup};
    let (edge, cloud) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let mut setup = setup(&edge, &cloud, json!({"capture": {"directory": folder.path()}})).await;
    let image = b"\x89PNG\r\n\x1a\nof a test";
    let mut request = question(0.3);
    // Beside the message that the model servers of these tests read.
    let url = format!("data:image/png;base64,{}", STANDARD.encode(image));
    request["attachment"] = json!([{"type": "image_url", "image_url": {"url": url}}]);
    for _ in 0..2 {
        setup.post(CHAT, request.clone()).await;
    }
    let is_captured = |status: &Value| status["capture"]["captured"] == 2;
    setup.until("the records", is_captured).await;
    setup.stop().await;
    let records = records(folder.path());
    let path = records[0]["request"]["attachment"][0]["image_url"]["url"].as_str().unwrap();
    let kind = path.strip_prefix("images/").and_then(|name| name.split_once('.')).unwrap();
    assert_eq!((kind.0.len(), kind.1), (64, "png"), "{path}");
    assert_eq!(fs::read(folder.path().join(path)).unwrap(), image);
    assert_eq!(fs::read_dir(folder.path().join("images")).unwrap().count(), 1);
    assert_eq!(records[1]["request"], records[0]["request"]);
    // The model servers got the image itself.
    let is_sent =
        |sent: &crate::harness::Received| sent.json()["attachment"] == request["attachment"];
    assert_eq!(cloud.received().iter().filter(|sent| is_sent(sent)).count(), 2);
}

/// The sorted times of 2,000 requests at 1,000 per second, of which each is hard.
async fn paced(setup: &Setup) -> Vec<Duration> {
    let period = tokio::time::interval(Duration::from_millis(1));
    let ticks = stream::unfold(period, |mut period| async {
        period.tick().await;
        Some(((), period))
    });
    #[expect(clippy::disallowed_methods, reason = "measures the requests")]
    let requests = ticks.take(2_000).map(|()| async {
        let begin = Instant::now();
        assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
        begin.elapsed()
    });
    let mut times: Vec<Duration> = requests.buffer_unordered(200).collect().await;
    times.sort_unstable();
    times
}

/// Prints the times: on a machine with other work they do not decide about the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_requests_per_second_are_answered_while_all_are_captured() {
    let patience = "60s";
    let changes = json!({
        "hardExample": {"maxUploadRatio": 1},
        "timeouts": {
            "edge": patience, "cloudConnect": patience, "cloudFirstByte": patience,
            "cloudTotal": patience,
        },
    });
    let (_edge, _cloud, mut setup, folder) = capturing(changes).await;
    let capturing = paced(&setup).await;
    setup.revert(&["capture"]);
    setup.reconfigure(json!({}));
    setup.until("nothing is captured", |status| status["capture"].is_null()).await;
    let plain = paced(&setup).await;
    let at = |times: &[Duration], percent: usize| times[times.len() * percent / 100];
    for (name, times) in [("with", &capturing), ("without", &plain)] {
        println!("{name} capture: p50 {:?}, p99 {:?}", at(times, 50), at(times, 99));
    }
    let ratio = at(&capturing, 99).as_secs_f64() / at(&plain, 99).as_secs_f64();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("ratio of p99: {ratio:.3}; load of the machine: {}", load.trim());
    let page = setup.page("/metrics").await;
    setup.stop().await;
    let count = |result: &str| -> usize {
        let name = format!("neptune_gateway_capture_samples_total{{result=\"{result}\"}} ");
        let value = page.text().lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().unwrap())
    };
    assert_eq!(count("captured") + count("dropped"), 2_000);
    assert_eq!(records(folder.path()).len(), count("captured"));
}

fn config(port: u16, edge: &Server, cloud: &Server, directory: &Path) -> Value {
    json!({
        "service": "digits", "protocol": "oip", "listen": format!("127.0.0.1:{port}"),
        "edge": {"address": edge.address.to_string()},
        "cloud": {"url": format!("http://{}", cloud.address), "modelName": "big"},
        "hardExample": {"algorithm": "MaxProbability", "threshold": 0.99, "maxUploadRatio": 1},
        "capture": {"directory": directory, "maxBytes": 1 << 20},
    })
}

/// Kills the process at 20 random times under load. What earlier processes wrote stays readable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateway_leaves_complete_records_within_the_bound() {
    let (edge, cloud) = (Server::start(edge_model).await, Server::start(cloud_model).await);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("hard");
    let mut kept = BTreeSet::new();
    let mut random = fastrand::Rng::with_seed(seed(fastrand::u64(..1_000_000)));
    for round in 0..20 {
        let port = free_port();
        let path = folder.path().join("gateway.json");
        fs::write(&path, config(port, &edge, &cloud, &directory).to_string()).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--config"]).arg(&path);
        let mut process = Process::start(&format!("gateway-{round}"), folder.path(), &mut command);
        let address = ([127, 0, 0, 1], port).into();
        eventually("the gateway listens", || std::net::TcpStream::connect(address).is_ok()).await;
        let before = size(&directory);
        let load: Vec<_> = (0..8).map(|_| tokio::spawn(requests(address))).collect();
        // A busy machine may write nothing in the time of a round, and then nothing would be tested.
        if round % 2 == 0 {
            eventually("a record of this round", || size(&directory) != before).await;
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..200))).await;
        process.kill();
        for client in load {
            client.await.unwrap();
        }
        assert!(size(&directory) <= 1 << 20);
        // The last line may be cut, and no other one.
        let mut complete = BTreeSet::new();
        for segment in segments(&directory) {
            let text = fs::read_to_string(segment).unwrap();
            let end = text.rfind('\n').map_or(0, |at| at + 1);
            for line in text[..end].lines() {
                let record: Value = serde_json::from_str(line).unwrap();
                let (start, number) = record["id"].as_str().unwrap().split_once('-').unwrap();
                complete.insert((start.parse::<i64>().unwrap(), number.parse::<u64>().unwrap()));
            }
        }
        // Only the oldest ones went.
        let first = complete.first().copied();
        let lost = kept.difference(&complete).filter(|id| first.is_none_or(|first| **id > first));
        assert_eq!(lost.count(), 0, "round {round}");
        kept = complete;
    }
    assert!(kept.len() > 20, "{} records", kept.len());
    // Its Dataset counts the complete records, and not a part of one.
    let dataset = LocalDataset {
        path: directory.clone(),
        format: "jsonl".parse().unwrap(),
        options: FormatOptions::default(),
    };
    let policy = PathPolicy { allowed_roots: vec![directory.clone()] };
    let counted = dataset.count(None, &policy, &ReadMeter::default()).unwrap();
    assert_eq!(counted.counts().samples, kept.len() as u64);
}

/// Sends requests of 20 rows until the gateway is gone.
async fn requests(address: std::net::SocketAddr) {
    let body = rows(&[0.6; 20]);
    let request = format!(
        "POST {INFER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    while let Ok(stream) = tokio::net::TcpStream::connect(address).await {
        drop(stream);
        let answered = tokio::spawn({
            let request = request.clone();
            async move { raw(address, request.as_bytes()).await }
        });
        if answered.await.is_err() {
            return;
        }
    }
}

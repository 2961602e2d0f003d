//! `neptune-edge doctor`, with and without real Docker and a real broker.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _, process::Output};

use harness::{Agent, Broker, Cloud, eventually, free_port};
use serde_json::{Value, json};

fn levels(output: &Output) -> Vec<(String, String)> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    checks.map(|check| (text(&check["check"]), text(&check["level"]))).collect()
}

fn bad(output: &Output) -> Vec<String> {
    let levels = levels(output).into_iter().filter(|(_, level)| level == "error");
    levels.map(|(check, _)| check).collect()
}

#[tokio::test]
async fn healthy_node_passes_before_start_and_while_running() {
    let broker = Broker::start().await;
    let mut agent = Agent::new(&broker.url());
    let cloud = Cloud::connect(&agent);
    cloud.subscribed().await;
    let output = agent.doctor(&["--json", "--resolve", "localhost"]);
    assert_eq!((bad(&output), output.status.code()), (vec![], Some(0)), "{output:?}");
    assert!(!agent.data_dir().exists(), "the doctor creates nothing");

    agent.start();
    cloud.node("online", |report| report.online).await;
    let cloud_worker = json!({"workers": [{
        "name": "w", "role": "edge", "image": "none.invalid/none:1", "model": "small",
        "env": {"BIG_MODEL_URL": "http://unknown.invalid:5000"},
    }]});
    let service = cloud.insert("default/jointinferenceservices/s", &cloud_worker);
    cloud.index(&[("default/jointinferenceservices/s", &service)]);
    eventually("the object to be stored", || agent.log().contains("object received")).await;
    let files = || {
        let names = fs::read_dir(agent.data_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let before = files();

    let output = agent.doctor(&[]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("1 object stored; in use by an agent"), "{printed}");
    assert!(
        printed.contains(&format!("mqtt://127.0.0.1:{} answers", agent.local_port)),
        "{printed}"
    );
    let line = "ERROR    cloud workers   unknown.invalid (default/jointinferenceservices/s): ";
    assert!(printed.contains(line), "{printed}");
    assert!(printed.ends_with("1 error, 0 warnings\n") || printed.contains("clock"), "{printed}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(files(), before, "the doctor leaves no files");
    assert!(!agent.log().contains("link down"), "the agent keeps its connections");
}

#[tokio::test]
async fn every_missing_part_is_named_within_the_time_limit() {
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://{}", silent.local_addr().unwrap());
    let mut agent = Agent::new(&url);
    let taken = TcpListener::bind(("127.0.0.1", agent.local_port)).unwrap();
    let dir = agent.data_dir();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("neptune.db"), "not a database, but as long as the header of one").unwrap();
    agent.extra = ["--docker-host", "unix:///nowhere/docker.sock"].map(str::to_owned).to_vec();
    let output = agent.doctor(&[
        "--json",
        "--resolve",
        "unknown.invalid",
        "--model-reserve-bytes",
        "999999999999999",
    ]);
    let expected =
        ["data directory", "disk", "engine", "local broker", "cloud link", "cloud workers"];
    assert_eq!(bad(&output), expected, "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("waiting for: cloud link"), "{printed}");
    drop((silent, taken));
}

#[tokio::test]
async fn readable_or_malformed_registry_credentials_are_a_warning() {
    let broker = Broker::start().await;
    let agent = Agent::new(&broker.url());
    let file = agent.dir.path().join("registries.json");
    let path = file.to_str().unwrap();
    let level = |content: &str, mode: u32| {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let output = agent.doctor(&["--json", "--registry-config", path]);
        assert!(!String::from_utf8_lossy(&output.stdout).contains("s3cret"), "{output:?}");
        let registries = levels(&output).into_iter().find(|(check, _)| check == "registries");
        registries.map(|(_, level)| level)
    };
    let valid = r#"{"auths": {"registry.example.org": {"username": "u", "password": "s3cret"}}}"#;
    assert_eq!(level(valid, 0o600).as_deref(), Some("ok"));
    assert_eq!(level(valid, 0o644).as_deref(), Some("warning"));
    assert_eq!(level(r#"{"auths": "s3cret"}"#, 0o600).as_deref(), Some("warning"));
}

/// The cloud of a Service at its host entry, another gateway at its address, and an endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn cloud_of_each_gateway_is_called_at_the_address_that_it_uses() {
    let broker = Broker::start().await;
    let mut agent = Agent::new(&broker.url());
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.subscribed().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, closed) = (listener.local_addr().unwrap().port(), free_port());
    let server = tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    let host = "big.ns1.svc.cluster.local";
    let gateway = |name: &str, url: String, hosts: Value| {
        let config = json!({"cloud": {"url": url}});
        json!({"name": name, "role": "edge", "image": "none.invalid/none:1", "hosts": hosts,
            "gateway": {"server": "small", "config": config}})
    };
    let workers = json!({"workers": [
        gateway("service", format!("http://{host}:{port}/v1"), json!({host: "127.0.0.1"})),
        gateway("chain", format!("http://127.0.0.1:{closed}"), json!({})),
        gateway("endpoint", format!("https://localhost:{port}/v1"), json!({})),
    ]});
    let service = cloud.insert("default/jointinferenceservices/s", &workers);
    cloud.index(&[("default/jointinferenceservices/s", &service)]);
    eventually("the object to be stored", || agent.log().contains("object received")).await;
    let output = tokio::task::block_in_place(|| agent.doctor(&["--json", "--resolve", host]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter();
    let findings: Vec<_> = checks.filter(|check| check["check"] == "cloud workers").collect();
    let has = |level: &str, texts: &[&str]| {
        let is_it = |check: &&&Value| {
            let seen = check["seen"].as_str().unwrap();
            check["level"] == level && texts.iter().all(|text| seen.contains(text))
        };
        assert_eq!(findings.iter().filter(is_it).count(), 1, "{texts:?} in {findings:#?}");
    };
    has("ok", &[host, "default/jointinferenceservices/s", &format!("127.0.0.1:{port} answers")]);
    has("ok", &[host, "--resolve", "127.0.0.1"]);
    has("error", &[&format!("127.0.0.1:{closed}: connection refused")]);
    has("error", &["localhost", "TLS"]);
    assert_eq!(findings.len(), 4, "{findings:#?}");
    server.abort();
}

#[tokio::test]
async fn secret_that_a_service_needs_is_named_until_it_is_readable() {
    let broker = Broker::start().await;
    let mut agent = Agent::new(&broker.url());
    let secrets = agent.dir.path().join("secrets");
    agent.extra = vec!["--secret-dir".to_owned(), secrets.display().to_string()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.subscribed().await;
    let gateway = json!({"workers": [{
        "name": "w", "role": "edge", "image": "none.invalid/none:1",
        "gateway": {"server": "small", "tokenFile": "llm", "config": {}},
    }]});
    let service = cloud.insert("default/jointinferenceservices/s", &gateway);
    cloud.index(&[("default/jointinferenceservices/s", &service)]);
    eventually("the object to be stored", || agent.log().contains("object received")).await;
    let finding = || {
        let output = agent.doctor(&["--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        let checks = checks.into_iter().filter(|check| check["check"] == "secrets");
        let findings: Vec<_> = checks
            .map(|check| (check["level"].clone(), check["seen"].as_str().unwrap().to_owned()))
            .collect();
        let [(level, seen)] = &findings[..] else { panic!("{output:?}") };
        (level.as_str().unwrap().to_owned(), seen.clone())
    };
    let (level, seen) = finding();
    assert_eq!(level, "error");
    assert!(seen.contains("does not exist; default/jointinferenceservices/s needs"), "{seen}");
    fs::create_dir(&secrets).unwrap();
    fs::set_permissions(&secrets, fs::Permissions::from_mode(0o700)).unwrap();
    let (level, seen) = finding();
    assert_eq!(level, "error");
    assert!(seen.contains("secrets/llm not found on the node; create it"), "{seen}");
    let file = secrets.join("llm");
    fs::write(&file, "s3cret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (level, seen) = finding();
    assert_eq!(level, "warning");
    assert!(seen.contains("every user of the node has access"), "{seen}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let (level, seen) = finding();
    assert_eq!(level, "ok");
    assert!(seen.ends_with(": 1 file, with all that services need"), "{seen}");
    assert!(!seen.contains("s3cret"));
}

#[test]
fn invalid_settings_are_a_finding() {
    let mut agent = Agent::new("mqtts://broker.invalid");
    agent.local_port = free_port();
    let output = agent.doctor(&[]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.starts_with("ERROR    settings        --mqtt-ca-file: missing"), "{printed}");
    assert_eq!(output.status.code(), Some(1));
}

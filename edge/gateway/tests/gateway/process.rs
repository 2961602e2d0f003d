//! The program itself: its exit codes, its reports over MQTT, and its ends.

use std::{path::Path, process::Command};

use neptune_gateway::{
    clock,
    config::{Config, Protocol},
    decision::{CloudState, Decisions},
    metrics::{Metrics, Side},
};
use neptune_harness::{Broker, MqttClient, Process, free_port, wait::eventually};
use serde_json::{Value, json};

use crate::{
    harness::{Server, raw},
    oip::{INFER, cloud_model, edge_model, rows},
};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_neptune-gateway");
const TOPIC: &str = "neptune/workers/digits-edge/info";

fn start(name: &str, folder: &Path, broker: &Broker) -> Process {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--config"]).arg(folder.join("gateway.json"));
    command.env("MQTT_URL", broker.url()).env("WORKER_INFO_TOPIC", TOPIC);
    command.env("WORKER_NAME", "digits-edge").env("SERVICE_NAME", "digits");
    Process::start(name, folder, &mut command)
}

async fn request(port: u16) {
    eventually("the gateway listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        .await;
    let body = rows(&[0.9, 0.95]);
    let request = format!(
        "POST {INFER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw(([127, 0, 0, 1], port).into(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// The next report with this number of samples.
async fn report(client: &mut MqttClient, samples: u64) -> Value {
    loop {
        let message = client.next().await;
        let report: Value = serde_json::from_slice(&message.payload).unwrap();
        let task = &report["taskInfo"];
        if task["inferenceNumber"] == samples {
            return report;
        }
    }
}

#[tokio::test]
async fn counters_are_reported_per_run_over_kill_and_end() {
    let edge = Server::start(edge_model).await;
    let (broker, folder, port) = (Broker::start().await, tempfile::tempdir().unwrap(), free_port());
    let config = json!({
        "service": "digits", "protocol": "oip", "listen": format!("127.0.0.1:{port}"),
        "edge": {"address": edge.address.to_string(), "modelVersion": "1"},
        "state": folder.path().join("state.json"),
    });
    std::fs::write(folder.path().join("gateway.json"), config.to_string()).unwrap();
    let mut client = MqttClient::connect(broker.port(), &[TOPIC]).await;

    let mut first = start("first", folder.path(), &broker);
    request(port).await;
    request(port).await;
    let killed = report(&mut client, 4).await;
    assert_eq!((&killed["name"], &killed["ownerName"]), (&json!("digits-edge"), &json!("digits")));
    let gateway = &killed["gateway"];
    assert_eq!((&gateway["signal"], &gateway["cloud"]), (&json!("Scores"), &json!("Absent")));
    assert_eq!(gateway["uploadRatio"], "0.000");
    request(port).await;
    first.kill();

    let mut second = start("second", folder.path(), &broker);
    request(port).await;
    assert!(second.terminate().await.success());
    // Reports of the killed run may still be on their way.
    let mut ended = report(&mut client, 2).await;
    while ended["taskInfo"]["startTime"] == killed["taskInfo"]["startTime"] {
        ended = report(&mut client, 2).await;
    }
    // Also what the killed one did not report.
    assert_eq!(ended["taskInfo"]["earlierRuns"]["inference"], 6);
    assert!(folder.path().join("state.json").exists());
}

#[tokio::test]
async fn counts_of_clients_are_exact_over_kills() {
    let edge = Server::start(edge_model).await;
    let (broker, folder, port) = (Broker::start().await, tempfile::tempdir().unwrap(), free_port());
    let mut config = json!({
        "service": "digits", "protocol": "oip", "listen": format!("127.0.0.1:{port}"),
        "edge": {"address": edge.address.to_string()},
        "state": folder.path().join("state.json"),
    });
    config["clients"] = crate::clients::clients()["clients"].clone();
    std::fs::write(folder.path().join("gateway.json"), config.to_string()).unwrap();
    let mut client = MqttClient::connect(broker.port(), &[TOPIC]).await;
    let body = rows(&[0.9, 0.95]);
    let keys = ["npk_hall", "npk_notebook", "npk_other"];
    for turn in 1..=4 {
        let mut gateway = start("gateway", folder.path(), &broker);
        eventually("the gateway listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
        .await;
        for (key, requests) in keys.iter().zip([3, 2, 1]) {
            for _ in 0..requests {
                let request = format!(
                    "POST {INFER} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let answer = raw(([127, 0, 0, 1], port).into(), request.as_bytes()).await;
                let code = if *key == "npk_other" { "401" } else { "200" };
                assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
            }
        }
        if turn < 4 {
            gateway.kill();
            continue;
        }
        assert!(gateway.terminate().await.success());
    }
    // The last process reports what all of them counted, of the two that have keys.
    let last = loop {
        let report = report(&mut client, 10).await;
        if report["taskInfo"]["earlierRuns"]["inference"] == 30 {
            break report;
        }
    };
    let counts = |client: usize| {
        let client = &last["gateway"]["clients"][client];
        (client["name"].clone(), client["requests"].clone(), client["samples"].clone())
    };
    assert_eq!(counts(0), (json!("hall"), json!(12), json!(24)));
    assert_eq!(counts(1), (json!("notebook"), json!(8), json!(16)));
    assert_eq!(last["gateway"]["clients"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn killed_gateway_does_not_get_another_burst_of_uploads() {
    let (edge, cloud) = (Server::start(edge_model).await, Server::start(cloud_model).await);
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let config = json!({
        "service": "digits", "protocol": "oip", "listen": format!("127.0.0.1:{port}"),
        "edge": {"address": edge.address.to_string()},
        "cloud": {"url": format!("http://{}", cloud.address), "modelName": "big"},
        "hardExample": {"algorithm": "MaxProbability", "threshold": 0.99, "maxUploadRatio": 0},
        "state": folder.path().join("state.json"),
    });
    std::fs::write(folder.path().join("gateway.json"), config.to_string()).unwrap();
    let start = |name: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--config"]).arg(folder.path().join("gateway.json"));
        Process::start(name, folder.path(), &mut command)
    };
    let mut first = start("first");
    for _ in 0..20 {
        request(port).await;
    }
    assert_eq!(cloud.received().len(), 20, "40 of the 50 uploads that a full bucket has");
    first.kill();
    let mut second = start("second");
    request(port).await;
    assert_eq!(cloud.received().len(), 20);
    assert!(second.terminate().await.success());
    // What is saved at an end is known.
    let _third = start("third");
    request(port).await;
    assert_eq!(cloud.received().len(), 20);
}

#[test]
fn invalid_configuration_is_exit_code_2_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.json");
    std::fs::write(&path, r#"{"service":"a","protocol":"soap","edge":{"address":"a:1"}}"#).unwrap();
    for command in ["check", "run"] {
        let output = Command::new(PROGRAM).args([command, "--config"]).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("unknown variant `soap`, expected one of `openai`"), "{text}");
    }
    std::fs::write(&path, r#"{"service":"a","protocol":"oip","edge":{"address":"a:1"}}"#).unwrap();
    let output = Command::new(PROGRAM).args(["check", "--config"]).arg(&path).output().unwrap();
    assert!(output.status.success());
}

#[test]
fn documentation_names_every_field_and_metric() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("gateway.md")).unwrap();
    let block = page.split("\n```json\n").nth(1).unwrap().split("```").next().unwrap();
    let config = Config::parse(block.as_bytes());
    assert!(config.is_ok(), "the example: {config:?}");
    let decisions = Decisions::new(
        config.unwrap().hard_example.settings(Protocol::Oip).unwrap(),
        true,
        clock::now(),
    );
    let metrics = Metrics::default();
    let second = std::time::Duration::from_secs(1);
    metrics.request("digits", "oip", 200, second);
    metrics.sample("easy");
    metrics.upstream(Side::Edge, second);
    metrics.first_token(Side::Edge, second);
    metrics.shadow(true);
    metrics.tokens(Side::Cloud, 1, 1);
    metrics.capture.samples("captured", 1);
    let metrics = metrics.page(&decisions, CloudState::Reachable);
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() == 23, "{names:?}");
    let page = std::fs::read_to_string(docs.join("metrics.md")).unwrap();
    for name in names {
        assert!(page.contains(&format!("`{name}")), "docs/metrics.md has no {name}");
    }
}

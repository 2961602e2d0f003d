//! The built `neptune-edge doctor` beside real Docker and a real broker, and without them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;

use std::{fs, net::TcpListener, process::Output};

use bed::{Agent, Broker, Cloud, free_port, until};
use serde_json::{Value, json};

/// The doctor of an agent's settings.
fn doctor(agent: &Agent, extra: &[&str]) -> Output {
    let run = agent.command();
    let settings = run.get_args().skip(1).chain(extra.iter().map(std::ffi::OsStr::new));
    std::process::Command::new(run.get_program()).arg("doctor").args(settings).output().unwrap()
}

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
async fn a_node_that_works_is_well_before_the_agent_starts_and_while_it_runs() {
    let broker = Broker::start();
    let mut agent = Agent::new(&broker.url());
    let cloud = Cloud::of(&agent);
    cloud.listens().await;
    let output = doctor(&agent, &["--json", "--resolve", "localhost"]);
    assert_eq!((bad(&output), output.status.code()), (vec![], Some(0)), "{output:?}");
    assert!(!agent.data_dir().exists(), "the doctor makes nothing");

    agent.start();
    cloud.node("online", |report| report.online).await;
    let cloud_worker = json!({"workers": [{
        "name": "w", "role": "edge", "image": "none.invalid/none:1", "model": "small",
        "env": {"BIG_MODEL_URL": "http://nobody.invalid:5000"},
    }]});
    let service = cloud.insert("default/jointinferenceservices/s", &cloud_worker);
    cloud.index(&[("default/jointinferenceservices/s", &service)]);
    until("stored", || agent.log().contains("object received")).await;
    let files = || {
        let names = fs::read_dir(agent.data_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let before = files();

    let output = doctor(&agent, &[]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("1 object stored; in use by an agent"), "{told}");
    assert!(told.contains(&format!("mqtt://127.0.0.1:{} answers", agent.local_port)), "{told}");
    let named = "ERROR    cloud workers   nobody.invalid (default/jointinferenceservices/s): ";
    assert!(told.contains(named), "{told}");
    assert!(told.ends_with("1 error, 0 warnings\n") || told.contains("clock"), "{told}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(files(), before, "nothing stays behind");
    assert!(!agent.log().contains("link down"), "the agent keeps its connections");
}

#[tokio::test]
async fn each_thing_that_is_missing_is_named_within_the_time_limit() {
    // Accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://{}", silent.local_addr().unwrap());
    let mut agent = Agent::new(&url);
    let taken = TcpListener::bind(("127.0.0.1", agent.local_port)).unwrap();
    let dir = agent.data_dir();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("neptune.db"), "this is no database, and long enough to look like one")
        .unwrap();
    agent.extra = ["--docker-host", "unix:///nowhere/docker.sock"].map(str::to_owned).to_vec();
    let output = doctor(
        &agent,
        &["--json", "--resolve", "nobody.invalid", "--model-reserve-bytes", "999999999999999"],
    );
    let expected =
        ["data directory", "disk", "engine", "local broker", "cloud link", "cloud workers"];
    assert_eq!(bad(&output), expected, "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("waiting for: cloud link"), "{said}");
    drop((silent, taken));
}

#[test]
fn settings_that_cannot_work_are_a_finding_too() {
    let mut agent = Agent::new("mqtts://broker.invalid");
    agent.local_port = free_port();
    let output = doctor(&agent, &[]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with("ERROR    settings        --mqtt-ca-file: missing"), "{told}");
    assert_eq!(output.status.code(), Some(1));
}

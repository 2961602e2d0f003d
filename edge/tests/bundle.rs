//! The file of `neptune-edge bundle`: what it has, and that no planted secret is in it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use harness::{Agent, Broker, BusyboxImage, Cloud, SERVICE, runs, service, unique};
use serde_json::{Value, json};

/// The part of each planted secret.
const SECRET: &str = "zx81";

fn bundle(agent: &Agent, extra: &[&str]) -> Output {
    let run = agent.command();
    let mut command = Command::new(run.get_program());
    command.arg("bundle").args(run.get_args().skip(1)).args(extra);
    command.current_dir(agent.dir.path());
    command.env("NEPTUNE_WORKER_PASSWORD", format!("{SECRET}-1"));
    command.env("AWS_SECRET_ACCESS_KEY", format!("{SECRET}-2"));
    command.output().unwrap()
}

/// The unpacked files by their names, without the directory of all.
fn unpacked(archive: &Path) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).output();
    assert!(output.unwrap().status.success());
    let root = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut files = Vec::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn bundle_helps_and_has_none_of_ten_planted_secrets() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::new(&broker.url());
    let registries = agent.dir.path().join("registries.json");
    let login = json!({"auths": {"registry.example": {"auth": format!("{SECRET}-3")}}});
    fs::write(&registries, login.to_string()).unwrap();
    fs::set_permissions(&registries, fs::Permissions::from_mode(0o600)).unwrap();
    agent.extra = vec!["--registry-config".to_owned(), registries.display().to_string()];
    agent.start();
    let cloud = Cloud::connect(&agent);
    let script = "echo a line of the log; while :; do sleep 1; done";
    let mut content = service(&unique("w"), &image.0, script);
    let worker = content["workers"][0].as_object_mut().unwrap();
    worker.remove("model");
    worker.insert("env".to_owned(), json!({"PASSWORD": format!("{SECRET}-4")}));
    worker.insert("args".to_owned(), json!([format!("{script}; : {SECRET}-5")]));
    content["spec"] = json!({"token": format!("{SECRET}-6")});
    cloud.insert(SERVICE, &content);
    cloud.status(SERVICE, "running", runs).await;
    for (number, name) in [(7, "node.key"), (8, "secrets/token"), (9, "data.csv")] {
        let path = agent.data_dir().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{SECRET}-{number}")).unwrap();
    }
    // The last one of a repeated setting counts.
    let url = format!("mqtt://edge0:{SECRET}-10@127.0.0.1:1");
    let plain = ["--output", "a.tar.gz"];
    let output = bundle(&agent, &plain);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a.tar.gz\n");
    let archive = agent.dir.path().join("a.tar.gz");
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let files = unpacked(&archive);
    let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["about.json", "containers.json", "doctor.json", "settings.json"]);
    let json = |name: &str| -> Value {
        let (_, text) = files.iter().find(|(other, _)| other == name).unwrap();
        serde_json::from_str(text).unwrap()
    };
    assert_eq!(json("about.json")["node"], agent.node.as_str());
    assert_eq!(json("containers.json")[0]["State"]["Status"], "running");
    assert_eq!(json("settings.json")["node-name"]["values"][0], agent.node.as_str());

    let again = bundle(&agent, &plain);
    assert_eq!(again.status.code(), Some(1), "an existing file stays: {again:?}");
    let mut with_password = Agent::new(&url);
    with_password.node = agent.node.clone();
    let output = bundle(&with_password, &["--logs", "-o", "b.tar.gz"]);
    assert!(output.status.success(), "{output:?}");
    let others = unpacked(&with_password.dir.path().join("b.tar.gz"));
    let log = others.iter().find(|(name, _)| name.starts_with("logs/")).unwrap();
    assert_eq!(log.1, "a line of the log\n");
    for (name, text) in files.iter().chain(&others) {
        assert!(!text.contains(SECRET) && !name.contains(SECRET), "{name}: {text}");
    }
}

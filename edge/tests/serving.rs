//! Model servers on the built agent, with real Docker. The servers are busybox's `httpd`: a version
//! is healthy if it has a file `health`, and it answers with its file `predict`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fs, path::Path, process::Command, time::Duration};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, Load, UnmanagedContainer, docker, eventually,
    free_port, unique,
};
use neptune_wire::{ModelServerReport, Phase, StatusReport, Topic, Transition, WorkerReason};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

const OBJECT: &str = "default/inferencemodels/m";

/// A version of a model: an archive on an HTTP server of its own.
struct Version {
    name: String,
    sha256: String,
    files: FileServer,
    is_healthy: bool,
}

impl Version {
    async fn serve(name: &str, is_healthy: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("predict"), name).unwrap();
        if is_healthy {
            fs::write(dir.path().join("health"), "ok").unwrap();
        }
        let tar =
            Command::new("tar").args(["-cz", "-C"]).arg(dir.path()).arg(".").output().unwrap();
        let packed = dir.path().join("packed");
        fs::write(&packed, &tar.stdout).unwrap();
        let sum = Command::new("sha256sum").arg(&packed).output().unwrap();
        let sha256 = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
        let files = FileServer::serve(&tar.stdout).await;
        Self { name: name.to_owned(), sha256, files, is_healthy }
    }

    /// How long its server may take to start. A version that is healthy is never given up, also not on
    /// a loaded machine: a version that fails stays blocked.
    fn start_within_ms(&self) -> u32 {
        if self.is_healthy { 60_000 } else { 3000 }
    }

    fn url(&self) -> String {
        self.files.url.replace("big.bin", "model.tar.gz")
    }
}

/// An `InferenceModel` with a model server, for one test.
struct Model {
    name: String,
    image: String,
    port: u16,
    reload: &'static str,
}

impl Model {
    fn new(image: &BusyboxImage, reload: &'static str) -> Self {
        Self { name: unique("m"), image: image.0.clone(), port: free_port(), reload }
    }

    fn content(&self, version: &Version) -> Value {
        // The highest version answers, as with TensorFlow Serving.
        let script = format!(
            r#"cat > /cgi-bin/predict <<'END'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
cd /models/m; for v in *; do last=$v; done; cat "$last/predict"
END
busybox chmod +x /cgi-bin/predict
exec busybox httpd -f -p {} -h /"#,
            self.port
        );
        json!({"serving": {
            "name": self.name, "modelName": "m", "image": self.image, "port": self.port, "reload": self.reload,
            "command": ["/bin/sh", "-c"], "args": [script], "rights": {"readOnlyRoot": false}, "env": {"MODEL_NAME": "m"},
            "model": {
                "version": version.name, "url": version.url(), "sha256": version.sha256,
                "directory": "/models/m",
            },
            "health": {
                "httpPath": "/models/m/{version}/health", "periodMs": 100, "timeoutMs": 1000,
                "startWithinMs": version.start_within_ms(), "probationMs": 700,
            },
            "resources": {"memoryBytes": 67_108_864},
        }})
    }

    fn held(&self, version: &Version) -> Value {
        let mut content = self.content(version);
        content["serving"]["hold"] = json!(true);
        content
    }

    /// The answer of its server, if it answers.
    async fn ask(port: u16) -> Option<String> {
        let ask = async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
            stream.write_all(b"GET /cgi-bin/predict HTTP/1.0\r\n\r\n").await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            (head.contains(" 200 ") && !body.is_empty()).then(|| body.trim().to_owned())
        };
        timeout(Duration::from_secs(2), ask).await.ok().flatten()
    }
}

/// A server that slowly sends half of the bytes, and then nothing more. Returns the URL.
async fn stalling(bytes: usize) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/model.onnx", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
            for _ in 0..64 {
                let _ = stream.write_all(&vec![7; bytes / 128]).await;
                sleep(Duration::from_millis(10)).await;
            }
            open.push(stream);
        }
    });
    url
}

fn load(port: u16) -> Load<String> {
    Load::start(move || async move { Model::ask(port).await.ok_or_else(|| "no answer".to_owned()) })
}

fn serving(report: &StatusReport) -> ModelServerReport {
    report.serving.clone().unwrap_or_default()
}

fn settled(version: &str) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let status = serving(report);
        status.serving_version.as_deref() == Some(version)
            && status.transition == Transition::UpToDate
            && status.target_version.as_deref() == Some(version)
            && report.phase == Phase::Running
    }
}

fn blocked(serving_version: &str, failed: &str) -> impl Fn(&StatusReport) -> bool {
    move |report| {
        let status = serving(report);
        status.transition == Transition::BlockedByFailedLoad
            && status.serving_version.as_deref() == Some(serving_version)
            && status.last_failure.is_some_and(|failure| failure.version == failed)
    }
}

fn inspect(id: &str, what: &str) -> String {
    docker(&["inspect", "--format", what, id])
}

/// The image as it was requested: Podman adds a default registry.
fn image_of(agent: &Agent) -> String {
    let image = inspect(&agent.containers()[0], "{{.Config.Image}}");
    image.trim_start_matches("docker.io/library/").to_owned()
}

fn versions_on_disk(agent: &Agent) -> Vec<String> {
    let below = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    };
    let objects = below(&agent.data_dir().join("serving"));
    let objects = objects.into_iter().filter(|dir| !dir.ends_with(".building"));
    let versions =
        objects.flat_map(|object| below(&object)).flat_map(|generation| below(&generation));
    let mut names: Vec<String> =
        versions.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn replaced_server_has_a_short_outage_and_rolls_back() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, four, unhealthy) = (
        Version::serve("3", true).await,
        Version::serve("4", true).await,
        Version::serve("5", false).await,
    );
    let model = Model::new(&image, "replace");

    cloud.insert(OBJECT, &model.content(&four));
    let report = cloud
        .status(OBJECT, "on its way", |report| serving(report).transition == Transition::InProgress)
        .await;
    assert_eq!((report.phase, report.uid.as_str()), (Phase::Pending, "uid-of-m"));
    cloud.status(OBJECT, "serving 4", settled("4")).await;
    assert_eq!(Model::ask(model.port).await.as_deref(), Some("4"));
    let id = agent.containers()[0].clone();
    let env = inspect(&id, "{{json .Config.Env}}");
    assert!(env.contains("MODEL_URL=/models/m/4") && env.contains("MODEL_NAME=m"), "{env}");
    assert_eq!(inspect(&id, "{{.HostConfig.NetworkMode}} {{.HostConfig.Memory}}"), "host 67108864");
    assert_eq!(
        inspect(&id, "{{range .Mounts}}{{.Destination}} {{.RW}}{{end}}"),
        "/models/m/4 false"
    );
    assert_eq!(inspect(&id, "{{index .Config.Labels \"io.neptune.object\"}}"), OBJECT);

    let load = load(model.port);
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    let result = load.end().await;
    assert_eq!(result.answers, ["4", "3"]);
    assert!(result.longest_outage < Duration::from_secs(2), "{result:?}");
    cloud.insert(OBJECT, &model.content(&four));
    cloud.status(OBJECT, "serving 4 again", settled("4")).await;

    cloud.insert(OBJECT, &model.content(&unhealthy));
    let report = cloud.status(OBJECT, "returned to 4", blocked("4", "5")).await;
    let status = serving(&report);
    assert_eq!((report.phase, status.last_good_version.as_deref()), (Phase::Failed, Some("4")));
    assert_eq!(status.last_failure.unwrap().reason, "HealthCheckFailed");
    let message = &status.message;
    assert!(message.contains("returned to 4") && message.contains("404"), "{message}");
    assert_eq!(Model::ask(model.port).await.as_deref(), Some("4"));

    // A version that cannot be downloaded does not affect the serving version.
    let mut wrong = model.content(&three);
    wrong["serving"]["model"]["sha256"] = json!("0".repeat(64));
    cloud.insert(OBJECT, &wrong);
    let report = cloud.status(OBJECT, "mismatched", blocked("4", "3")).await;
    assert_eq!(serving(&report).last_failure.unwrap().reason, "ModelDigestMismatch");
    wrong["serving"]["model"]["version"] = json!("../3");
    cloud.insert(OBJECT, &wrong);
    let invalid = |report: &StatusReport| serving(report).transition == Transition::InvalidSpec;
    let report = cloud.status(OBJECT, "refused", invalid).await;
    assert_eq!(serving(&report).serving_version.as_deref(), Some("4"));

    let foreign = UnmanagedContainer::run(&unique("neptune-foreign"), &image);
    cloud.delete(OBJECT);
    let status = Topic::Status(agent.node.clone(), OBJECT.parse().unwrap());
    cloud
        .message(&status, "the status to be cleared", |payload| payload.is_empty().then_some(()))
        .await;
    eventually("the removal", || agent.containers().is_empty()).await;
    assert_eq!(inspect(&foreign.0, "{{.State.Running}}"), "true");
}

#[tokio::test]
async fn watching_server_switches_versions_without_failed_request() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, four, unhealthy) = (
        Version::serve("3", true).await,
        Version::serve("4", true).await,
        Version::serve("5", false).await,
    );
    let model = Model::new(&image, "watch");
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    let container = agent.containers();
    assert!(inspect(&container[0], "{{json .Config.Env}}").contains("MODEL_URL=/models/m\""));

    let load = load(model.port);
    cloud.insert(OBJECT, &model.content(&four));
    cloud.status(OBJECT, "serving 4", settled("4")).await;
    eventually("version 3 to be removed", || versions_on_disk(&agent) == ["4"]).await;
    let result = load.end().await;
    assert!(result.failed == 0 && result.answers == ["3", "4"], "{result:?}");
    assert_eq!(agent.containers(), container, "the same container");

    cloud.insert(OBJECT, &model.content(&unhealthy));
    cloud.status(OBJECT, "returned to 4", blocked("4", "5")).await;
    eventually("version 5 to be removed", || versions_on_disk(&agent) == ["4"]).await;
    assert_eq!(Model::ask(model.port).await.as_deref(), Some("4"));

    // A restarted agent knows the failed version and the good one.
    agent.kill();
    agent.start();
    let report = cloud
        .status(OBJECT, "still blocked", |report| report.epoch == 2 && blocked("4", "5")(report))
        .await;
    assert_eq!(serving(&report).last_good_version.as_deref(), Some("4"));
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    assert_eq!(agent.containers(), container, "the container was not replaced");

    cloud.delete(OBJECT);
    eventually("the removal", || {
        agent.containers().is_empty() && versions_on_disk(&agent).is_empty()
    })
    .await;
}

#[tokio::test]
async fn agent_killed_during_a_switch_finishes_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let versions = [Version::serve("3", true).await, Version::serve("4", true).await];
    let model = Model::new(&image, "replace");
    cloud.insert(OBJECT, &model.content(&versions[0]));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    // Every kill happens in another step: download, stop, start, probation.
    for (round, after) in [30, 150, 400, 1200].into_iter().enumerate() {
        let version = &versions[(round + 1) % 2];
        cloud.insert(OBJECT, &model.content(version));
        sleep(Duration::from_millis(after)).await;
        agent.kill();
        agent.start();
        let epoch = round as u64 + 2;
        let is_settled =
            |report: &StatusReport| report.epoch == epoch && settled(&version.name)(report);
        cloud.status(OBJECT, "the switch", is_settled).await;
        assert_eq!(Model::ask(model.port).await.as_deref(), Some(version.name.as_str()));
        assert_eq!(agent.containers().len(), 1);
    }
}

#[tokio::test]
async fn switch_can_be_held_and_an_image_can_contain_the_model() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, four) = (Version::serve("3", true).await, Version::serve("4", true).await);
    let model = Model::new(&image, "watch");
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    let container = agent.containers();
    cloud.insert(OBJECT, &model.held(&four));
    let held = |report: &StatusReport| {
        let status = serving(report);
        status.message.contains("hold-upgrade") && status.serving_version.as_deref() == Some("3")
    };
    cloud.status(OBJECT, "held", held).await;
    assert_eq!(versions_on_disk(&agent), ["3"]);
    // The version is downloaded already: its server is not needed.
    four.files.change(b"unavailable");
    cloud.insert(OBJECT, &model.content(&four));
    cloud.status(OBJECT, "serving 4", settled("4")).await;
    assert_eq!(agent.containers(), container);

    // Switch to an image that contains the model and has no versions, only a port; and back.
    let mut whole = model.content(&three);
    whole["serving"].as_object_mut().unwrap().remove("model");
    whole["serving"]["health"].as_object_mut().unwrap().remove("httpPath");
    cloud.insert(OBJECT, &whole);
    cloud.status(OBJECT, "serving an image", settled(&image.0)).await;
    assert_eq!(inspect(&agent.containers()[0], "{{len .Mounts}}"), "0");
    eventually("without versions", || versions_on_disk(&agent).is_empty()).await;
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    assert_eq!((agent.containers().len(), versions_on_disk(&agent)), (1, vec!["3".to_owned()]));
}

#[tokio::test]
async fn download_progress_is_reported_and_a_newer_target_replaces_it() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, five) = (Version::serve("3", true).await, Version::serve("5", true).await);
    let model = Model::new(&image, "watch");
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;

    let mut stuck = model.content(&three);
    let bytes = 4 << 20;
    stuck["serving"]["model"] =
        json!({"version": "4", "url": stalling(bytes).await, "directory": "/models/m"});
    cloud.insert(OBJECT, &stuck);
    let some = |report: &StatusReport| {
        serving(report).progress.is_some_and(|progress| progress.received_bytes > 0)
    };
    let report = cloud.status(OBJECT, "part of the download", some).await;
    let status = serving(&report);
    assert_eq!(status.progress.unwrap().total_bytes, Some(bytes as u64));
    assert_eq!(
        (status.transition, status.serving_version.as_deref(), status.target_version.as_deref()),
        (Transition::InProgress, Some("3"), Some("4"))
    );

    // The address is not allowed.
    stuck["serving"]["model"]["url"] = json!("http://169.254.169.254/model.tar.gz");
    cloud.insert(OBJECT, &stuck);
    let report = cloud.status(OBJECT, "refused", blocked("3", "4")).await;
    assert!(serving(&report).message.contains("metadata"), "{}", serving(&report).message);

    cloud.insert(OBJECT, &model.content(&five));
    cloud.status(OBJECT, "serving 5", settled("5")).await;
}

/// The digests of the models in the agent's data directory.
fn models_on_disk(agent: &Agent) -> Vec<String> {
    let kept = fs::read_dir(agent.data_dir().join("models/sha256")).unwrap();
    let mut kept: Vec<String> =
        kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    kept
}

#[tokio::test]
async fn server_changes_port_and_unused_models_are_removed() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, four, five, unhealthy) = (
        Version::serve("3", true).await,
        Version::serve("4", true).await,
        Version::serve("5", true).await,
        Version::serve("6", false).await,
    );
    let model = Model::new(&image, "replace");
    for version in [&three, &four, &five] {
        cloud.insert(OBJECT, &model.content(version));
        cloud.status(OBJECT, "serving it", settled(&version.name)).await;
    }
    let digests = |versions: &[&Version]| {
        let mut digests: Vec<_> = versions.iter().map(|version| version.sha256.clone()).collect();
        digests.sort();
        digests
    };
    eventually("version 3 to be removed", || models_on_disk(&agent) == digests(&[&four, &five]))
        .await;
    cloud.insert(OBJECT, &model.content(&unhealthy));
    cloud.status(OBJECT, "returned to 5", blocked("5", "6")).await;
    assert!(models_on_disk(&agent).contains(&five.sha256));
    cloud.insert(OBJECT, &model.content(&five));
    cloud.status(OBJECT, "serving 5", settled("5")).await;

    let moved =
        Model { port: free_port(), image: image.0.clone(), name: model.name.clone(), ..model };
    cloud.insert(OBJECT, &moved.content(&five));
    let answers = async {
        while Model::ask(moved.port).await.as_deref() != Some("5") {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), answers).await.expect("5 answers on its new port");
    assert!(TcpStream::connect(("127.0.0.1", model.port)).await.is_err());
    assert_eq!(agent.containers().len(), 1);
}

/// A registry that accepts connections and never answers.
fn silent_registry() -> (std::net::TcpListener, String) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/{}:1", listener.local_addr().unwrap(), unique("silent"));
    (listener, image)
}

#[tokio::test]
async fn serving_version_is_restarted_while_next_image_is_missing() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    let (three, four) = (Version::serve("3", true).await, Version::serve("4", true).await);
    let model = Model::new(&image, "watch");
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;

    let (_registry, silent) = silent_registry();
    let mut next = model.content(&four);
    next["serving"]["image"] = json!(silent);
    cloud.insert(OBJECT, &next);
    let pulling = |report: &StatusReport| {
        let status = serving(report);
        status.message.contains("; 3 keeps running") && status.message.contains(&silent)
    };
    cloud.status(OBJECT, "the missing image", pulling).await;
    let first = agent.containers();
    docker(&["kill", &first[0]]);
    eventually("the restart", || agent.containers().iter().any(|id| *id != first[0])).await;
    let again = |report: &StatusReport| {
        pulling(report) && serving(report).serving_version.as_deref() == Some("3")
    };
    let answers = async {
        while Model::ask(model.port).await.as_deref() != Some("3") {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), answers).await.expect("3 answers again");
    cloud.status(OBJECT, "serving 3 again", again).await;

    // The image is loaded by hand.
    docker(&["tag", &image.0, &silent]);
    let loaded = BusyboxImage(silent);
    cloud.status(OBJECT, "serving 4", settled("4")).await;
    assert_eq!(image_of(&agent), loaded.0);

    // A newer target does not wait for the image of an older one.
    let (_registry, silent) = silent_registry();
    next["serving"]["image"] = json!(silent);
    next["serving"]["model"] = model.content(&three)["serving"]["model"].clone();
    cloud.insert(OBJECT, &next);
    let awaited = |report: &StatusReport| serving(report).message.contains(&silent);
    cloud.status(OBJECT, "the missing image", awaited).await;
    cloud.insert(OBJECT, &model.content(&three));
    cloud.status(OBJECT, "serving 3", settled("3")).await;
    assert_eq!(image_of(&agent), image.0);
}

#[tokio::test]
async fn full_disk_reports_the_missing_bytes() {
    let broker = Broker::start().await;
    let image = BusyboxImage::import();
    let mut agent = Agent::new(&broker.url());
    agent.extra = ["--model-reserve-bytes".to_owned(), u64::MAX.to_string()].into();
    agent.start();
    let cloud = Cloud::connect(&agent);
    let model = Model::new(&image, "replace");
    cloud.insert(OBJECT, &model.content(&Version::serve("3", true).await));
    let full = |report: &StatusReport| serving(report).trouble == Some(WorkerReason::DiskFull);
    let report = cloud.status(OBJECT, "the full disk", full).await;
    let message = serving(&report).message;
    assert!(message.contains("not enough disk space"), "{message}");
    assert_eq!(serving(&report).transition, Transition::InProgress);
    assert!(agent.containers().is_empty());
}

//! Training tasks on the built agent, with real Docker, a real broker, and an aggregator that trusts
//! only the node's key.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "training/aggregator.rs"]
mod aggregator;
mod harness;

use std::{
    fmt::Write as _,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use aggregator::Aggregator;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use harness::{Agent, Broker, BusyboxImage, Cloud, docker, eventually, unique, within};
use neptune_content::Digest;
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::{StatusReport, TaskReport, TaskState, TopicPrefix, TrainingReason};
use serde_json::{Value, json};

const DATASET: &str = "default/datasets/d";
const MODEL: &str = "default/trainingmodels/m";
/// What all scripts begin with.
const FINISH: &str = r#"
finish() {
    busybox cp "$1" "$OUTPUT_DIR/weights.safetensors"
    echo '{"samples": 7, "loss": 0.5, "metrics": {"accuracy": 0.9}}' > "$OUTPUT_DIR/result.json"
}
here=$(busybox dirname "$0")
"#;

struct Fixture {
    _broker: Broker,
    agent: Agent,
    cloud: Cloud,
    aggregator: Aggregator,
    image: BusyboxImage,
}

/// A safetensors file with one tensor.
fn weights(name: &str, values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = format!(
        r#"{{"{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}}"#,
        values.len(),
        data.len()
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn base() -> Vec<u8> {
    weights("w", &[1.0, 2.0, 3.0])
}

/// What the programs write.
fn update() -> Vec<u8> {
    weights("w", &[1.5, 2.0, 2.5])
}

fn task_id(name: &str) -> String {
    Digest::of_bytes(name.as_bytes()).to_string()
}

impl Fixture {
    /// A running agent with a dataset of 100 samples and this program.
    async fn start(script: &str, slots: u32) -> Self {
        let broker = Broker::start().await;
        let mut agent = Agent::new(&broker.url());
        let dir = agent.dir.path().to_owned();
        for name in ["code", "samples"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        agent.extra = vec![
            "--allow-script-dir".to_owned(),
            dir.join("code").display().to_string(),
            "--allow-data-dir".to_owned(),
            dir.join("samples").display().to_string(),
            "--max-training-containers".to_owned(),
            slots.to_string(),
            "--remote-logs".to_owned(),
            "training".to_owned(),
        ];
        let aggregator = Aggregator::start(&dir.join("aggregator")).await;
        aggregator.add_content(base());
        let fixture = Self {
            cloud: Cloud::connect(&agent),
            _broker: broker,
            agent,
            aggregator,
            image: BusyboxImage::import(),
        };
        fixture.write("code/update", &update());
        fixture.write("code/train.sh", format!("{FINISH}\n{script}").as_bytes());
        let samples: Vec<String> = (0..100).map(canary).collect();
        fixture.write("samples/d.csv", format!("{}\n", samples.join("\n")).as_bytes());
        fixture.cloud.subscribed().await;
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.agent.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Starts the agent, and lets the aggregator trust its key.
    async fn start_agent(&mut self) {
        self.agent.start();
        let report = self.cloud.node("the pin", |report| report.key_pin.is_some()).await;
        self.aggregator.trust(report.key_pin);
    }

    fn insert_dataset(&self) {
        let url = self.path("samples/d.csv");
        let spec = json!({"dataUrl": url, "format": "csv", "nodeName": "any", "header": false});
        self.cloud.insert(DATASET, &json!({"spec": spec}));
    }

    /// The content of an object with these tasks, by name and kind.
    fn content(&self, tasks: &[(&str, &str)]) -> Value {
        let base = base();
        let listed = tasks.iter().map(|(name, kind)| {
            let mut task = json!({
                "worker": name, "container": unique("t"), "id": task_id(name), "kind": kind,
                "round": 1, "rounds": 2, "seed": 3, "dataset": "d",
                "base": {"sha256": Digest::of_bytes(&base).to_string(), "bytes": base.len()},
            });
            if *kind == "initialize" {
                task["base"] = Value::Null;
            }
            self.aggregator.open_task(&task_id(name));
            task
        });
        let listed: Vec<_> = listed.collect();
        json!({"training": {
            "run": 1,
            "aggregator": {"url": self.aggregator.url(), "pin": self.aggregator.pin()},
            "container": {
                "image": self.image.0, "command": ["/bin/sh"], "maxUpdateBytes": 100_000,
                "backoffLimit": 0,
                "script": {"directory": {"dir": self.path("code"), "bootFile": "train.sh"}},
            },
            "tasks": listed,
        }})
    }

    fn insert(&self, content: &Value) {
        self.cloud.insert(MODEL, content);
    }

    /// Waits for the report of a task that matches.
    async fn task(
        &self,
        name: &str,
        what: &str,
        matches: impl Fn(&TaskReport) -> bool,
    ) -> TaskReport {
        let find = |report: &StatusReport| {
            let tasks = report.training.as_ref()?.tasks.iter();
            tasks.clone().find(|task| task.worker == name && matches(task)).cloned()
        };
        let what = format!("task {name} {what}");
        let report = self.cloud.status(MODEL, &what, |report| find(report).is_some()).await;
        find(&report).unwrap()
    }

    async fn accepted(&self, name: &str) {
        self.task(name, "to be accepted", |task| task.state == TaskState::Accepted).await;
    }

    /// The IDs of the training containers of this node.
    fn containers(&self, only_running: bool) -> Vec<String> {
        let label = format!("label=io.neptune.training-node={}", self.agent.node);
        let which = if only_running { "-q" } else { "-aq" };
        docker(&["ps", which, "--no-trunc", "--filter", &label])
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The names of the volumes of this node's trainings.
    fn volumes(&self) -> Vec<String> {
        let label = format!("label=io.neptune.training-node={}", self.agent.node);
        let names = docker(&["volume", "ls", "-q", "--filter", &label]);
        names.lines().map(str::to_owned).collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.agent.kill();
        for id in self.containers(false) {
            let _ = harness::docker::try_docker(&["rm", "-f", &id]);
        }
        for volume in self.volumes() {
            let _ = harness::docker::try_docker(&["volume", "rm", &volume]);
        }
    }
}

fn canary(n: usize) -> String {
    format!("canary-{n}-{:016x}", (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Fails from inside of the container if it is not confined.
const CONFINED: &str = r#"
[ "$(busybox ls /sys/class/net)" = lo ] || { echo network; exit 11; }
busybox wget -T 1 -q -O /tmp/x http://1.1.1.1/ 2>/dev/null && { echo connected; exit 12; }
[ "$(busybox id -u)" = 65532 ] || { echo user; exit 13; }
busybox touch /bin/x 2>/dev/null && { echo writable; exit 14; }
busybox touch "$DATASET_URL" 2>/dev/null && { echo dataset; exit 15; }
busybox touch "$WEIGHTS_URL" 2>/dev/null && { echo weights; exit 16; }
busybox grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && { echo capabilities; exit 17; }
[ "$(busybox wc -l < "$DATASET_URL")" = 100 ] || { echo samples; exit 18; }
[ "$ROUND/$ROUNDS/$RUN/$SEED/$OMP_NUM_THREADS/$DATASET_FORMAT" = 1/2/1/3/1/csv ] || { env; exit 19; }
"#;

#[tokio::test]
async fn tasks_of_each_kind_go_from_content_to_accepted() {
    let script = format!(
        r#"
case $TASK in
initialize) [ -z "$WEIGHTS_URL" ] || exit 20; finish $here/update ;;
train) {CONFINED} finish $here/update ;;
evaluate) echo '{{"metrics": {{"accuracy": 0.75}}}}' > "$OUTPUT_DIR/result.json" ;;
esac
"#
    );
    let mut fixture = Fixture::start(&script, 1).await;
    fixture.agent.start();
    let tasks = [("first", "initialize"), ("a", "train"), ("test", "evaluate")];
    fixture.insert(&fixture.content(&tasks));
    let waits = |task: &TaskReport| task.reason == Some(TrainingReason::DatasetNotReceived);
    fixture.task("a", "to wait for its dataset", waits).await;
    fixture.insert_dataset();
    let waits = |task: &TaskReport| task.reason == Some(TrainingReason::NodeNotTrusted);
    let waiting = fixture.task("a", "to wait for trust", waits).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    let pin = fixture.cloud.node("the pin", |report| report.key_pin.is_some()).await.key_pin;
    let doctor = String::from_utf8(fixture.agent.doctor(&[]).stdout).unwrap();
    assert!(doctor.contains(&pin.as_ref().unwrap().0), "{doctor}");
    fixture.aggregator.trust(pin);
    for (name, _) in tasks {
        fixture.accepted(name).await;
    }
    let received = fixture.aggregator.received();
    let sha256 = Digest::of_bytes(&update()).to_string();
    for name in ["a", "first"] {
        assert_eq!(received.accepted[&task_id(name)], vec![sha256.clone()], "{name}");
        let report = &received.reports[&task_id(name)];
        assert_eq!(
            (report.samples, report.counted_samples, report.loss),
            (7, Some(100), Some(0.5))
        );
    }
    let evaluation = &received.reports[&task_id("test")];
    assert_eq!(evaluation.metrics[0].value, "0.75");
    assert_eq!(fixture.containers(false), Vec::<String>::new(), "verified containers are removed");

    // A round that is over leaves nothing.
    fixture.insert(&fixture.content(&[]));
    let dir = fixture.agent.data_dir().join("training");
    eventually("the files to be removed", || fs::read_dir(&dir).unwrap().count() == 0).await;
}

#[tokio::test]
async fn each_failure_of_a_program_has_its_reason() {
    use TaskState::{Failed, Refused};
    use TrainingReason as Reason;
    let script = r#"
case $WORKER_NAME in
exit) for n in 1 2 3 4; do echo "line $n"; done; exit 1 ;;
timeout) while :; do sleep 1; done ;;
missing) exit 0 ;;
no-result) finish $here/update; busybox rm $OUTPUT_DIR/result.json ;;
nan) finish $here/nan ;;
shape) finish $here/shape ;;
large) finish $here/large ;;
full) busybox dd if=/dev/zero of=$OUTPUT_DIR/x bs=1M count=500 2>/dev/null || exit 5 ;;
many) i=0; while [ $i -lt 20 ]; do busybox dd if=/dev/zero of=$OUTPUT_DIR/x$i bs=1M count=1 2>/dev/null; i=$((i+1)); done; sleep 60 ;;
link) finish $here/update; busybox rm $OUTPUT_DIR/weights.safetensors; busybox ln -s $here/update $OUTPUT_DIR/weights.safetensors ;;
good) finish $here/update ;;
esac
"#;
    let mut fixture = Fixture::start(script, 4).await;
    fixture.write("code/nan", &weights("w", &[1.0, f32::NAN, 3.0]));
    fixture.write("code/shape", &weights("w", &[1.0, 2.0]));
    fixture.write("code/large", &weights("w", &vec![1.0; 30_000]));
    fixture.start_agent().await;
    fixture.insert_dataset();
    let expected = [
        ("exit", Failed, Reason::ScriptFailed, "script ended with exit code 1 after "),
        ("exit", Failed, Reason::ScriptFailed, " s: line 2|line 3|line 4"),
        ("timeout", Failed, Reason::TimedOut, "did not end within 3 s"),
        ("missing", Refused, Reason::OutputMissing, "no result.json"),
        ("no-result", Refused, Reason::OutputMissing, "no result.json"),
        ("nan", Refused, Reason::NotFinite, "NaN in \"w\" (first at 1)"),
        ("shape", Refused, Reason::ShapeMismatch, "with shape [2], the base has [3]"),
        ("large", Refused, Reason::UpdateTooLarge, "the limit is 100000"),
        ("full", Refused, Reason::UpdateTooLarge, "into OUTPUT_DIR, the limit is 100000"),
        ("many", Refused, Reason::UpdateTooLarge, "into OUTPUT_DIR, the limit is 100000"),
        ("link", Refused, Reason::OutputMissing, "not a plain file"),
    ];
    let mut names: Vec<_> = expected.iter().map(|(name, ..)| (*name, "train")).collect();
    names.dedup();
    names.push(("good", "train"));
    let mut content = fixture.content(&names);
    content["training"]["container"]["timeoutSeconds"] = json!(3);
    fixture.insert(&content);
    for (name, state, reason, text) in expected {
        let report = fixture.task(name, "to end", |task| task.state >= TaskState::Accepted).await;
        assert_eq!((report.state, report.reason), (state, Some(reason)), "{report:?}");
        assert!(report.message.contains(text), "{report:?}");
    }
    fixture.accepted("good").await;
    assert_eq!(fixture.aggregator.received().accepted.len(), 1);
}

#[tokio::test]
async fn failing_program_is_repeated_up_to_the_limit() {
    // The log of the engine has each start.
    let mut fixture = Fixture::start("echo started; exit 3", 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    let mut content = fixture.content(&[("a", "train")]);
    content["training"]["container"]["backoffLimit"] = json!(2);
    fixture.insert(&content);
    let first = fixture.task("a", "to fail once", |task| task.failures == 1).await;
    assert_eq!(
        (first.state, first.reason),
        (TaskState::Training, Some(TrainingReason::ScriptFailed))
    );
    let last = fixture.task("a", "to fail", |task| task.state == TaskState::Failed).await;
    assert_eq!((last.failures, last.reason), (3, Some(TrainingReason::ScriptFailed)));
}

#[tokio::test]
async fn newer_round_ends_the_container_of_the_older_one() {
    let script = r#"[ "$WORKER_NAME" = new ] || while :; do sleep 1; done; finish $here/update"#;
    let mut fixture = Fixture::start(script, 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    let old = fixture.content(&[("old", "train")]);
    let container = old["training"]["tasks"][0]["container"].clone();
    fixture.insert(&old);
    fixture.task("old", "to run", |task| task.state == TaskState::Training).await;
    eventually("the old container", || fixture.containers(true).len() == 1).await;
    // The same worker has the same container name in each round.
    let mut new = fixture.content(&[("new", "train")]);
    new["training"]["tasks"][0]["container"] = container;
    new["training"]["tasks"][0]["round"] = json!(2);
    fixture.insert(&new);
    fixture.accepted("new").await;
    eventually("no container", || fixture.containers(false).is_empty()).await;
    let old_dir = fixture.agent.data_dir().join("training").join(task_id("old"));
    eventually("no files", || !old_dir.exists()).await;
    assert_eq!(fixture.aggregator.received().accepted.len(), 1);
}

#[tokio::test]
async fn volume_is_shared_by_the_rounds_of_a_worker_and_leaves_with_the_training() {
    let script = r#"
        busybox dd if=/dev/zero of=/dev/shm/zero bs=1M count=90 2>/dev/null || exit 8
        echo "$ROUND" >> /cache/rounds || exit 9
        [ "$ROUND" = 1 ] || [ "$(busybox tr -d '\n' < /cache/rounds)" = 12 ] || exit 10
        finish $here/update"#;
    let mut fixture = Fixture::start(script, 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    let mounts = json!([
        {"name": "cache", "path": "/cache", "emptyDir": {}},
        {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 134_217_728}},
    ]);
    let round = |name: &str, number: u32, container: Option<&Value>| {
        let mut content = fixture.content(&[(name, "train")]);
        content["training"]["container"]["mounts"] = mounts.clone();
        // It limits each file of the program, also in memory.
        content["training"]["container"]["maxUpdateBytes"] = json!(100_000_000);
        content["training"]["tasks"][0]["round"] = json!(number);
        if let Some(container) = container {
            content["training"]["tasks"][0]["container"] = container.clone();
        }
        content
    };
    let first = round("first", 1, None);
    let container = &first["training"]["tasks"][0]["container"];
    fixture.insert(&first);
    fixture.accepted("first").await;
    let volume = format!("neptune-{}-{}-cache", fixture.agent.node, container.as_str().unwrap());
    assert_eq!(fixture.volumes(), [volume.as_str()]);

    // Between two rounds the training has no task.
    let mut between = first.clone();
    between["training"]["tasks"] = json!([]);
    fixture.insert(&between);
    let dir = fixture.agent.data_dir().join("training");
    eventually("the files to be removed", || fs::read_dir(&dir).unwrap().count() == 0).await;
    fixture.insert(&round("second", 2, Some(container)));
    fixture.accepted("second").await;
    assert_eq!(fixture.volumes(), [volume.as_str()]);
    fixture.cloud.delete(MODEL);
    eventually("no volume", || fixture.volumes().is_empty()).await;
}

#[tokio::test]
async fn task_waits_for_a_device_without_a_failure_and_keeps_it_when_adopted() {
    let script = r#"
        busybox test -c /dev/camera && [ "$DEVICE_NEPTUNE_IO_TEST" = /dev/camera ] || exit 9
        until [ -e $here/go ]; do sleep 0.1; done
        finish $here/update"#;
    let mut fixture = Fixture::start(script, 2).await;
    let device = ["--allow-device", "neptune.io/test=/dev/null:/dev/camera"];
    fixture.agent.extra.extend(device.map(str::to_owned));
    fixture.start_agent().await;
    fixture.insert_dataset();
    let mut content = fixture.content(&[("a", "train"), ("b", "train")]);
    content["training"]["container"]["devices"] = json!({"neptune.io/test": 1});
    let mut only_first = content.clone();
    only_first["training"]["tasks"].as_array_mut().unwrap().truncate(1);
    fixture.insert(&only_first);
    eventually("the first container", || fixture.containers(true).len() == 1).await;
    let first = fixture.containers(true);
    fixture.insert(&content);
    let text = format!(
        "neptune.io/test on node {}: 1 of 1 in use by default/m; the worker starts when it is free",
        fixture.agent.node
    );
    let waits = |task: &TaskReport| task.message == text && task.failures == 0;
    fixture.task("b", "to wait for the device", waits).await;
    assert_eq!(fixture.containers(true), first);

    fixture.agent.kill();
    fixture.start_agent().await;
    eventually("the adoption", || fixture.agent.log().contains("training container adopted")).await;
    assert_eq!(fixture.containers(true), first);
    fixture.write("code/go", b"");
    fixture.accepted("a").await;
    fixture.accepted("b").await;
}

#[tokio::test]
async fn agent_killed_in_each_state_uploads_once_the_same() {
    let script = "until [ -e $here/go ]; do sleep 0.1; done; finish $here/update";
    let mut fixture = Fixture::start(script, 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    let worker = harness::run_service(&fixture.cloud, &fixture.agent, &fixture.image).await;
    let workers = fixture.agent.containers();
    fixture.insert(&fixture.content(&[("a", "train")]));
    eventually("the container", || fixture.containers(true).len() == 1).await;
    let container = fixture.containers(true);

    // In Training: it is adopted.
    fixture.agent.kill();
    fixture.start_agent().await;
    fixture.task("a", "to be adopted", |task| task.state == TaskState::Training).await;
    eventually("the adoption", || fixture.agent.log().contains("training container adopted")).await;
    assert_eq!(fixture.containers(true), container);

    // The program ends while there is no agent.
    fixture.agent.kill();
    fixture.aggregator.set_available(false);
    fixture.write("code/go", b"");
    eventually("the end of the program", || fixture.containers(true).is_empty()).await;
    fixture.agent.start();
    let waits = |task: &TaskReport| {
        task.state == TaskState::Uploading
            && task.reason == Some(TrainingReason::AggregatorUnreachable)
    };
    let waiting = fixture.task("a", "to wait for the aggregator", waits).await;
    assert_eq!(waiting.update_bytes, Some(update().len() as u64));

    // In Uploading.
    fixture.agent.kill();
    fixture.agent.start();
    fixture.aggregator.set_available(true);
    fixture.accepted("a").await;
    // In Accepted.
    fixture.agent.kill();
    fixture.agent.start();
    fixture.cloud.status(harness::SERVICE, "running", harness::runs).await;
    fixture.accepted("a").await;
    let sha256 = Digest::of_bytes(&update()).to_string();
    assert_eq!(fixture.aggregator.received().accepted[&task_id("a")], vec![sha256]);
    assert_eq!(fixture.agent.containers(), workers, "the worker {worker} runs on");
}

#[tokio::test]
async fn agent_killed_at_any_moment_uploads_once_the_same() {
    let mut fixture = Fixture::start("sleep 0.5; finish $here/update", 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    let names: Vec<String> = (0..4).map(|n| format!("w{n}")).collect();
    let tasks: Vec<_> = names.iter().map(|name| (name.as_str(), "train")).collect();
    fixture.insert(&fixture.content(&tasks));
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(random.u64(100..1500))).await;
        fixture.agent.kill();
        assert!(fixture.containers(true).len() <= 1, "one container at a time");
        fixture.agent.start();
    }
    for name in &names {
        fixture.accepted(name).await;
    }
    let sha256 = Digest::of_bytes(&update()).to_string();
    let accepted = fixture.aggregator.received().accepted;
    assert_eq!(accepted.len(), names.len());
    assert!(accepted.values().all(|all| *all == vec![sha256.clone()]), "{accepted:?}");
    eventually("no container", || fixture.containers(false).is_empty()).await;
}

#[tokio::test]
async fn lost_database_leaves_no_container_and_no_file() {
    let mut fixture = Fixture::start("while :; do sleep 1; done", 1).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    fixture.insert(&fixture.content(&[("a", "train")]));
    eventually("the container", || fixture.containers(true).len() == 1).await;
    fixture.agent.kill();
    fixture.cloud.delete(MODEL);
    let data = fixture.agent.data_dir();
    for name in ["neptune.db", "neptune.db-wal", "neptune.db-shm"] {
        let _ = fs::remove_file(data.join(name));
    }
    let key = fs::read(data.join("tls.key")).unwrap();
    fixture.agent.start();
    eventually("no container", || fixture.containers(false).is_empty()).await;
    let files = || fs::read_dir(data.join("training")).unwrap().count();
    eventually("no files", || files() == 0).await;
    assert_eq!(fs::read(data.join("tls.key")).unwrap(), key, "the node keeps its key");
}

#[tokio::test]
async fn damaged_key_stops_only_training_until_it_is_removed() {
    let mut fixture = Fixture::start("finish $here/update", 1).await;
    fs::create_dir_all(fixture.agent.data_dir()).unwrap();
    let key = fixture.agent.data_dir().join("tls.key");
    fs::write(&key, "damaged").unwrap();
    fixture.agent.start();
    harness::run_service(&fixture.cloud, &fixture.agent, &fixture.image).await;
    let names_key = |report: &neptune_wire::NodeReport| {
        report.key_pin.is_none() && report.problems.iter().any(|it| it.message.contains("tls.key"))
    };
    fixture.cloud.node("the problem", names_key).await;
    fixture.insert_dataset();
    fixture.insert(&fixture.content(&[("a", "train")]));
    let waits = |task: &TaskReport| task.reason == Some(TrainingReason::NodeNotTrusted);
    fixture.task("a", "to wait for the key", waits).await;
    fs::remove_file(&key).unwrap();
    let report = fixture.cloud.node("the pin", |report| report.key_pin.is_some()).await;
    assert_eq!(report.problems, []);
    fixture.aggregator.trust(report.key_pin);
    fixture.accepted("a").await;
}

#[tokio::test]
async fn verdict_of_the_aggregator_is_reported() {
    let mut fixture = Fixture::start("finish $here/update", 2).await;
    fixture.start_agent().await;
    fixture.insert_dataset();
    fixture.aggregator.refuse(&task_id("norm"), 422, "NormTooLarge");
    fixture.aggregator.refuse(&task_id("closed"), 410, "RoundClosed");
    fixture.insert(&fixture.content(&[("norm", "train"), ("closed", "train")]));
    let is_refused = |task: &TaskReport| task.state == TaskState::Refused;
    let norm = fixture.task("norm", "to be refused", is_refused).await;
    assert_eq!(norm.reason, Some(TrainingReason::NormTooLarge));
    let closed = fixture.task("closed", "to be refused", is_refused).await;
    assert_eq!((closed.reason, &*closed.message), (None, "RoundClosed: by the test"));
}

#[tokio::test]
async fn no_sample_leaves_the_node() {
    let script = r#"
busybox cat "$DATASET_URL"
busybox cp "$DATASET_URL" /tmp/samples
finish $here/update
"#;
    let mut fixture = Fixture::start(script, 1).await;
    let published = Arc::new(Mutex::new(Vec::new()));
    let mut options = LinkOptions::new(fixture.agent.mqtt_url.parse().unwrap(), unique("observer"));
    options.subscriptions = vec![TopicPrefix::default().upstream_filter(), "#".parse().unwrap()];
    let (_link, mut events) = Link::start(options).unwrap();
    let all = Arc::clone(&published);
    let (is_up, up) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut is_up = Some(is_up);
        while let Some(event) = events.next().await {
            match event {
                LinkEvent::Message(message) => {
                    let mut all = all.lock().unwrap();
                    all.extend_from_slice(message.topic.as_bytes());
                    all.extend_from_slice(&message.payload);
                }
                LinkEvent::Up => drop(is_up.take().map(|is_up| is_up.send(()))),
                LinkEvent::Down { .. } => {}
            }
        }
    });
    within("the subscription", up).await.unwrap();
    fixture.start_agent().await;
    fixture.insert_dataset();
    fixture.insert(&fixture.content(&[("a", "train")]));
    fixture.accepted("a").await;
    let sent = fixture.aggregator.received().bytes;
    eventually("the last status", || contains(&published.lock().unwrap(), b"Accepted")).await;
    let published = published.lock().unwrap().clone();
    assert!(contains(&sent, &update()), "the update was sent");
    for n in 0..100 {
        let canary = canary(n);
        let hex = canary.bytes().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        let mut encodings = vec![canary.clone(), hex.to_uppercase(), hex];
        // Base64 of it at each alignment, without the characters that depend on its neighbours.
        for padding in 0..3 {
            let text = BASE64_STANDARD.encode(format!("{}{canary}", "x".repeat(padding)));
            encodings.push(text[4..text.len() - 4].to_owned());
        }
        for text in encodings {
            for bytes in [&sent, &published] {
                assert!(!contains(bytes, text.as_bytes()), "{text} left the node");
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The program of docs/training-program.md, with the Python of this machine.
#[test]
fn program_of_the_documentation_writes_weights_that_learn() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/training-program.md");
    let page = fs::read_to_string(page).unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.py"), program).unwrap();
    let samples = (0..200).map(|n| {
        let (x, y) = (f64::from(n % 20) / 10.0 - 1.0, f64::from(n / 20) / 5.0 - 1.0);
        format!("{x},{y},{}\n", u8::from(x + 2.0 * y > 0.3))
    });
    fs::write(dir.path().join("d.csv"), samples.collect::<String>()).unwrap();
    let run = |task: &str, base: Option<&str>, output: &str| {
        let output = dir.path().join(output);
        fs::create_dir(&output).unwrap();
        let mut python = std::process::Command::new("python3");
        python.arg(dir.path().join("train.py"));
        python.envs([("TASK", task), ("SEED", "3"), ("DATASET_FORMAT", "csv")]);
        python.env("DATASET_URL", dir.path().join("d.csv")).env("OUTPUT_DIR", &output);
        if let Some(base) = base {
            python.env("WEIGHTS_URL", dir.path().join(base).join("weights.safetensors"));
        }
        assert!(python.status().unwrap().success(), "{task}");
        let result = fs::read(output.join("result.json")).unwrap();
        serde_json::from_slice::<Value>(&result).unwrap()
    };
    run("initialize", None, "first");
    let trained = run("train", Some("first"), "trained");
    run("train", Some("first"), "again");
    let open = |name: &str| {
        let file = fs::File::open(dir.path().join(name).join("weights.safetensors")).unwrap();
        neptune_aggregate::weights::Weights::open(file).unwrap()
    };
    let (first, update) = (open("first"), open("trained"));
    let checked = neptune_aggregate::update::check(&first, &update).unwrap().unwrap();
    assert!(checked.norm > 0.5, "{checked:?}");
    let bytes = |name: &str| fs::read(dir.path().join(name).join("weights.safetensors")).unwrap();
    assert_eq!(bytes("trained"), bytes("again"), "the same seed leads to the same weights");
    let measured = run("evaluate", Some("trained"), "measured");
    assert_eq!(measured["metrics"], trained["metrics"]);
    assert!(measured["metrics"]["accuracy"].as_f64().unwrap() > 0.9, "{measured}");
}

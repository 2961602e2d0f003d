//! A test bed: a real broker, the built agent, a real engine (Docker, or what `DOCKER_HOST` names), and the test as the cloud.
//! Everything has names of its own and goes away with the bed, also after a panic.

#![allow(clippy::unwrap_used, clippy::panic, dead_code)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use neptune_wire::{
    Delete, Index, IndexEntry, Insert, NodeName, NodeReport, ObjectContent, ObjectKey, Revision,
    StatusReport, Topic, TopicPrefix, decode, encode,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::watch, time::timeout};

/// Longer than any wait that ends well.
const PATIENCE: Duration = Duration::from_secs(20);
/// A worker that does nothing, and ends at once when it is asked to.
pub const IDLE: &str = "trap 'exit 0' TERM; echo ready; while :; do sleep 1 & wait $!; done";

/// No topic: stands for the first connection.
const UP: &str = "";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test has.
pub fn unique(kind: &str) -> String {
    format!("{kind}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub use free_port::free_port;

/// The engine's socket: Docker's, or that of `DOCKER_HOST`, which the docker command takes as well.
pub fn docker_host() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned())
}

/// As the agent calls it.
pub fn engine() -> &'static str {
    let parts = docker(&["version", "--format", "{{json .Server.Components}}"]);
    if parts.contains("Podman") { "podman" } else { "docker" }
}

pub fn docker(args: &[&str]) -> String {
    let output =
        Command::new("docker").args(args).output().expect("these tests need the docker command");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Mosquitto on a port of its own.
pub struct Broker {
    pub port: u16,
    child: Child,
    dir: TempDir,
}

impl Broker {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        fs::write(
            dir.path().join("conf"),
            format!("listener {port} 127.0.0.1\nallow_anonymous true\n"),
        )
        .unwrap();
        let child = Self::spawn(&dir);
        Self { port, child, dir }
    }

    fn spawn(dir: &TempDir) -> Child {
        let found = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        Command::new(found.unwrap_or("mosquitto"))
            .arg("-c")
            .arg(dir.path().join("conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need mosquitto: apt-get install mosquitto")
    }

    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.child = Self::spawn(&self.dir);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image FROM scratch with a static busybox, without any registry.
pub struct Image(pub String);

impl Image {
    pub fn import() -> Self {
        let busybox = Path::new("/bin/busybox");
        let is_static = || {
            Command::new("dpkg")
                .args(["-s", "busybox-static"])
                .output()
                .is_ok_and(|output| output.status.success())
        };
        if !busybox.exists() || !is_static() {
            let installed =
                Command::new("apt-get").args(["install", "-y", "-q", "busybox-static"]).output();
            assert!(
                installed.is_ok_and(|output| output.status.success()),
                "these tests need a static busybox: apt-get install busybox-static"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::copy(busybox, dir.path().join("bin/busybox")).unwrap();
        for name in ["sh", "sleep", "cat", "env"] {
            std::os::unix::fs::symlink("busybox", dir.path().join("bin").join(name)).unwrap();
        }
        // For what a worker writes: on Podman nobody without root's rights writes into / itself.
        fs::create_dir(dir.path().join("cgi-bin")).unwrap();
        let name = format!("{}:1", unique("neptune-edge-test"));
        let tar = dir.path().with_extension("tar");
        let packed = Command::new("tar")
            .arg("-cf")
            .arg(&tar)
            .arg("-C")
            .arg(dir.path())
            .args(["--owner=0", "--group=0", "bin", "cgi-bin"])
            .status()
            .unwrap();
        assert!(packed.success());
        docker(&["import", tar.to_str().unwrap(), &name]);
        fs::remove_file(tar).unwrap();
        Self(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

/// A container that no agent made.
pub struct Foreign(pub String);

impl Foreign {
    pub fn run(name: &str, image: &Image) -> Self {
        let run = ["run", "-d", "--network", "none", "--name", name];
        docker(&[&run[..], &[&image.0, "/bin/sh", "-c", IDLE]].concat());
        Self(name.to_owned())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "-f", &self.0]).output();
    }
}

/// The built agent with a data directory of its own.
pub struct Agent {
    pub node: NodeName,
    pub local_port: u16,
    pub dir: TempDir,
    pub mqtt_url: String,
    pub extra: Vec<String>,
    /// `mqtt_url` is the node's own broker.
    is_over_event_bus: bool,
    child: Option<Child>,
}

impl Agent {
    pub fn new(mqtt_url: &str) -> Self {
        Self {
            node: unique("node").parse().unwrap(),
            local_port: free_port(),
            dir: tempfile::tempdir().unwrap(),
            mqtt_url: mqtt_url.to_owned(),
            extra: Vec::new(),
            is_over_event_bus: false,
            child: None,
        }
    }

    /// On a `KubeEdge` node with this broker.
    pub fn over_event_bus(broker: &Broker) -> Self {
        let mut agent = Self::new(&broker.url());
        agent.local_port = broker.port;
        agent.is_over_event_bus = true;
        agent
    }

    pub fn started(mqtt_url: &str) -> Self {
        let mut agent = Self::new(mqtt_url);
        agent.start();
        agent
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-edge"));
        command.args(["run", "--node-name", self.node.as_str()]);
        command.arg("--data-dir").arg(self.data_dir());
        command.args(["--allow-address", "127.0.0.0/8"]);
        if self.is_over_event_bus {
            command.args(["--transport", "eventbus", "--local-broker", &self.mqtt_url]);
        } else {
            let listen = format!("127.0.0.1:{}", self.local_port);
            command.args(["--mqtt-url", &self.mqtt_url, "--local-listen", &listen]);
        }
        if !self.extra.iter().any(|flag| flag == "--docker-host") {
            command.args(["--docker-host", &docker_host()]);
        }
        command.args(&self.extra);
        command
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        self.child = Some(self.command().stderr(log).spawn().unwrap());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// As the kernel or a power switch would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// As systemd would. The exit status.
    pub fn terminate(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        assert!(
            Command::new("kill")
                .args(["-TERM", &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        child.wait().unwrap().code()
    }

    /// Ids of all containers of this node.
    pub fn containers(&self) -> Vec<String> {
        let filter = format!("label=io.neptune.node={}", self.node);
        docker(&["ps", "-aq", "--no-trunc", "--filter", &filter])
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        let filter = format!("label=io.neptune.node={}", self.node);
        let listed = Command::new("docker").args(["ps", "-aq", "--filter", &filter]).output();
        let ids = listed
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        for id in ids.lines() {
            let _ = Command::new("docker").args(["rm", "-f", id]).output();
        }
        if std::thread::panicking() {
            eprintln!("--- the agent of {} said:\n{}", self.node, self.log());
        }
    }
}

/// The test as the cloud's side of one node.
pub struct Cloud {
    pub node: NodeName,
    link: Link,
    heard: watch::Receiver<BTreeMap<String, Vec<u8>>>,
    /// Some total was lower than before.
    pub went_back: Arc<AtomicBool>,
    revision: AtomicU64,
}

fn counted(payload: &[u8]) -> u64 {
    let report = decode::<StatusReport>(payload).ok();
    report.and_then(|report| report.output.task_info).map_or(0, |task| task.inference_number)
}

impl Cloud {
    pub fn of(agent: &Agent) -> Self {
        let mut options = LinkOptions::new(agent.mqtt_url.parse().unwrap(), unique("cloud"));
        options.subscriptions = vec![TopicPrefix::default().upstream_filter()];
        let (link, mut events) = Link::start(options).unwrap();
        let (sender, heard) = watch::channel(BTreeMap::new());
        let went_back = Arc::new(AtomicBool::new(false));
        let watcher = Arc::clone(&went_back);
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let (topic, payload) = match event {
                    LinkEvent::Message(message) => (message.topic, message.payload.to_vec()),
                    LinkEvent::Up => (UP.to_owned(), Vec::new()),
                    LinkEvent::Down { .. } => continue,
                };
                sender.send_modify(|heard| {
                    let total = counted(&payload);
                    let before = heard.insert(topic, payload).as_deref().map_or(0, counted);
                    // An object that is gone has counted nothing.
                    watcher.fetch_or(total > 0 && total < before, Ordering::Relaxed);
                });
            }
        });
        Self { node: agent.node.clone(), link, heard, went_back, revision: AtomicU64::new(1) }
    }

    /// Waits until nothing that is said can be missed.
    pub async fn listens(&self) {
        let mut heard = self.heard.clone();
        timeout(PATIENCE, heard.wait_for(|heard| heard.contains_key(UP))).await.unwrap().unwrap();
    }

    pub fn publish(&self, topic: &Topic, payload: Vec<u8>, retain: bool) {
        let topic = topic.under(&TopicPrefix::default());
        self.link.publish(Message { topic, payload: payload.into(), retain }).unwrap();
    }

    /// The next revision.
    pub fn revision(&self) -> Revision {
        Revision(self.revision.fetch_add(1, Ordering::Relaxed))
    }

    pub fn insert(&self, key: &str, content: &Value) -> IndexEntry {
        let key: ObjectKey = key.parse().unwrap();
        let mut object = json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {"namespace": key.namespace, "name": key.name, "uid": format!("uid-of-{}", key.name)},
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        let content: ObjectContent = serde_json::from_value(object).unwrap();
        let insert = Insert { revision: self.revision(), hash: content.hash(), content };
        self.publish(&Topic::Insert(self.node.clone(), key), encode(&insert), true);
        IndexEntry { revision: insert.revision, hash: insert.hash }
    }

    pub fn delete(&self, key: &str) {
        let key: ObjectKey = key.parse().unwrap();
        let delete = Delete { revision: self.revision() };
        self.publish(&Topic::Delete(self.node.clone(), key.clone()), encode(&delete), false);
        self.publish(&Topic::Insert(self.node.clone(), key), Vec::new(), true);
    }

    pub fn index(&self, objects: &[(&str, &IndexEntry)]) {
        let objects =
            objects.iter().map(|(key, listed)| (key.parse().unwrap(), (*listed).clone())).collect();
        let index = Index { revision: self.revision(), objects, ..Index::default() };
        self.publish(&Topic::Index(self.node.clone()), encode(&index), true);
    }

    /// Waits for a message on a topic.
    pub async fn hear<T>(&self, topic: &Topic, what: &str, fits: impl Fn(&[u8]) -> Option<T>) -> T {
        let topic = topic.under(&TopicPrefix::default());
        let mut heard = self.heard.clone();
        let waited = timeout(
            PATIENCE,
            heard
                .wait_for(|heard| heard.get(&topic).is_some_and(|payload| fits(payload).is_some())),
        );
        if let Ok(Some(value)) =
            waited.await.map(|heard| heard.ok().and_then(|heard| fits(&heard[&topic])))
        {
            value
        } else {
            let last = self
                .heard
                .borrow()
                .get(&topic)
                .map(|payload| String::from_utf8_lossy(payload).into_owned());
            panic!("{topic}: never {what}; the last was {last:?}")
        }
    }

    /// Waits for a status report that fits.
    pub async fn status(
        &self,
        key: &str,
        what: &str,
        fits: impl Fn(&StatusReport) -> bool,
    ) -> StatusReport {
        let topic = Topic::Status(self.node.clone(), key.parse().unwrap());
        self.hear(&topic, what, |payload| decode::<StatusReport>(payload).ok().filter(&fits)).await
    }

    pub async fn node(&self, what: &str, fits: impl Fn(&NodeReport) -> bool) -> NodeReport {
        self.hear(&Topic::Node(self.node.clone()), what, |payload| {
            decode(payload).ok().filter(&fits)
        })
        .await
    }
}

/// A worker on the local broker of an agent.
pub struct Voice {
    link: Link,
    topic: String,
}

impl Voice {
    pub fn of(agent: &Agent, worker: &str) -> Self {
        let url = format!("mqtt://127.0.0.1:{}", agent.local_port);
        let (link, _) =
            Link::start(LinkOptions::new(url.parse().unwrap(), unique("worker"))).unwrap();
        Self {
            link,
            topic: Topic::WorkerInfo(worker.parse().unwrap()).under(&TopicPrefix::default()),
        }
    }

    /// Says it, and waits until the broker has it.
    pub async fn say(&self, run: &str, inference: u64, hard: u64) {
        self.say_bytes(Self::info(run, inference, hard)).await;
    }

    /// Says it as soon as there is a broker. A newer word takes its place.
    pub fn mutter(&self, run: &str, inference: u64, hard: u64) {
        let payload = Self::info(run, inference, hard).into();
        self.link.publish(Message { topic: self.topic.clone(), payload, retain: false }).unwrap();
    }

    fn info(run: &str, inference: u64, hard: u64) -> Vec<u8> {
        let info = json!({
            "name": "w", "namespace": "default", "ownerName": "s", "ownerKind": "jointinferenceservice",
            "kind": "inference", "status": "running",
            "taskInfo": {
                "inferenceNumber": inference, "hardExampleNumber": hard, "uploadCloudRatio": 0.5,
                "startTime": run, "updateTime": "",
            },
        });
        info.to_string().into_bytes()
    }

    /// Says also what it found of models.
    pub async fn say_models(&self, run: &str, inference: u64, models: &Value) {
        let mut info: Value = serde_json::from_slice(&Self::info(run, inference, 0)).unwrap();
        info["output"] = json!({ "models": models });
        self.say_bytes(info.to_string().into_bytes()).await;
    }

    pub async fn say_bytes(&self, payload: Vec<u8>) {
        self.link
            .publish(Message { topic: self.topic.clone(), payload: payload.into(), retain: false })
            .unwrap();
        timeout(PATIENCE, self.link.flushed()).await.expect("the local broker takes it");
    }
}

/// What is said on one topic of the local broker of an agent, to who listens only now.
pub struct Ear {
    _link: Link,
    events: neptune_link::LinkEvents,
}

impl Ear {
    pub fn at(agent: &Agent, topic: &Topic) -> Self {
        let url = format!("mqtt://127.0.0.1:{}", agent.local_port);
        let mut options = LinkOptions::new(url.parse().unwrap(), unique("ear"));
        options.subscriptions = vec![topic.under(&TopicPrefix::default())];
        let (link, events) = Link::start(options).unwrap();
        Self { _link: link, events }
    }

    pub async fn next(&mut self) -> Vec<u8> {
        let waited = timeout(PATIENCE, async {
            loop {
                match self.events.next().await.unwrap() {
                    LinkEvent::Message(message) => return message.payload.to_vec(),
                    LinkEvent::Up | LinkEvent::Down { .. } => {}
                }
            }
        });
        waited.await.expect("nothing was said")
    }
}

/// Waits until a question about the outside is answered with yes. For what nobody announces.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "never {what}");
}

/// The content of a service with one edge worker that runs a shell command.
pub fn service(worker: &str, image: &str, script: &str) -> Value {
    json!({"workers": [{
        "name": worker, "role": "edge", "image": image, "model": "small",
        "command": ["/bin/sh", "-c"], "args": [script], "env": {"HEM_NAME": "IBT"},
        "resources": {"memoryBytes": 67_108_864, "cpuMillis": 500},
    }]})
}

/// Serves one file over http, which can be changed.
pub struct Files {
    pub url: String,
    content: watch::Sender<Vec<u8>>,
}

impl Files {
    pub async fn serve(content: &[u8]) -> Self {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/big.bin", listener.local_addr().unwrap());
        let (sender, content) = watch::channel(content.to_vec());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let body = content.borrow().clone();
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            }
        });
        Self { url, content: sender }
    }

    pub fn change(&self, content: &[u8]) {
        self.content.send_replace(content.to_vec());
    }
}

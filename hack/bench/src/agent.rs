//! The agent, with a real engine, a real broker and a controller that is real too.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use neptune_e2e::{Broker, Fleet, Process, Transport, is_running, program, run, totals, unique};
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::{Topic, TopicPrefix};
use serde_json::json;

use crate::figures::{Spread, cpu, mib, pss};

/// Measures and prints.
pub async fn measure(messages: u64, starts: u32) {
    alone().await;
    at_work(messages, starts).await;
}

/// An agent that has nothing to do.
async fn alone() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(dir.path()).await;
    let mut agents = Vec::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let node = unique("bench");
        let mut options = LinkOptions::new(broker.url().parse().unwrap(), format!("of-{node}"));
        let topic = Topic::Node(node.parse().unwrap());
        options.subscriptions = vec![topic.under(&TopicPrefix::default())];
        let (link, mut events) = Link::start(options).unwrap();
        while events.next().await.unwrap() != LinkEvent::Up {}
        let began = Instant::now();
        let agent = start(dir.path(), &node, &broker);
        while !matches!(events.next().await.unwrap(), LinkEvent::Message(_)) {}
        took.push(began.elapsed());
        agents.push((agent, link));
    }
    println!(
        "agent's start -> its birth heard            {}",
        took.into_iter().collect::<Spread>()
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut sizes: Vec<_> = agents.iter().map(|(agent, _)| pss(agent.id())).collect();
    sizes.sort_unstable();
    println!("agent, idle for a minute, median of 5       PSS {}", mib(sizes[2]));
}

fn start(dir: &Path, node: &str, broker: &Broker) -> Process {
    let mut command = Command::new(program("neptune-edge"));
    command
        .args(["run", "--node-name", node, "--mqtt-url", &broker.url(), "--local-broker"])
        .args([&broker.url(), "--data-dir"])
        .arg(dir.join(node));
    Process::start(node, dir, &mut command)
}

/// An image of one program that does nothing, for as long as this lives.
struct Image(String);

impl Image {
    fn import() -> Self {
        let name = format!("{}:1", unique("neptune-bench"));
        let entry =
            r#"ENTRYPOINT ["/bin/busybox", "sh", "-c", "trap exit TERM; sleep 100000 & wait"]"#;
        let script = format!("tar -C / -c bin/busybox | docker import -c '{entry}' - {name}");
        run(Command::new("sh").args(["-c", &script]));
        Self(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}

async fn at_work(messages: u64, starts: u32) {
    let image = Image::import();
    let fleet = Fleet::start(Transport::Mqtt).await;
    let model = fleet.dir().join("model.bin");
    fs::write(&model, "weights").unwrap();
    let url = model.to_str().unwrap();
    fleet.apply(&format!(
        "apiVersion: edgeai.io/v1alpha1
kind: Model
metadata: {{name: m}}
spec: {{modelUrl: {url}}}
"
    ));

    let plain: Spread = (0..starts)
        .map(|_| {
            let began = Instant::now();
            let id = run(Command::new("docker").args(["run", "-d", &image.0]));
            let took = began.elapsed();
            run(Command::new("docker").args(["rm", "-f", id.trim()]));
            took
        })
        .collect();
    println!("docker run -d, one container                {plain}");
    let mut took = Vec::new();
    for at in 0..starts {
        let name = format!("s-{at}");
        let began = Instant::now();
        fleet.apply(&service(&fleet, &name, &image.0));
        fleet.until(&name, "running", is_running).await;
        took.push(began.elapsed());
        if at + 1 < starts {
            fleet.kubectl(&["delete", "jis", &name]);
            fleet.no_containers().await;
        }
    }
    let took: Spread = took.into_iter().collect();
    println!(
        "kubectl apply -> both workers run in status {took} (it is written once a second at most)"
    );
    count(&fleet, &format!("s-{}", starts - 1), messages).await;
}

/// Says messages as the worker of a service, as fast as `mosquitto_pub` does.
async fn count(fleet: &Fleet, service: &str, messages: u64) {
    let topic = run(Command::new("docker").args([
        "ps",
        "--filter",
        &format!("label=io.neptune.node={}", fleet.edge),
        "--format",
        "{{.Names}}",
    ]));
    let worker = topic.trim().strip_prefix(&format!("neptune-{}-", fleet.edge)).unwrap().to_owned();
    let topic = Topic::WorkerInfo(worker.parse().unwrap()).under(&TopicPrefix::default());
    let agent = fleet.edge_agent();
    let (before, began) = (cpu(agent), Instant::now());
    let mut publisher = Command::new("mosquitto_pub")
        .args(["-p", &fleet.broker.port().to_string(), "-q", "1", "-l", "-t", &topic])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut lines, namespace) = (publisher.stdin.take().unwrap(), fleet.namespace.clone());
    let owner = service.to_owned();
    // At the end of its input mosquitto_pub would leave with what it has not sent yet: the pipe stays.
    let writer = std::thread::spawn(move || {
        for at in 1..=messages {
            let line = json!({"name": worker, "namespace": namespace, "ownerName": owner,
                "ownerKind": "jointinferenceservice", "kind": "inference", "status": "running",
                "taskInfo": {"inferenceNumber": at, "hardExampleNumber": 0, "uploadCloudRatio": 0,
                    "startTime": "1", "updateTime": ""}});
            writeln!(lines, "{line}").unwrap();
        }
        lines
    });
    fleet.until(service, "all counted", |status| totals(status).inference == messages).await;
    let (took, spent) =
        (began.elapsed().as_secs_f64(), cpu(agent).saturating_sub(before).as_secs_f64());
    drop(writer.join());
    publisher.wait().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "a rate to be read")]
    let rate = messages as f64 / took;
    println!(
        "worker's messages, QoS 1, counted           {rate:.0} a second, the agent had {:.2} cores",
        spent / took
    );
}

fn service(fleet: &Fleet, name: &str, image: &str) -> String {
    let spec = format!(
        "{{image: '{image}', frameworkType: container, frameworkVersion: '1', scriptDir: /, scriptBootFile: work}}"
    );
    format!(
        "apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata: {{name: {name}}}
spec:
  edgeWorker: {{name: edge, model: {{name: m}}, nodeName: {}, hardExampleAlgorithm: {{name: IBT}}, workerSpec: {spec}}}
  cloudWorker: {{name: cloud, model: {{name: m}}, nodeName: {}, workerSpec: {spec}}}
",
        fleet.edge, fleet.cloud
    )
}

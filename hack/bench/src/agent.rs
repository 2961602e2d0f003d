//! Measures the agent with a real container engine, a real broker and the real controller.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use neptune_e2e::{Fleet, Transport, idle, is_running, totals};
use neptune_harness::{
    Broker, MqttClient, Process,
    docker::{self, docker},
    programs, unique,
    workspace::program,
};
use neptune_wire::{Topic, TopicPrefix};
use serde_json::json;

use crate::figures::{Spread, cpu, mib, pss};

/// Measures the agent, and prints the results.
pub async fn measure(messages: u64, starts: u32) {
    idle().await;
    working(messages, starts).await;
}

/// Start time and memory of agents without workers.
async fn idle() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start().await;
    let mut agents = Vec::new();
    let mut took = Vec::new();
    for _ in 0..5 {
        let node = unique("bench");
        let topic = Topic::Node(node.parse().unwrap()).under(&TopicPrefix::default());
        let mut observer = MqttClient::connect(broker.port(), &[&topic]).await;
        let began = Instant::now();
        let agent = start(dir.path(), &node, &broker);
        observer.next().await;
        took.push(began.elapsed());
        agents.push(agent);
    }
    println!(
        "agent: start until its birth message        {}",
        took.into_iter().collect::<Spread>()
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut sizes: Vec<_> = agents.iter().map(|agent| pss(agent.id())).collect();
    sizes.sort_unstable();
    println!("agent: idle for a minute, median of 5       PSS {}", mib(sizes[2]));
}

fn start(dir: &Path, node: &str, broker: &Broker) -> Process {
    let mut command = programs::agent(&program("neptune-edge"), node, &dir.join(node));
    command.args(programs::mqtt(&broker.url())).args(["--local-broker", &broker.url()]);
    Process::start(node, dir, &mut command)
}

/// Start times of services, and the throughput of counters.
async fn working(messages: u64, starts: u32) {
    let image = idle::image();
    let fleet = Fleet::start(Transport::Mqtt).await;
    fleet.apply(&idle::model(&fleet).to_string());

    let plain: Spread = (0..starts)
        .map(|_| {
            let began = Instant::now();
            let id = docker(&["run", "-d", &image.0]);
            let took = began.elapsed();
            docker(&["rm", "-f", &id]);
            took
        })
        .collect();
    println!("docker run -d: one container                {plain}");
    let mut took = Vec::new();
    for at in 0..starts {
        let name = format!("s-{at}");
        let began = Instant::now();
        fleet.apply(&idle::service(&fleet, &name, &image.0).to_string());
        fleet.until(&name, "running", is_running).await;
        took.push(began.elapsed());
        if at + 1 < starts {
            fleet.kubectl(&["delete", "jis", &name]);
            fleet.no_containers().await;
        }
    }
    let took: Spread = took.into_iter().collect();
    println!("kubectl apply until both workers run        {took}");
    count(&fleet, &format!("s-{}", starts - 1), messages).await;
}

/// Publishes counters as the worker of a service, as fast as `mosquitto_pub` can.
async fn count(fleet: &Fleet, service: &str, messages: u64) {
    let filter = docker::node_filter(&fleet.edge);
    let name = docker(&["ps", "--filter", &filter, "--format", "{{.Names}}"]);
    let worker = name.strip_prefix(&format!("neptune-{}-", fleet.edge)).unwrap().to_owned();
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
    // At the end of its input mosquitto_pub exits without sending everything: the pipe stays open.
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
    fleet.until(service, "all counters", |status| totals(status).inference == messages).await;
    let (took, spent) =
        (began.elapsed().as_secs_f64(), cpu(agent).saturating_sub(before).as_secs_f64());
    drop(writer.join());
    publisher.wait().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "a rate for humans")]
    let rate = messages as f64 / took;
    println!(
        "agent: counters of a worker, QoS 1          {rate:.0} per second, {:.2} cores",
        spent / took
    );
}

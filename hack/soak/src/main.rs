//! Applies and deletes services at random moments, many times, and checks that nothing is left: no
//! container, no retained message, no memory. Run it with `hack/soak.sh`, which builds the programs.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed check ends the run

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use fastrand::Rng;
use futures::future::join_all;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use neptune_api::Model;
use neptune_e2e::{Fleet, Transport, idle};
use neptune_harness::{MqttClient, docker, memory_kib};

/// Services that exist at the same time. Each is created, deleted and created again.
const SLOTS: u32 = 8;
/// The longest time between creating and deleting a service: longer than its containers need to
/// start, so that deletions meet every step on the way.
const LONGEST_LIFE: Duration = Duration::from_millis(2500);
/// The longest time between deleting a service and creating the next one of the same name.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// Every container must be gone this long after the last deletion.
const SETTLED: Duration = Duration::from_secs(60);
/// Cycles before the first measurement of memory: caches are filled by then.
const WARM_UP: u32 = 50;

/// Applies and deletes services at random moments, and checks that nothing is left.
#[derive(Parser)]
struct Arguments {
    /// Number of services that are created and deleted, per transport.
    #[arg(long, default_value_t = 1000)]
    cycles: u32,
    /// The transport; both, one after the other, if omitted.
    #[arg(long)]
    transport: Option<TransportName>,
    /// Seed of the random delays, to repeat a run.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TransportName {
    Mqtt,
    Eventbus,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    let transports = arguments
        .transport
        .map_or(vec![TransportName::Mqtt, TransportName::Eventbus], |transport| vec![transport]);
    let mut problems = Vec::new();
    for transport in transports {
        let (name, transport) = match transport {
            TransportName::Mqtt => ("mqtt", Transport::Mqtt),
            TransportName::Eventbus => ("eventbus", Transport::EventBus),
        };
        println!("{name}: {} cycles of apply and delete, seed {seed}", arguments.cycles);
        problems.extend(soak(name, transport, arguments.cycles, seed).await);
    }
    for problem in &problems {
        println!("FAILED {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the cycles, and returns what is left afterwards.
async fn soak(name: &str, transport: Transport, cycles: u32, seed: u64) -> Vec<String> {
    let image = idle::image();
    let fleet = Fleet::start(transport).await;
    let models: Api<Model> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let model = serde_json::from_value(idle::model(&fleet)).unwrap();
    models.create(&PostParams::default(), &model).await.unwrap();
    let began = Instant::now();
    let done = AtomicU32::new(0);
    let warm = AtomicU64::new(0);
    let slots = (0..SLOTS).map(|slot| {
        let (fleet, image, done, warm) = (&fleet, &image.0, &done, &warm);
        async move {
            let mut random = Rng::with_seed(seed.wrapping_add(u64::from(slot)));
            while let Ok(before) = done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                (n < cycles).then_some(n + 1)
            }) {
                cycle(fleet, image, slot, &mut random).await;
                if before == WARM_UP {
                    warm.store(memory_kib(fleet.controller(), "VmRSS"), Ordering::Relaxed);
                }
                if (before + 1) % 100 == 0 {
                    println!("{name}: {} cycles, {} s", before + 1, began.elapsed().as_secs());
                }
            }
        }
    });
    join_all(slots).await;

    let last = Instant::now();
    let mut problems = Vec::new();
    let mut left = left(&fleet).await;
    while !left.is_empty() && last.elapsed() < SETTLED {
        tokio::time::sleep(Duration::from_millis(500)).await;
        left = self::left(&fleet).await;
    }
    println!("{name}: clean {:.1} s after the last deletion", last.elapsed().as_secs_f64());
    problems.extend(left.into_iter().map(|what| format!("{name}: {what}")));
    let (before, after) = (warm.load(Ordering::Relaxed), memory_kib(fleet.controller(), "VmRSS"));
    println!("{name}: controller RSS {before} KiB after {WARM_UP} cycles, {after} KiB at the end");
    // Per cycle an object with its history of a few KiB; a leak of 4 KiB per cycle is found.
    if after > before + 2048 + 4 * u64::from(cycles) {
        problems.push(format!("{name}: the controller's memory grew with the deleted services"));
    }
    problems
}

/// Creates a service, waits, deletes it, and waits.
async fn cycle(fleet: &Fleet, image: &str, slot: u32, random: &mut Rng) {
    let name = format!("soak-{slot}");
    let services = fleet.services();
    let service = serde_json::from_value(idle::service(fleet, &name, image)).unwrap();
    // Deletion is immediate, because services have no finalizers; so the name is free.
    services.create(&PostParams::default(), &service).await.unwrap();
    tokio::time::sleep(up_to(LONGEST_LIFE, random)).await;
    services.delete(&name, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(up_to(LONGEST_PAUSE, random)).await;
}

/// A random duration of at most `longest`.
fn up_to(longest: Duration, random: &mut Rng) -> Duration {
    longest.mul_f64(random.f64())
}

/// What is left of deleted services: containers, and retained messages on every broker.
async fn left(fleet: &Fleet) -> Vec<String> {
    let mut left = Vec::new();
    for node in [&fleet.edge, &fleet.cloud] {
        let containers = docker::node_containers(node);
        left.extend(containers.iter().map(|id| format!("container {id} of node {node}")));
    }
    for port in fleet.broker_ports() {
        for message in MqttClient::retained(port, "neptune/#").await {
            let payload = String::from_utf8_lossy(&message.payload);
            if message.topic.contains("/soak-") || payload.contains("/soak-") {
                left.push(format!("retained message at {}", message.topic));
            }
        }
    }
    left
}

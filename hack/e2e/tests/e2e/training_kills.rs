//! Kills during a training: the final weights have the same digest as without them.
//!
//! `hack/test-training-kills.sh` repeats this with more runs.

use std::time::Duration;

use fastrand::Rng;
use neptune_api::TrainingModelStatus;
use neptune_e2e::{Fleet, KillTarget, Transport};
use neptune_harness::{docker, docker::docker};

use crate::{
    digits::NAME,
    federated::{Federated, until_succeeded},
};

/// Kills of a run.
const KILLS: u32 = 20;
/// The longest time between two kills. A round takes one to two seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

over_each_transport!(kills_do_not_change_the_final_weights,);

/// What is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Fleet(KillTarget),
    Agent(usize),
    Aggregator,
    /// The training container of a node, if one runs.
    Container(usize),
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

async fn kills_do_not_change_the_final_weights(transport: Transport) {
    let seed = number("NEPTUNE_SEED", fastrand::u64(..1_000_000));
    let mut random = Rng::with_seed(seed);
    let mut fleet = Fleet::with_more_nodes(transport, 2).await;
    let undisturbed = {
        let _training = Federated::start(&fleet, "undisturbed", &[]).await;
        let digest = final_weights(&until_succeeded(&fleet).await);
        delete(&fleet).await;
        digest
    };
    for repetition in 1..=number("NEPTUNE_RUNS", 1) {
        let output = format!("killed-{repetition}");
        let mut training = Federated::start(&fleet, &output, &many_failures()).await;
        let mut killed = Vec::new();
        for _ in 0..KILLS {
            tokio::time::sleep(LONGEST_PAUSE.mul_f64(random.f64())).await;
            let victim = victim(transport, &mut random);
            kill(&mut fleet, &mut training, victim).await;
            killed.push(victim);
        }
        let status = until_succeeded(&fleet).await;
        println!("{transport:?} seed {seed} run {repetition}: {killed:?}");
        assert_eq!(final_weights(&status), undisturbed, "seed {seed}: {killed:?}: {status:#?}");
        let participants = status.history.iter().map(|round| round.participants);
        assert_eq!(participants.sum::<i64>(), 30, "seed {seed}: {status:#?}");
        delete(&fleet).await;
    }
}

/// A kill of a container counts as its failure.
fn many_failures() -> [(&'static str, &'static str); 1] {
    [("  output:", "  backoffLimit: 100\n  output:")]
}

fn victim(transport: Transport, random: &mut Rng) -> Victim {
    match random.u32(..6) {
        0 => Victim::Fleet(KillTarget::Controller),
        1 => Victim::Aggregator,
        2 if transport == Transport::EventBus => Victim::Fleet(KillTarget::KubeEdge),
        2 => Victim::Fleet(KillTarget::Broker),
        3 => Victim::Fleet(KillTarget::Agent),
        4 => Victim::Agent(random.usize(..2)),
        _ => Victim::Container(random.usize(..3)),
    }
}

async fn kill(fleet: &mut Fleet, training: &mut Federated, victim: Victim) {
    match victim {
        Victim::Fleet(target) => fleet.kill(target).await,
        Victim::Aggregator => training.aggregator.restart(),
        Victim::Agent(number) => {
            let node = fleet.other(number).to_owned();
            fleet.restart_agent(&node);
        }
        Victim::Container(number) => {
            let node = match number {
                0 => fleet.edge.clone(),
                other => fleet.other(other - 1).to_owned(),
            };
            // It may end by itself meanwhile.
            for container in docker::running_node_containers(&node) {
                let _ = docker::try_docker(&["kill", &container]);
            }
        }
    }
}

/// The digest of the weights after the last round.
fn final_weights(status: &TrainingModelStatus) -> String {
    let last = status.history.iter().max_by_key(|round| round.round).expect("closed rounds");
    assert_eq!(last.round, 10, "{status:#?}");
    last.sha256sum.clone()
}

/// Deletes the training, and waits until its nodes have nothing of it.
async fn delete(fleet: &Fleet) {
    fleet.kubectl(&["delete", "trainingmodel", NAME]);
    fleet.no_containers().await;
    let left = docker(&["ps", "-aq", "--filter", &docker::node_filter(&fleet.edge)]);
    assert_eq!(left, "", "containers of the training are left");
}

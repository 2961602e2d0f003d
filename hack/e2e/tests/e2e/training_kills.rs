//! Kills during a training: the final weights have the same digest as without them.
//!
//! `hack/test-training-kills.sh` repeats this with more runs.

use std::time::{Duration, Instant};

use fastrand::Rng;
use neptune_api::TrainingModelStatus;
use neptune_e2e::{Fleet, KillTarget, Transport};
use neptune_harness::{
    docker,
    docker::docker,
    environment::{number, seed},
    eventually,
};

use crate::{
    digits::NAME,
    federated::{Federated, until_succeeded},
};

/// Number of kills per run.
const KILLS: u32 = 20;
/// The longest time between two kills. A round takes one to two seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a kill waits for a training container of its node. A container runs for about a second
/// per round, so that a look at a random moment would often find none.
const CONTAINER_WAIT: Duration = Duration::from_secs(15);

over_each_transport!(kills_do_not_change_the_final_weights,);

/// The process or container that is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Fleet(KillTarget),
    Agent(usize),
    Aggregator,
    /// The next training container of a node.
    Container(usize),
}

async fn kills_do_not_change_the_final_weights(transport: Transport) {
    let seed = seed(fastrand::u64(..1_000_000));
    let mut random = Rng::with_seed(seed);
    let mut fleet = Fleet::with_more_nodes(transport, 2).await;
    let undisturbed = {
        let _training = Federated::start(&fleet, "undisturbed", &[]).await;
        let digest = final_weights(&until_succeeded(&fleet).await);
        delete(&fleet).await;
        digest
    };
    for repetition in 1..=number("NEPTUNE_RUNS").unwrap_or(1) {
        let output = format!("killed-{repetition}");
        let mut training = Federated::start(&fleet, &output, &many_failures()).await;
        let (mut killed, mut containers) = (Vec::new(), 0);
        for _ in 0..KILLS {
            tokio::time::sleep(LONGEST_PAUSE.mul_f64(random.f64())).await;
            let victim = victim(transport, &mut random);
            match victim {
                Victim::Container(number) => {
                    containers += u32::from(kill_container(&fleet, number).await);
                }
                _ => kill(&mut fleet, &mut training, victim).await,
            }
            killed.push(victim);
        }
        let status = until_succeeded(&fleet).await;
        println!(
            "{transport:?} seed {seed} run {repetition}: {containers} containers killed of {killed:?}"
        );
        let is_container = |victim: &&Victim| matches!(victim, Victim::Container(_));
        let chosen = killed.iter().filter(is_container).count();
        assert!(chosen == 0 || containers > 0, "seed {seed}: no container was killed: {killed:?}");
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
            kill_container(fleet, number).await;
        }
    }
}

/// Kills the next training container of a node. Returns whether one was killed: the run may be over,
/// or its round may wait for others.
async fn kill_container(fleet: &Fleet, number: usize) -> bool {
    let node = match number {
        0 => &fleet.edge,
        other => fleet.other(other - 1),
    };
    let start = Instant::now();
    while start.elapsed() < CONTAINER_WAIT {
        if let Some(container) = docker::running_training_container(node)
            // It may end by itself meanwhile.
            && docker::try_docker(&["kill", &container]).is_ok()
        {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

/// The digest of the weights after the last round.
pub fn final_weights(status: &TrainingModelStatus) -> String {
    let last = status.history.iter().max_by_key(|round| round.round).expect("closed rounds");
    assert_eq!(last.round, 10, "{status:#?}");
    last.sha256sum.clone()
}

/// Deletes the training, and waits until its nodes have nothing of it.
pub async fn delete(fleet: &Fleet) {
    fleet.kubectl(&["delete", "trainingmodel", NAME]);
    let nodes = [&fleet.edge, fleet.other(0), fleet.other(1)];
    eventually("all training containers to be removed", || {
        nodes.iter().all(|node| {
            docker(&["ps", "-aq", "--filter", &docker::training_filter(node)]).is_empty()
        })
    })
    .await;
}

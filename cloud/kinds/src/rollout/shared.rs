//! Properties of two rollouts that share a Model: it reaches a node after both granted it.

#![allow(clippy::unwrap_used)]
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{RolloutState, RolloutStatus};
use neptune_wire::NodeName;
use proptest::prelude::*;

use super::{
    memory::RolloutMemory,
    node::{Has, RolloutNode},
    policy::{Amount, Policy},
    rank::Rank,
    simulation::{APPLY, START},
    step::{Moment, step},
};
use crate::reason::Reason;

struct Service {
    uid: &'static str,
    policy: Policy,
    /// Whether its workers fail with the Model.
    fails: bool,
    memory: RolloutMemory,
    stored: RolloutStatus,
    ranks: Vec<Rank>,
}

/// Nodes that run the workers of both services.
struct Fleet {
    nodes: Vec<NodeName>,
    /// When each node has the Model.
    has_at: Vec<Option<i64>>,
    services: [Service; 2],
    now: i64,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl Service {
    fn new(uid: &'static str, max_unavailable: usize, fails: bool) -> Self {
        let policy = Policy {
            max_unavailable: Amount::Count(max_unavailable),
            pause_on_failure: Amount::Count(0),
            min_ready: SignedDuration::from_secs(3),
            deadline: SignedDuration::from_secs(60),
            is_paused: false,
            resumed_at: None,
        };
        let stored = RolloutStatus {
            revision: "before".to_owned(),
            state: RolloutState::Complete,
            frontier: Some(Rank::LAST.to_string()),
            ..RolloutStatus::default()
        };
        Self { uid, policy, fails, memory: RolloutMemory::default(), stored, ranks: Vec::new() }
    }

    fn is_paused(&self) -> bool {
        self.stored.state == RolloutState::Paused
    }
}

impl Fleet {
    fn new(size: usize, mut services: [Service; 2]) -> Self {
        let nodes = (0..size).map(|number| format!("shop-{number}").parse().unwrap());
        let nodes: Vec<NodeName> = nodes.collect();
        for service in &mut services {
            let rank = |node: &NodeName| Rank::new(false, service.uid, "r", node.as_str());
            service.ranks = nodes.iter().map(rank).collect();
        }
        Self { nodes, has_at: vec![None; size], services, now: 0 }
    }

    /// One second, with a step of each service.
    fn advance(&mut self) {
        self.now += 1;
        for service in 0..2 {
            self.step(service);
        }
        let [first, second] = &self.services;
        for (node, has_at) in self.nodes.iter().zip(&mut self.has_at) {
            let is_granted =
                first.memory.grant(node).is_some() && second.memory.grant(node).is_some();
            if is_granted && has_at.is_none() {
                *has_at = Some(self.now + APPLY);
            }
        }
    }

    fn step(&mut self, index: usize) {
        let now = self.now;
        let others: Vec<bool> = {
            let other = &self.services[1 - index].memory;
            self.nodes.iter().map(|node| other.grant(node).is_some()).collect()
        };
        let Service { policy, fails, memory, stored, ranks, .. } = &mut self.services[index];
        memory.begin("r");
        let mut views = Vec::new();
        let nodes = self.nodes.iter().zip(&*ranks);
        for (((node, rank), has_at), is_granted) in nodes.zip(&self.has_at).zip(others) {
            let has_at = has_at.filter(|has_at| *has_at <= now);
            let has_started = has_at.is_some_and(|since| since + START <= now);
            let has_new = has_at.is_some();
            let is_ready = !has_new || has_started && !*fails;
            let is_delayed = !has_new && !is_granted;
            let times = (at(now), policy.min_ready);
            views.push(RolloutNode {
                name: node.as_str(),
                rank: *rank,
                has: if has_new { Has::New } else { Has::Old },
                is_online: true,
                is_ready,
                ready_since: memory.observe(node, (true, is_ready && has_new), times),
                failure: (has_started && *fails).then_some(Reason::CrashLoopBackOff),
                is_deferred: false,
                is_delayed,
                grant: memory.observe_wait(node, is_delayed, at(now)),
            });
        }
        let moment = Moment { now: at(now), wall: at(now), is_settled: true };
        let next = step(policy, ("r", false), Some(stored), &views, moment);
        if next.status.state == RolloutState::Paused {
            let delayed = self.nodes.iter().zip(&views).filter(|(_, view)| view.is_delayed);
            memory.withdraw(&delayed.map(|(node, _)| node).collect::<Vec<_>>());
        }
        let grants = next.grants.into_iter().map(|(at, grant)| (self.nodes[at].clone(), grant));
        memory.add_grants("r", grants.collect());
        *stored = next.status;
    }

    /// The nodes that the Model takes down.
    fn in_flight(&self) -> usize {
        let has_settled = |has_at: i64| has_at + START + 3 <= self.now;
        self.has_at.iter().flatten().filter(|has_at| !has_settled(**has_at)).count()
    }

    fn reached(&self) -> usize {
        self.has_at.iter().flatten().count()
    }

    fn is_complete(&self) -> bool {
        self.services.iter().all(|service| service.stored.state == RolloutState::Complete)
            && self.reached() == self.nodes.len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn two_rollouts_of_one_model_never_wait_for_each_other(
        size in 1_usize..80,
        limits in [1_usize..12, 1_usize..12],
    ) {
        let mut fleet = Fleet::new(size, ["a", "b"].map(|uid| {
            Service::new(uid, limits[usize::from(uid == "b")], false)
        }));
        let longest = 40 + 20 * i64::try_from(size).unwrap();
        while !fleet.is_complete() {
            fleet.advance();
            prop_assert!(fleet.in_flight() <= limits[0] + limits[1], "{}", fleet.in_flight());
            prop_assert!(fleet.now < longest, "{:?}", fleet.services.map(|it| it.stored));
        }
    }

    #[test]
    fn failures_of_one_service_stop_the_shared_model_for_both(
        size in 1_usize..80,
        limits in [1_usize..12, 1_usize..12],
        failing in 0_usize..2,
    ) {
        let mut fleet = Fleet::new(size, ["a", "b"].map(|uid| {
            let index = usize::from(uid == "b");
            Service::new(uid, limits[index], index == failing)
        }));
        for _ in 0..200 {
            let (was_paused, before) = (fleet.services[failing].is_paused(), fleet.reached());
            fleet.advance();
            prop_assert!(!was_paused || fleet.reached() == before, "{} nodes", fleet.reached());
        }
        prop_assert!(fleet.services[failing].is_paused());
        // Nodes of the first wave of either.
        prop_assert!(fleet.reached() <= 2, "{} nodes", fleet.reached());
    }
}

//! Properties of rollouts over random fleets, failures, restarts and changes.

#![allow(clippy::unwrap_used)]
use k8s_openapi::jiff::SignedDuration;
use neptune_api::RolloutState;
use proptest::{collection::vec, prelude::*};

use super::{
    policy::{Amount, Policy},
    simulation::{APPLY, Event, Fleet, Node, START},
};

fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![(0_usize..20).prop_map(Amount::Count), (0_usize..40).prop_map(Amount::Percent)]
}

fn policies() -> impl Strategy<Value = Policy> {
    (amounts(), amounts(), 0_i64..20, 20_i64..120).prop_map(
        |(unavailable, failures, ready, late)| Policy {
            max_unavailable: unavailable,
            pause_on_failure: failures,
            min_ready: SignedDuration::from_secs(ready),
            deadline: SignedDuration::from_secs(ready + late),
            is_paused: false,
            resumed_at: None,
        },
    )
}

/// What does not change which revision is rolled out, or whether it may be.
fn incidents() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u8..20).prop_map(Event::Time),
        2 => any::<usize>().prop_map(Event::Leave),
        2 => any::<usize>().prop_map(Event::Return),
        1 => any::<bool>().prop_map(|after_store| Event::Restart { after_store }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => incidents(),
        1 => any::<usize>().prop_map(Event::Break),
        1 => any::<usize>().prop_map(Event::Repair),
        1 => any::<usize>().prop_map(Event::Wipe),
        1 => any::<usize>().prop_map(Event::Remove),
        1 => Just(Event::Add),
        1 => any::<bool>().prop_map(|is_bad| Event::Change { is_bad }),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn rollout_keeps_its_limits_and_completes_once_nodes_are_healthy(
        size in 1_usize..300,
        canaries in 0_usize..12,
        policy in policies(),
        events in vec(events(), 0..40),
    ) {
        let mut fleet = Fleet::new(size, canaries, policy);
        for event in events {
            fleet.event(event);
        }
        for node in fleet.nodes.values_mut() {
            (node.is_online, node.is_broken) = (true, false);
        }
        fleet.policy.is_paused = false;
        fleet.change(false);
        // The longest: one node after the other.
        for _ in 0..=fleet.nodes.len() + 4 {
            for seconds in [1, 1, APPLY, START, fleet.min_ready(), 1] {
                fleet.advance(seconds);
            }
        }
        prop_assert_eq!(fleet.state(), RolloutState::Complete, "{:?}", fleet.stored);
        let revision = fleet.revision();
        let has_new = |node: &Node| node.has.is_some_and(|(has, _)| has == revision);
        prop_assert!(fleet.nodes.values().all(has_new));
    }

    #[test]
    fn bad_revision_reaches_the_canaries_or_one_more_than_may_fail(
        size in 1_usize..300,
        canaries in 0_usize..12,
        policy in policies(),
        incidents in vec(incidents(), 0..40),
    ) {
        let mut fleet = Fleet::new(size, canaries, policy);
        *fleet.revisions.last_mut().unwrap() = true;
        let has_losses = !incidents.iter().all(|incident| matches!(incident, Event::Time(_)));
        for incident in incidents {
            fleet.event(incident);
        }
        fleet.wait(300);
        let allowed = fleet.policy.pause_on_failure.of_nodes(size);
        let limit = fleet.policy.limit(size);
        let most = if has_losses {
            // Canaries may return after other nodes failed.
            allowed + (canaries + 1).min(limit) + fleet.losses * limit
        } else {
            // Canaries fail as many at a time as may be down, and the others one after the other.
            canaries.min(limit * (allowed / limit + 1)).max(1 + allowed)
        };
        prop_assert!(fleet.reached() <= most, "{} of {most}", fleet.reached());
    }
}

#[test]
fn canaries_get_a_bad_revision_as_many_at_a_time_as_may_be_down() {
    let two = Amount::Count(2);
    let policy = Policy {
        max_unavailable: two,
        pause_on_failure: two,
        min_ready: SignedDuration::ZERO,
        ..defaults()
    };
    let mut fleet = Fleet::new(6, 6, policy);
    *fleet.revisions.last_mut().unwrap() = true;
    fleet.wait(60);
    // Two that fail are allowed, so two more get it.
    assert_eq!((fleet.reached(), fleet.state()), (4, RolloutState::Paused));
}

fn defaults() -> Policy {
    Policy::new(&neptune_api::Rollout::default(), None)
}

#[test]
fn bad_version_on_3000_nodes_meets_one_node_or_ten_canaries() {
    for (canaries, reached) in [(0, 1), (10, 10)] {
        let mut fleet = Fleet::new(3000, canaries, defaults());
        *fleet.revisions.last_mut().unwrap() = true;
        fleet.wait(60);
        assert_eq!((fleet.reached(), fleet.state()), (reached, RolloutState::Paused));
        let status = fleet.stored.as_ref().unwrap();
        assert_eq!(status.reason.as_deref(), Some("RolloutFailed"));
        assert_eq!((status.total, status.failed), (3000, i32::try_from(reached).unwrap()));
    }
}

#[test]
fn waves_double_until_the_limit_and_offline_nodes_do_not_block() {
    let mut fleet = Fleet::new(3000, 0, defaults());
    for key in 0..600 {
        fleet.nodes.get_mut(&key).unwrap().is_online = false;
    }
    let mut waves = Vec::new();
    let mut before = 0;
    for _ in 0..1_000 {
        fleet.wait(1);
        let reached = fleet.reached();
        if reached > before {
            waves.push(reached - before);
            before = reached;
        }
        if fleet.state() == RolloutState::Complete {
            break;
        }
    }
    assert_eq!(fleet.state(), RolloutState::Complete);
    assert_eq!(waves[..9], [1, 1, 2, 4, 8, 16, 32, 64, 128]);
    assert_eq!((waves.iter().max(), before), (Some(&300), 2400));
    for key in 0..600 {
        fleet.nodes.get_mut(&key).unwrap().is_online = true;
    }
    fleet.wait(1);
    assert_eq!(fleet.in_flight(), 300, "nodes that return follow as fast as the others");
    fleet.wait(100);
    assert_eq!(fleet.reached(), 3000);
}

#[test]
fn resume_forgives_what_failed_and_a_correction_reaches_all() {
    let mut fleet = Fleet::new(20, 0, defaults());
    *fleet.revisions.last_mut().unwrap() = true;
    fleet.wait(60);
    assert_eq!((fleet.reached(), fleet.state()), (1, RolloutState::Paused));
    fleet.event(Event::Resume);
    fleet.wait(60);
    let status = fleet.stored.clone().unwrap();
    assert_eq!((fleet.reached(), status.state, status.forgiven), (2, RolloutState::Paused, 1));
    fleet.change(false);
    fleet.wait(600);
    let status = fleet.stored.clone().unwrap();
    assert_eq!((status.state, status.ready, status.forgiven), (RolloutState::Complete, 20, 0));
    assert_eq!(status.summary, "20/20");
}

#[test]
fn first_placement_needs_no_waves() {
    let mut fleet = Fleet::new(50, 0, defaults());
    fleet.stored = None;
    for node in fleet.nodes.values_mut() {
        node.has = None;
    }
    fleet.step(true);
    assert_eq!(fleet.state(), RolloutState::Complete);
    fleet.wait(APPLY + START + 2);
    assert!(fleet.nodes.values().all(|node| fleet.is_ready(node)));
}

//! Requested restarts of workers in the plan.

use neptune_wire::RestartTime;
use proptest::prelude::*;

use super::*;
use crate::domain::worker_count::FinishedRun;

fn time(number: u32) -> RestartTime {
    format!("2026-11-24T06:00:{number:02}.000Z").parse().unwrap()
}

/// What happens to a node between two plans.
#[derive(Debug, Clone)]
enum Event {
    /// A message with this request arrives, which may be an earlier one or none.
    Request(Option<u32>),
    AgentRestarts,
    /// The worker ends, and is not to run again.
    Finishes,
    /// The container of a finished worker is removed by another program.
    Cleaned,
    /// Another image is wanted.
    Updated,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop::option::of(0..6_u32).prop_map(Event::Request),
        1 => Just(Event::AgentRestarts),
        1 => Just(Event::Finishes),
        1 => Just(Event::Cleaned),
        1 => Just(Event::Updated),
    ]
}

/// A node whose steps are executed at once.
struct Simulation {
    node: Node,
    now: Instant,
    starts: usize,
}

impl Simulation {
    fn new() -> Self {
        let mut simulation = Self { node: node(), now: Instant::now(), starts: 0 };
        simulation.converge();
        simulation
    }

    fn worker(&mut self) -> &mut neptune_wire::Worker {
        &mut self.node.desired.workers.get_mut(&name()).unwrap().worker
    }

    /// Executes steps until there are none.
    fn converge(&mut self) {
        for _ in 0..5 {
            let plan = self.node.plan(self.now);
            if plan.steps.is_empty() {
                return;
            }
            for step in plan.steps {
                let Step::Start { identity, remove, .. } = step else { unreachable!("{step:?}") };
                self.starts += 1;
                let kept = self.node.containers.drain(..).filter(|it| !remove.contains(&it.id));
                let mut containers: Vec<_> = kept.collect();
                let id = self.starts.to_string();
                let running = observed(&id, ContainerState::Running);
                containers.push(ObservedContainer { identity, ..running });
                self.node.counts.set_finished(
                    &wanted_worker().owner,
                    (&wanted_worker().uid, &name()),
                    None,
                );
                self.node.observe(containers, self.now);
            }
        }
        unreachable!("the worker is started again and again");
    }

    fn finish(&mut self) {
        let Some(mut container) = self.node.containers.pop() else { return };
        container.state = ended(0);
        let run = FinishedRun {
            spec_hash: container.identity.spec_hash.clone(),
            restarted_at: container.identity.restarted_at.clone(),
            is_completed: true,
            message: String::new(),
        };
        let wanted = wanted_worker();
        self.node.counts.set_finished(&wanted.owner, (&wanted.uid, &name()), Some(run));
        self.node.containers.push(container);
    }
}

/// Checks that the worker is started for each later request once, and for each update.
fn check(events: &[Event]) -> Result<(), TestCaseError> {
    let mut simulation = Simulation::new();
    let (mut expected, mut latest, mut images) = (1, None, 0);
    for event in events {
        match event {
            Event::Request(requested) => {
                expected += usize::from(*requested > latest);
                latest = latest.max(*requested);
                simulation.worker().restarted_at = requested.map(time);
            }
            Event::AgentRestarts => simulation.node.attempts.clear(),
            Event::Finishes => simulation.finish(),
            Event::Cleaned => simulation.node.containers.retain(ObservedContainer::is_alive),
            Event::Updated => {
                images += 1;
                expected += 1;
                simulation.worker().program.image = format!("i:{images}");
            }
        }
        simulation.converge();
        prop_assert_eq!(simulation.starts, expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_later_request_restarts_the_worker_once(events in prop::collection::vec(event(), 1..24)) {
        check(&events)?;
    }
}

#[test]
fn withdrawn_request_is_known_although_its_container_is_gone() {
    use Event::{Cleaned, Finishes, Request, Updated};
    check(&[Request(Some(0)), Finishes, Request(None), Cleaned, Updated, Request(Some(0))])
        .unwrap();
}

#[test]
fn container_of_an_earlier_agent_is_restarted_only_by_a_request() {
    let (mut node, now) = (node(), Instant::now());
    node.observe(vec![observed("1", ContainerState::Running)], now);
    assert_eq!(node.plan(now).steps, [], "an upgrade restarts nothing");
    let worker = &mut node.desired.workers.get_mut(&name()).unwrap().worker;
    worker.restarted_at = Some(time(1));
    let plan = node.plan(now);
    assert_eq!((starts(&plan), removed(&plan)), (true, vec!["1"]));
}

#[test]
fn restart_does_not_wait_for_the_backoff() {
    let (mut node, now) = (node(), Instant::now());
    node.attempts().set_target(&hash(), None);
    node.attempts().done(refused(), None, 1, now, 0);
    assert!(!starts(&node.plan(now)));
    node.attempts().set_target(&hash(), Some(&time(2)));
    assert!(starts(&node.plan(now)));
    node.attempts().done(refused(), None, 1, now, 0);
    for earlier in [Some(time(2)), Some(time(1)), None] {
        node.attempts().set_target(&hash(), earlier.as_ref());
        assert!(!starts(&node.plan(now)), "{earlier:?} is no other request");
    }
}

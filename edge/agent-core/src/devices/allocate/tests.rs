//! Examples of the allocation, and its invariant over random histories of two agents on one engine.
#![allow(clippy::unwrap_used)]

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::domain::device::{Rival, yields};

const CAMERA: &str = "neptune.io/camera";

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn worker(name: &str) -> WorkerName {
    name.parse().unwrap()
}

fn owner(name: &str) -> ObjectKey {
    format!("default/jointinferenceservices/{name}").parse().unwrap()
}

fn unit(name: &str, resource: &str, is_present: bool) -> OfferedUnit {
    let unit = DeviceUnit {
        name: name.to_owned(),
        resource: resource.to_owned(),
        identity: String::new(),
        parts: Vec::new(),
    };
    let unit = if is_present { Ok(unit) } else { Err(format!("/dev/{name}")) };
    OfferedUnit { name: name.to_owned(), resource: resource.to_owned(), unit }
}

fn cameras(names: &[&str]) -> Vec<OfferedUnit> {
    names.iter().map(|name| unit(name, CAMERA, true)).collect()
}

fn holder(at: &str, name: &str, units: &[&str], has_ended: bool) -> DeviceHolder {
    DeviceHolder {
        id: format!("{at}-{name}"),
        node: at.to_owned(),
        worker: Some(worker(name)),
        task: None,
        owner: Some(owner(name)),
        units: units.iter().map(|unit| (*unit).to_owned()).collect(),
        has_ended,
    }
}

/// Workers with the number of cameras that each requests, in the order in which they wait.
struct Workers(Vec<(WorkerName, ObjectKey, DeviceRequests, Option<u64>)>);

impl Workers {
    fn new(requests: &[(&str, u32)]) -> Self {
        let one = |(place, (name, number)): (usize, &(&str, u32))| {
            let requests = [(CAMERA.to_owned(), *number)].into();
            (worker(name), owner(name), requests, Some(place as u64))
        };
        Self(requests.iter().enumerate().map(one).collect())
    }

    fn wanted(&self) -> Vec<WantedDevices<'_>> {
        let workers = self.0.iter();
        let wanted = workers.map(|(worker, owner, requests, place)| WantedDevices {
            worker,
            owner,
            requests,
            place: *place,
        });
        wanted.collect()
    }
}

/// The units of each worker as text; without units the kind of the shortage.
fn allocated(
    units: &[OfferedUnit],
    requests: &[(&str, u32)],
    containers: &[DeviceHolder],
    in_flight: &[InFlight],
) -> Vec<String> {
    let workers = Workers::new(requests);
    let wanted = workers.wanted();
    let allocation = allocate(units, &wanted, containers, in_flight, &node("edge0"));
    let text = |(worker, result): (&WorkerName, &Result<Vec<DeviceUnit>, Shortage>)| match result {
        Ok(units) => {
            let names: Vec<&str> = units.iter().map(|unit| unit.name.as_str()).collect();
            format!("{worker}: {}", names.join("+"))
        }
        Err(Shortage::TooFew { .. }) => format!("{worker}: too few"),
        Err(Shortage::Missing { path, .. }) => format!("{worker}: missing {path}"),
        Err(Shortage::Busy { in_use, present, by, .. }) => {
            let by: Vec<&str> = by.iter().flatten().map(|key| key.name.as_str()).collect();
            format!("{worker}: busy {in_use} of {present}: {}", by.join("+"))
        }
    };
    allocation.iter().map(text).collect()
}

#[test]
fn units_are_given_in_the_order_of_flags_and_of_waiting() {
    let units = cameras(&["b", "a"]);
    assert_eq!(allocated(&units, &[("y", 1), ("x", 1)], &[], &[]), ["x: a", "y: b"]);
    let third = allocated(&units, &[("y", 1), ("x", 1), ("w", 1)], &[], &[]);
    assert_eq!(third, ["w: busy 2 of 2: x+y", "x: a", "y: b"]);
}

#[test]
fn worker_gets_all_that_it_requests_or_nothing() {
    let units = cameras(&["a", "b"]);
    let running = [holder("edge0", "z", &["a"], false)];
    let requests = [("z", 1), ("x", 2), ("y", 1)];
    let expected = ["x: busy 1 of 2: z", "y: b", "z: a"];
    assert_eq!(allocated(&units, &requests, &running, &[]), expected);
    let mut both = cameras(&["a"]);
    both.push(unit("gpu", "nvidia.com/gpu", true));
    let mut workers = Workers::new(&[("x", 1), ("y", 1)]);
    workers.0[0].2.insert("nvidia.com/gpu".to_owned(), 2);
    let allocation = allocate(&both, &workers.wanted(), &[], &[], &node("edge0"));
    assert!(matches!(allocation[&worker("x")], Err(Shortage::TooFew { .. })));
    assert_eq!(allocation[&worker("y")].as_ref().unwrap().len(), 1, "x keeps nothing back");
}

#[test]
fn worker_keeps_the_units_of_its_own_container_also_after_a_reboot() {
    let units = cameras(&["a", "b"]);
    for has_ended in [false, true] {
        let containers = [holder("edge0", "y", &["b"], has_ended)];
        let kept = allocated(&units, &[("x", 1), ("y", 1)], &containers, &[]);
        assert_eq!(kept, ["x: a", "y: b"]);
        let only = allocated(&units[1..], &[("x", 1), ("y", 1)], &containers, &[]);
        assert_eq!(only, ["x: busy 1 of 1: y", "y: b"]);
    }
    // It is finished or not wanted any more: its ended container has nothing.
    let ended = [holder("edge0", "y", &["b"], true)];
    assert_eq!(allocated(&units[1..], &[("x", 1)], &ended, &[]), ["x: b"]);
    let removing = [holder("edge0", "y", &["b"], false)];
    assert_eq!(allocated(&units[1..], &[("x", 1)], &removing, &[]), ["x: busy 1 of 1: y"]);
}

#[test]
fn containers_of_other_agents_and_steps_in_flight_have_their_units() {
    let units = cameras(&["a", "b"]);
    let foreign = [holder("edge1", "x", &["a"], false)];
    assert_eq!(allocated(&units, &[("x", 1)], &foreign, &[]), ["x: b"], "another node's x");
    let ended = [holder("edge1", "x", &["a"], true)];
    assert_eq!(allocated(&units, &[("x", 1)], &ended, &[]), ["x: a"]);
    let task =
        InFlight { worker: None, owner: Some(owner("t")), units: vec!["a".into(), "b".into()] };
    let busy = allocated(&units, &[("x", 1)], &[], &[task]);
    assert_eq!(busy, ["x: busy 2 of 2: t"]);
    let step = InFlight { worker: Some(worker("x")), owner: None, units: vec!["b".into()] };
    assert_eq!(allocated(&units, &[("w", 1), ("x", 1)], &[], &[step]), ["w: a", "x: b"]);
}

#[test]
fn running_worker_is_not_evicted_by_an_ended_container_with_its_unit() {
    let units = cameras(&["a"]);
    // It was finished when y got the unit, and is wanted again.
    let containers = [holder("edge0", "x", &["a"], true), holder("edge0", "y", &["a"], false)];
    let kept = allocated(&units, &[("x", 1), ("y", 1)], &containers, &[]);
    assert_eq!(kept, ["x: busy 1 of 1: y", "y: a"]);
}

#[test]
fn absent_unit_is_named_and_another_one_is_as_good() {
    let units = [unit("a", CAMERA, false), unit("b", CAMERA, true)];
    let before = [holder("edge0", "x", &["a"], false)];
    assert_eq!(allocated(&units, &[("x", 1)], &before, &[]), ["x: b"]);
    assert_eq!(allocated(&units[..1], &[("x", 1)], &before, &[]), ["x: missing /dev/a"]);
    assert_eq!(allocated(&units, &[("x", 2)], &before, &[]), ["x: missing /dev/a"]);
    assert_eq!(allocated(&units, &[("x", 3)], &before, &[]), ["x: too few"]);
    assert_eq!(allocated(&[], &[("x", 1)], &before, &[]), ["x: too few"]);
}

/// A container of the simulated engine.
#[derive(Debug, Clone)]
struct Container {
    id: u32,
    agent: usize,
    worker: usize,
    units: Vec<String>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Created,
    Running,
    Exited,
}

/// A step of an agent: the container before is removed, then one is created, then started.
#[derive(Debug, Clone)]
enum Step {
    Create(Vec<String>),
    Start(u32, Vec<String>),
}

const AGENTS: usize = 2;
const WORKERS: usize = 3;
const UNITS: usize = 3;

#[derive(Debug, Default, Clone)]
struct Agent {
    seen: Option<Vec<Container>>,
    steps: BTreeMap<usize, Step>,
    /// Steps that ended after the last observation, with their units.
    unseen: BTreeMap<usize, Vec<String>>,
    places: BTreeMap<usize, u64>,
    next_place: u64,
    wanted: [u32; WORKERS],
}

#[derive(Debug, Default)]
struct World {
    containers: Vec<Container>,
    next_id: u32,
    present: [bool; UNITS],
    agents: [Agent; AGENTS],
}

fn worker_name(worker_index: usize) -> WorkerName {
    worker(&format!("w{worker_index}"))
}

fn agent_node(agent: usize) -> String {
    format!("edge{agent}")
}

impl World {
    fn units(&self) -> Vec<OfferedUnit> {
        let present = self.present.iter().enumerate();
        present.map(|(at, present)| unit(&format!("u{at}"), CAMERA, *present)).collect()
    }

    fn allocate(&self, at: usize) -> Option<(Allocation, Vec<usize>)> {
        let agent = &self.agents[at];
        let holders: Vec<DeviceHolder> = agent
            .seen
            .as_ref()?
            .iter()
            .map(|it| {
                let units: Vec<&str> = it.units.iter().map(String::as_str).collect();
                let name = worker_name(it.worker).to_string();
                holder(&agent_node(it.agent), &name, &units, it.state == State::Exited)
            })
            .collect();
        let steps = agent.steps.iter().map(|(worker, step)| match step {
            Step::Create(units) | Step::Start(_, units) => (*worker, units.clone()),
        });
        let unseen = agent.unseen.iter().map(|(worker, units)| (*worker, units.clone()));
        let in_flight: Vec<InFlight> = steps
            .chain(unseen)
            .map(|(worker, units)| InFlight {
                worker: Some(worker_name(worker)),
                owner: None,
                units,
            })
            .collect();
        let wanted = (0..WORKERS).filter(|worker| agent.wanted[*worker] > 0);
        let values: Vec<_> = wanted
            .map(|it| {
                let requests: DeviceRequests = [(CAMERA.to_owned(), agent.wanted[it])].into();
                (worker_name(it), owner("s"), requests, agent.places.get(&it).copied(), it)
            })
            .collect();
        let wanted: Vec<_> = values
            .iter()
            .map(|(worker, owner, requests, place, _)| WantedDevices {
                worker,
                owner,
                requests,
                place: *place,
            })
            .collect();
        let node = node(&agent_node(at));
        let allocation = allocate(&self.units(), &wanted, &holders, &in_flight, &node);
        Some((allocation, values.iter().map(|it| it.4).collect()))
    }

    /// Plans as the agent does: begins steps of workers whose last step was observed.
    fn plan(&mut self, at: usize) {
        let Some((allocation, wanted)) = self.allocate(at) else { return };
        let seen = self.agents[at].seen.clone().unwrap_or_default();
        let mut removed = Vec::new();
        let agent = &mut self.agents[at];
        let is_settled = |agent: &Agent, worker| {
            !agent.steps.contains_key(&worker) && !agent.unseen.contains_key(&worker)
        };
        for index in 0..WORKERS {
            if !is_settled(agent, index) {
                continue;
            }
            let own = seen.iter().filter(|it| it.agent == at && it.worker == index);
            let names = |units: &[DeviceUnit]| -> Vec<String> {
                units.iter().map(|unit| unit.name.clone()).collect()
            };
            match wanted.contains(&index).then(|| &allocation[&worker_name(index)]) {
                Some(Ok(units)) => {
                    agent.places.remove(&index);
                    let units = names(units);
                    let runs =
                        own.clone().any(|it| it.state == State::Running && it.units == units);
                    if !runs {
                        agent.steps.insert(index, Step::Create(units));
                    }
                    continue;
                }
                Some(Err(_)) => {
                    let next = agent.next_place;
                    agent.places.entry(index).or_insert(next);
                    agent.next_place += 1;
                }
                None => {
                    agent.places.remove(&index);
                }
            }
            removed.extend(own.map(|it| it.id));
        }
        self.containers.retain(|it| !removed.contains(&it.id));
    }

    /// Executes the next part of a step of this worker.
    fn advance(&mut self, at: usize, index: usize) {
        let Some(step) = self.agents[at].steps.remove(&index) else { return };
        match step {
            Step::Create(units) => {
                self.containers.retain(|it| (it.agent, it.worker) != (at, index));
                self.next_id += 1;
                let (id, state) = (self.next_id, State::Created);
                let container =
                    Container { id, agent: at, worker: index, units: units.clone(), state };
                self.containers.push(container);
                self.agents[at].steps.insert(index, Step::Start(id, units));
            }
            Step::Start(id, units) => {
                let rivals: Vec<Rival> = self
                    .containers
                    .iter()
                    .filter(|it| it.id != id && it.state != State::Exited)
                    .filter(|it| it.units.iter().any(|unit| units.contains(unit)))
                    .map(|it| Rival {
                        id: it.id.to_string(),
                        has_started: it.state == State::Running,
                        created: it.id.into(),
                    })
                    .collect();
                if yields(&id.to_string(), id.into(), &rivals) {
                    self.containers.retain(|it| it.id != id);
                } else if let Some(own) = self.containers.iter_mut().find(|it| it.id == id) {
                    own.state = State::Running;
                }
                self.agents[at].unseen.insert(index, units);
            }
        }
    }

    fn observe(&mut self, at: usize) {
        self.agents[at].seen = Some(self.containers.clone());
        self.agents[at].unseen.clear();
    }

    fn apply(&mut self, event: (u8, usize, usize, u32)) {
        let (kind, at, index, number) = event;
        match kind {
            0 => self.observe(at),
            1 => self.plan(at),
            2 | 3 => self.advance(at, index),
            4 => {
                let running = self.containers.iter_mut().filter(|it| it.state == State::Running);
                if let Some(container) = running.skip(index).step_by(1).next() {
                    container.state = State::Exited;
                }
            }
            5 => {
                // The agent is killed. Its places are lost, and what it began stays half done.
                let wanted = self.agents[at].wanted;
                self.agents[at] = Agent { wanted, ..Agent::default() };
            }
            6 => self.present[index] = !self.present[index],
            _ => self.agents[at].wanted[index] = number,
        }
    }

    fn settle(&mut self) {
        for _ in 0..30 {
            for at in 0..AGENTS {
                self.observe(at);
                self.plan(at);
                for index in 0..WORKERS {
                    self.advance(at, index);
                    self.advance(at, index);
                }
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|it| it.state == State::Running)
    }
}

fn events() -> impl Strategy<Value = Vec<(u8, usize, usize, u32)>> {
    let event = (0..8u8, 0..AGENTS, 0..WORKERS, 0..3u32);
    proptest::collection::vec(event, 1..80)
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]

    /// After any events of agents, containers and devices no unit is in two started containers. In the
    /// end, no worker waits that could start.
    #[test]
    fn unit_is_never_in_two_started_containers(events in events(), present in any::<[bool; UNITS]>()) {
        let mut world = World { present, ..World::default() };
        for event in events {
            world.apply(event);
            let mut used = BTreeSet::new();
            for container in world.running() {
                for unit in &container.units {
                    prop_assert!(used.insert(unit.clone()), "{unit} twice: {world:?}");
                }
            }
        }
        world.settle();
        let used: usize = world.running().map(|it| it.units.len()).sum();
        let free = world.present.iter().filter(|present| **present).count().saturating_sub(used);
        for at in 0..AGENTS {
            for (index, wanted) in world.agents[at].wanted.iter().enumerate() {
                let own: Vec<_> = world.running().filter(|it| (it.agent, it.worker) == (at, index)).collect();
                let number = usize::try_from(*wanted).unwrap();
                prop_assert!(own.len() <= 1);
                match own.first() {
                    Some(own) => prop_assert_eq!(own.units.len(), number),
                    None => prop_assert!(number == 0 || number > free, "w{} of {}: {:?}", index, at, world),
                }
            }
        }
    }

    /// Of those that wait, nobody gets units that an earlier one needs.
    #[test]
    fn earlier_one_of_those_that_wait_is_served_first(requests in proptest::collection::vec(1..3u32, 1..6), units in 1..6usize) {
        let names: Vec<String> = (0..requests.len()).rev().map(|at| format!("w{at}")).collect();
        let requests: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(requests).collect();
        let unit_names: Vec<String> = (0..units).map(|at| format!("u{at}")).collect();
        let offered = cameras(&unit_names.iter().map(String::as_str).collect::<Vec<_>>());
        let workers = Workers::new(&requests);
        let allocation = allocate(&offered, &workers.wanted(), &[], &[], &node("edge0"));
        let mut free = units;
        for (name, number) in requests {
            let number = usize::try_from(number).unwrap();
            let is_served = allocation[&worker(name)].is_ok();
            prop_assert_eq!(is_served, number <= free);
            free -= if is_served { number } else { 0 };
        }
    }
}

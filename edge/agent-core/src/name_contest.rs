//! Detects another agent that runs workers of this node on the same container engine, and decides
//! how long to leave the containers to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_wire::WorkerName;

use crate::{backoff::YIELD_CONTAINERS, domain::observed_container::ObservedContainer};

/// How long a contest is reported after the last foreign container.
const REPORTED_FOR: Duration = Duration::from_secs(10 * 60);

/// The containers that this agent knows, and the contest about their names.
#[derive(Debug, Default)]
pub struct NameContest {
    /// The IDs of the containers of the first observation, which an earlier agent left, and of
    /// those that this agent started; `None` before the first observation.
    known: Option<BTreeSet<String>>,
    /// The containers that this agent started, with the number of the first observation that
    /// includes them.
    started: BTreeMap<String, u64>,
    /// The workers whose last step failed: a container of theirs may exist all the same.
    failed: BTreeSet<WorkerName>,
    detections: u32,
    last: Option<Instant>,
    yield_until: Option<Instant>,
}

impl NameContest {
    /// This agent started a container. `seq`: the first observation that includes it.
    pub fn started(&mut self, worker: &WorkerName, id: &str, seq: u64) {
        self.failed.remove(worker);
        self.started.insert(id.to_owned(), seq);
    }

    /// A step of this agent failed. The engine may have created a container before.
    pub fn step_failed(&mut self, worker: &WorkerName) {
        self.failed.insert(worker.clone());
    }

    /// Records the observation of this number. `may_appear`: whether this agent may have created a
    /// container of a worker without knowing its ID yet.
    pub fn observe(
        &mut self,
        (seq, containers): (u64, &[ObservedContainer]),
        may_appear: impl Fn(&WorkerName) -> bool,
        now: Instant,
        random: u64,
    ) {
        let present = || containers.iter().map(|container| container.id.clone());
        self.started.retain(|id, since| seq < *since || containers.iter().any(|it| it.id == *id));
        let Some(known) = &mut self.known else {
            self.known = Some(present().collect());
            return;
        };
        let is_foreign = |container: &&ObservedContainer| {
            let ObservedContainer { id, identity, .. } = container;
            container.is_alive()
                && !known.contains(id)
                && !self.started.contains_key(id)
                && !self.failed.contains(&identity.worker)
                && !may_appear(&identity.worker)
        };
        let has_foreign = containers.iter().any(|container| is_foreign(&container));
        *known = present().filter(|id| !self.started.contains_key(id)).collect();
        if self.last.is_some_and(|last| now - last > REPORTED_FOR) {
            (self.detections, self.last) = (0, None);
        }
        if has_foreign {
            self.detections += 1;
            self.last = Some(now);
            self.yield_until = Some(now + YIELD_CONTAINERS.delay(self.detections, random));
        }
    }

    /// Returns the time until which to leave the containers to the other agent; `None` if that is
    /// over.
    pub fn yield_until(&self, now: Instant) -> Option<Instant> {
        self.yield_until.filter(|at| *at > now)
    }

    /// Whether another agent runs workers of this node.
    pub fn is_detected(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now - last <= REPORTED_FOR)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use crate::fixtures::observed_container;

    use super::*;

    fn container(id: &str) -> ObservedContainer {
        observed_container(id)
    }

    #[test]
    fn own_and_earlier_containers_are_no_contest() {
        let (mut contest, now) = (NameContest::default(), Instant::now());
        let worker = container("").identity.worker;
        let observe = |contest: &mut NameContest, seq, ids: &[&str], may_appear: bool| {
            let containers: Vec<_> = ids.iter().map(|id| container(id)).collect();
            contest.observe((seq, &containers), |_| may_appear, now, 0);
            assert!(!contest.is_detected(now) && contest.yield_until(now).is_none(), "{ids:?}");
        };
        observe(&mut contest, 1, &["earlier"], false);
        contest.started(&worker, "own", 3);
        // An observation that began before.
        observe(&mut contest, 2, &["earlier"], false);
        observe(&mut contest, 3, &["earlier", "own"], false);
        // Created, and its ID is on its way.
        observe(&mut contest, 4, &["own", "new"], true);
        contest.started(&worker, "new", 5);
        observe(&mut contest, 5, &["new"], false);
        // Created by a step that failed.
        contest.step_failed(&worker);
        observe(&mut contest, 6, &["late"], false);
    }

    #[test]
    fn foreign_containers_are_left_alone_for_longer_each_time() {
        let (mut contest, mut now) = (NameContest::default(), Instant::now());
        contest.observe((1, &[]), |_| false, now, 0);
        let mut pauses = Vec::new();
        for n in 0..12 {
            let foreign = [container(&format!("foreign-{n}"))];
            contest.observe((2, &foreign), |_| false, now, u64::MAX);
            let until = contest.yield_until(now).unwrap_or(now);
            pauses.push((until - now).as_secs());
            // The same container is not another detection.
            contest.observe((2, &foreign), |_| false, now, u64::MAX);
            assert_eq!(contest.yield_until(now), Some(until));
            now = until;
        }
        assert!(pauses.is_sorted() && pauses[0] >= 1 && pauses[11] >= 150, "{pauses:?}");
        assert!(contest.is_detected(now));
        assert!(!contest.is_detected(now + REPORTED_FOR + Duration::from_secs(1)));
    }
}

//! Detects another agent that runs workers of this node on the same container engine, and decides
//! how long to leave the containers to it. Pure.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use neptune_wire::WorkerName;

use crate::{backoff::YIELD_CONTAINERS, domain::observed_container::ObservedContainer};

/// How long a contest is reported after the last foreign container.
const REPORTED_FOR: Duration = Duration::from_secs(10 * 60);

/// The containers that this agent knows, and the contest about their names.
#[derive(Debug, Default)]
pub struct NameContest {
    /// Those of the first observation, which an earlier agent left, and those that this agent
    /// started; `None` before the first observation.
    known: Option<BTreeSet<String>>,
    started: BTreeSet<String>,
    detections: u32,
    last: Option<Instant>,
    yield_until: Option<Instant>,
}

impl NameContest {
    /// This agent started a container.
    pub fn started(&mut self, id: &str) {
        self.started.insert(id.to_owned());
    }

    /// Records an observation. `may_appear`: whether this agent may have created a container of a
    /// worker without knowing its ID yet.
    pub fn observe(
        &mut self,
        containers: &[ObservedContainer],
        may_appear: impl Fn(&WorkerName) -> bool,
        now: Instant,
        random: u64,
    ) {
        let present = || containers.iter().map(|container| container.id.clone());
        self.started.retain(|id| containers.iter().any(|container| container.id == *id));
        let Some(known) = &mut self.known else {
            self.known = Some(present().collect());
            return;
        };
        let is_foreign = |container: &&ObservedContainer| {
            let ObservedContainer { id, identity, .. } = container;
            container.is_alive()
                && !known.contains(id)
                && !self.started.contains(id)
                && !may_appear(&identity.worker)
        };
        let has_foreign = containers.iter().any(|container| is_foreign(&container));
        *known = present().filter(|id| !self.started.contains(id)).collect();
        if self.last.is_some_and(|last| now - last > REPORTED_FOR) {
            (self.detections, self.last) = (0, None);
        }
        if has_foreign {
            self.detections += 1;
            self.last = Some(now);
            self.yield_until = Some(now + YIELD_CONTAINERS.delay(self.detections, random));
        }
    }

    /// Until when to leave the containers to the other agent.
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
    use super::*;
    use crate::fixtures::observed_container;

    fn container(id: &str) -> ObservedContainer {
        observed_container(id)
    }

    #[test]
    fn own_and_earlier_containers_are_no_contest() {
        let (mut contest, now) = (NameContest::default(), Instant::now());
        contest.observe(&[container("earlier")], |_| false, now, 0);
        contest.started("own");
        contest.observe(&[container("earlier"), container("own")], |_| false, now, 0);
        // Created, and its ID is on its way.
        contest.observe(&[container("own"), container("new")], |_| true, now, 0);
        contest.started("new");
        contest.observe(&[container("new")], |_| false, now, 0);
        assert!(!contest.is_detected(now) && contest.yield_until(now).is_none());
    }

    #[test]
    fn foreign_containers_are_left_alone_for_longer_each_time() {
        let (mut contest, mut now) = (NameContest::default(), Instant::now());
        contest.observe(&[], |_| false, now, 0);
        let mut pauses = Vec::new();
        for n in 0..12 {
            let foreign = [container(&format!("foreign-{n}"))];
            contest.observe(&foreign, |_| false, now, u64::MAX);
            let until = contest.yield_until(now).unwrap_or(now);
            pauses.push((until - now).as_secs());
            // The same container is not another detection.
            contest.observe(&foreign, |_| false, now, u64::MAX);
            assert_eq!(contest.yield_until(now), Some(until));
            now = until;
        }
        assert!(pauses.is_sorted() && pauses[0] >= 1 && pauses[11] >= 150, "{pauses:?}");
        assert!(contest.is_detected(now));
        assert!(!contest.is_detected(now + REPORTED_FOR + Duration::from_secs(1)));
    }
}

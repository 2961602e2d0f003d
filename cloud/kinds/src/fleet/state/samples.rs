//! Which nodes of an object count no samples although they are online.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_wire::NodeName;

use super::FleetState;

/// How long to wait for a sign of life of a node whose time is over. It comes soon, or the node is
/// offline.
const RECHECK: SignedDuration = SignedDuration::from_secs(10);

/// The nodes of an object that count no samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SilentNodes {
    /// How long a node may count no samples.
    pub limit: SignedDuration,
    /// Since when each of them counts none.
    pub since: HashMap<String, Timestamp>,
    /// When there may be another one although no node reports anything.
    pub due_at: Option<Timestamp>,
}

impl FleetState {
    /// The nodes, of those on which the edge worker of an object runs, that counted no sample for
    /// `limit`, by the arrival of reports. A node needs a sign of life after that time: otherwise it
    /// may be offline, or this controller without a connection. Without a limit no node is watched.
    ///
    /// The time of a node begins when its worker is seen to run, at the earliest when the controller
    /// has settled.
    pub fn silent_nodes<'a>(
        &mut self,
        uid: &str,
        running: impl IntoIterator<Item = &'a str>,
        limit: Option<SignedDuration>,
        now: Timestamp,
    ) -> SilentNodes {
        let Some(limit) = limit else {
            if let Some(rows) = self.known_rows(uid) {
                rows.samples().clear();
            }
            return SilentNodes::default();
        };
        let start = now.max(self.settled_at());
        self.rows(uid).samples().set_running(running, start);
        let Some(rows) = self.rows.get_mut(uid) else { return SilentNodes::default() };
        let (watch, cut) = (rows.samples(), now - limit);
        let mut silent = SilentNodes { limit, ..SilentNodes::default() };
        let mut awaits_sign = false;
        for (node, since) in watch.until(cut) {
            let name = node.parse::<NodeName>().ok();
            let last_seen = name.and_then(|name| self.nodes.last_seen(&name));
            if last_seen.is_some_and(|seen| seen >= since + limit) {
                silent.since.insert(node.to_owned(), since);
            } else {
                awaits_sign = true;
            }
        }
        let next = watch.first_after(cut).map(|since| since + limit);
        silent.due_at = next.into_iter().chain(awaits_sign.then(|| now + RECHECK)).min();
        silent
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, Counters, NodeReport};
    use serde_json::json;

    use super::*;

    const LIMIT: SignedDuration = SignedDuration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A fleet that settles at 90 s, and the names of its nodes.
    struct Fleet(FleetState);

    impl Fleet {
        fn new() -> Self {
            Self(FleetState::new(at(0), 30))
        }

        fn heartbeat(&mut self, node: &str, second: i64) {
            let report = json!({"instance": "i", "epoch": 1, "online": true});
            let report: NodeReport = serde_json::from_value(report).unwrap();
            self.0.on_node_report(&node.parse().unwrap(), report, true, at(second));
        }

        /// An agent reports its total of samples.
        fn count(&mut self, (node, instance): (&str, &str), samples: u64, second: i64) {
            let counters = Counters { inference: samples, ..Counters::default() };
            let instance = AgentInstance(instance.to_owned());
            let message = (&instance, (1, samples));
            self.0.on_counters(&node.parse().unwrap(), "u", message, counters, at(second));
        }

        /// The nodes that are silent, since when, and when to look again.
        fn silent(&mut self, running: &[&str], second: i64) -> (Vec<(String, i64)>, Option<i64>) {
            let running = running.iter().copied();
            let silent = self.0.silent_nodes("u", running, Some(LIMIT), at(second));
            let since = silent.since.iter();
            let mut nodes: Vec<_> =
                since.map(|(node, since)| (node.clone(), since.as_second())).collect();
            nodes.sort();
            (nodes, silent.due_at.map(Timestamp::as_second))
        }
    }

    fn one(node: &str, since: i64) -> Vec<(String, i64)> {
        vec![(node.to_owned(), since)]
    }

    #[test]
    fn node_is_silent_from_its_limit_until_the_next_sample() {
        let mut fleet = Fleet::new();
        fleet.count(("a", "i"), 7, 100);
        assert_eq!(fleet.silent(&["a"], 100), (vec![], Some(160)));
        fleet.count(("a", "i"), 8, 130);
        assert_eq!(fleet.silent(&["a"], 160), (vec![], Some(190)));
        fleet.heartbeat("a", 190);
        assert_eq!(fleet.silent(&["a"], 189).0, []);
        assert_eq!(fleet.silent(&["a"], 190), (one("a", 130), None));
        fleet.count(("a", "i"), 8, 200);
        assert_eq!(fleet.silent(&["a"], 200).0, one("a", 130), "a repeated report is no sample");
        fleet.count(("a", "i"), 9, 210);
        assert_eq!(fleet.silent(&["a"], 210), (vec![], Some(270)));
    }

    #[test]
    fn restarted_controller_starts_the_time_when_it_has_settled() {
        let mut fleet = Fleet::new();
        fleet.count(("a", "i"), 7, 5);
        assert_eq!(fleet.silent(&["a"], 5), (vec![], Some(150)));
        fleet.heartbeat("a", 149);
        assert_eq!(fleet.silent(&["a"], 149).0, []);
        fleet.heartbeat("a", 150);
        assert_eq!(fleet.silent(&["a"], 150).0, one("a", 90));
    }

    #[test]
    fn node_without_a_sign_of_life_is_not_silent() {
        let mut fleet = Fleet::new();
        fleet.heartbeat("a", 100);
        fleet.silent(&["a"], 100);
        assert_eq!(fleet.silent(&["a"], 165), (vec![], Some(175)), "it may be offline");
        assert_eq!(fleet.silent(&[], 190), (vec![], None), "it is");
        fleet.heartbeat("a", 500);
        assert_eq!(fleet.silent(&["a"], 500), (vec![], Some(560)), "it is back");
        fleet.heartbeat("a", 561);
        assert_eq!(fleet.silent(&["a"], 561).0, one("a", 500));
    }

    #[test]
    fn late_report_counts_when_it_arrives() {
        let mut fleet = Fleet::new();
        fleet.count(("a", "i"), 50, 100);
        fleet.silent(&["a"], 100);
        // An earlier message of a batch that comes after a later one has no new sample.
        fleet.count(("a", "i"), 40, 150);
        fleet.heartbeat("a", 160);
        assert_eq!(fleet.silent(&["a"], 160).0, one("a", 100));
        fleet.count(("a", "i"), 51, 170);
        assert_eq!(fleet.silent(&["a"], 170).0, []);
    }

    #[test]
    fn samples_of_a_new_data_directory_count_below_those_of_the_former() {
        let mut fleet = Fleet::new();
        fleet.count(("a", "i"), 5000, 100);
        fleet.silent(&["a"], 100);
        fleet.count(("a", "wiped"), 0, 120);
        fleet.heartbeat("a", 160);
        assert_eq!(fleet.silent(&["a"], 160).0, one("a", 100), "a start is no sample");
        fleet.count(("a", "wiped"), 1, 170);
        assert_eq!(fleet.silent(&["a"], 170), (vec![], Some(230)));
    }

    #[test]
    fn other_limit_applies_at_once_and_none_forgets_the_times() {
        let mut fleet = Fleet::new();
        fleet.count(("a", "i"), 1, 100);
        fleet.silent(&["a"], 100);
        fleet.heartbeat("a", 170);
        assert_eq!(fleet.silent(&["a"], 170).0, one("a", 100));
        let longer = Some(SignedDuration::from_secs(300));
        let other = fleet.0.silent_nodes("u", ["a"], longer, at(171));
        assert_eq!((other.since.len(), other.due_at), (0, Some(at(400))));
        assert_eq!(fleet.silent(&["a"], 172).0, one("a", 100));
        assert_eq!(fleet.0.silent_nodes("u", ["a"], None, at(173)), SilentNodes::default());
        assert_eq!(fleet.silent(&["a"], 174), (vec![], Some(234)), "it was removed meanwhile");
    }

    #[test]
    fn only_the_nodes_that_are_due_are_looked_at() {
        let mut fleet = Fleet::new();
        let names: Vec<_> = (0..100).map(|number| format!("n{number:03}")).collect();
        let running: Vec<_> = names.iter().map(String::as_str).collect();
        fleet.silent(&running, 100);
        for (second, node) in (101..).zip(&running) {
            fleet.count((node, "i"), 1, second);
        }
        fleet.heartbeat("n000", 165);
        fleet.heartbeat("n001", 165);
        let (silent, due_at) = fleet.silent(&running, 162);
        assert_eq!(silent, [("n000".to_owned(), 101), ("n001".to_owned(), 102)]);
        assert_eq!(due_at, Some(163));
    }
}

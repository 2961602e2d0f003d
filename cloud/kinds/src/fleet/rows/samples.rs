//! Since when the nodes of an object count no new sample. A node is watched while its edge worker
//! runs.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

/// The watched nodes of one object, in the order in which they counted their last sample. A sample
/// costs the logarithm of their number. Losing it only starts the times again.
#[derive(Debug, Clone, Default)]
pub struct SampleWatch {
    nodes: HashMap<Arc<str>, Timestamp>,
    by_time: BTreeSet<(Timestamp, Arc<str>)>,
}

impl SampleWatch {
    /// A node counted a new sample, which arrived at this time.
    pub(super) fn on_sample(&mut self, node: &str, now: Timestamp) {
        if let Some((name, since)) = self.nodes.get_key_value(node) {
            let (name, later) = (Arc::clone(name), now.max(*since));
            self.insert(name, later);
        }
    }

    /// The edge worker runs on these nodes, and on no others. The times of those that are new begin at
    /// `start`.
    pub fn set_running<'a>(
        &mut self,
        running: impl IntoIterator<Item = &'a str>,
        start: Timestamp,
    ) {
        let running: HashSet<&str> = running.into_iter().collect();
        for node in &running {
            if !self.nodes.contains_key(*node) {
                self.insert((*node).into(), start);
            }
        }
        if self.nodes.len() > running.len() {
            self.nodes.retain(|node, _| running.contains(&**node));
            self.by_time.retain(|(_, node)| running.contains(&**node));
        }
    }

    /// No node is watched any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The nodes without a sample since this time or longer, the longest first.
    pub fn until(&self, time: Timestamp) -> impl Iterator<Item = (&str, Timestamp)> {
        let due = self.by_time.iter().take_while(move |(since, _)| *since <= time);
        due.map(|(since, node)| (&**node, *since))
    }

    /// The time of the first of the other nodes.
    pub fn first_after(&self, time: Timestamp) -> Option<Timestamp> {
        let is_later = |(since, _): &&(Timestamp, Arc<str>)| *since > time;
        self.by_time.range((time, Arc::from(""))..).find(is_later).map(|(since, _)| *since)
    }

    fn insert(&mut self, node: Arc<str>, since: Timestamp) {
        if let Some(before) = self.nodes.insert(Arc::clone(&node), since) {
            self.by_time.remove(&(before, Arc::clone(&node)));
        }
        self.by_time.insert((since, node));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a valid time")
    }

    fn until(watch: &SampleWatch, second: i64) -> Vec<(String, i64)> {
        let due = watch.until(at(second));
        due.map(|(node, since)| (node.to_owned(), since.as_second())).collect()
    }

    #[test]
    fn time_begins_with_the_worker_and_again_with_each_sample() {
        let mut watch = SampleWatch::default();
        watch.on_sample("a", at(1));
        assert_eq!(watch.first_after(at(0)), None, "the worker does not run");
        watch.set_running(["a", "b"], at(10));
        watch.on_sample("a", at(20));
        watch.on_sample("a", at(19));
        watch.set_running(["a", "b"], at(30));
        assert_eq!(until(&watch, 30), [("b".to_owned(), 10), ("a".to_owned(), 20)]);
        assert_eq!(watch.first_after(at(10)), Some(at(20)));
        watch.set_running(["b"], at(40));
        watch.set_running(["b", "a"], at(50));
        assert_eq!(until(&watch, 50), [("b".to_owned(), 10), ("a".to_owned(), 50)]);
        watch.clear();
        watch.set_running(["b"], at(60));
        assert_eq!(until(&watch, 60), [("b".to_owned(), 60)]);
    }

    /// What happens to the nodes.
    #[derive(Debug, Clone)]
    enum Step {
        Sample(u8),
        Run(BTreeSet<u8>),
    }

    proptest! {
        /// The watch has the same times as a plain map, in any order of steps.
        #[test]
        fn watch_has_the_last_sample_of_each_running_node(
            steps in vec(prop_oneof![
                3 => (0..6_u8).prop_map(Step::Sample),
                1 => prop::collection::btree_set(0..6_u8, 0..6).prop_map(Step::Run),
            ], 0..60),
            cut in 0..60_i64,
        ) {
            let (mut watch, mut expected) = (SampleWatch::default(), BTreeMap::new());
            for (second, step) in (0..).zip(steps) {
                match step {
                    Step::Sample(node) => {
                        watch.on_sample(&node.to_string(), at(second));
                        expected.entry(node).and_modify(|since| *since = second);
                    }
                    Step::Run(nodes) => {
                        let names: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                        watch.set_running(names.iter().map(String::as_str), at(second));
                        expected.retain(|node, _| nodes.contains(node));
                        for node in nodes {
                            expected.entry(node).or_insert(second);
                        }
                    }
                }
            }
            let mut due: Vec<_> = expected
                .iter()
                .filter(|(_, since)| **since <= cut)
                .map(|(node, since)| (*since, node.to_string()))
                .collect();
            due.sort();
            let due: Vec<_> = due.into_iter().map(|(since, node)| (node, since)).collect();
            prop_assert_eq!(until(&watch, cut), due);
            let later = expected.values().filter(|since| **since > cut).min();
            prop_assert_eq!(watch.first_after(at(cut)), later.map(|since| at(*since)));
        }
    }
}

//! Decides which object of a queue is reconciled next. An object waits once and is reconciled once at
//! a time; one that is enqueued meanwhile is reconciled again. Pure.
//!
//! `applier` of `kube_runtime` decides the same with a timer of milliseconds, which delays each
//! reconcile by one to two of them (`docs/adr/0101-reconciles-wait-for-no-timer.md`).

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::Hash,
    time::Instant,
};

/// The objects of a queue.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: VecDeque<T>,
    /// The objects that wait, are reconciled or are due later.
    states: HashMap<T, Turn>,
    /// The objects that are due later, in the order of their times.
    later: BTreeMap<(Instant, u64), T>,
    /// Number of the objects that were due later so far.
    numbered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Waiting,
    Running,
    /// It runs, and was enqueued since.
    RunningAndWaiting,
    Later((Instant, u64)),
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        let (states, later) = (HashMap::new(), BTreeMap::new());
        Self { waiting: VecDeque::new(), states, later, numbered: 0 }
    }
}

impl<T: Clone + Eq + Hash> Turns<T> {
    /// Enqueues an object. One that is due later waits no longer.
    pub fn add(&mut self, object: T) {
        match self.states.get_mut(&object) {
            Some(Turn::Waiting | Turn::RunningAndWaiting) => {}
            Some(turn @ Turn::Running) => *turn = Turn::RunningAndWaiting,
            Some(turn @ &mut Turn::Later(at)) => {
                *turn = Turn::Waiting;
                self.later.remove(&at);
                self.waiting.push_back(object);
            }
            None => {
                self.states.insert(object.clone(), Turn::Waiting);
                self.waiting.push_back(object);
            }
        }
    }

    /// Begins the reconcile of the next object.
    pub fn begin(&mut self) -> Option<T> {
        let object = self.waiting.pop_front()?;
        self.states.insert(object.clone(), Turn::Running);
        Some(object)
    }

    /// The reconcile of an object ended. It is due again at this time, or when it is enqueued.
    pub fn end(&mut self, object: T, due: Option<Instant>) {
        let is_enqueued = self.states.remove(&object) == Some(Turn::RunningAndWaiting);
        if is_enqueued {
            self.add(object);
        } else if let Some(at) = due {
            self.numbered += 1;
            let at = (at, self.numbered);
            self.states.insert(object.clone(), Turn::Later(at));
            self.later.insert(at, object);
        }
    }

    /// When the next object is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Enqueues the objects that are due.
    pub fn add_due(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let object = entry.get().clone();
            self.add(object);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{collections::BTreeSet, time::Duration};

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "a test needs some time")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn enqueued_object_waits_neither_for_others_that_run_nor_for_its_time() {
        let (mut turns, now) = (Turns::default(), start());
        turns.add("a");
        turns.add("b");
        turns.add("a");
        assert_eq!([turns.begin(), turns.begin(), turns.begin()], [Some("a"), Some("b"), None]);
        turns.add("c");
        assert_eq!(turns.begin(), Some("c"), "the others run");
        turns.end("a", Some(now + SECOND));
        assert_eq!((turns.begin(), turns.next_due()), (None, Some(now + SECOND)));
        turns.add("a");
        assert_eq!((turns.begin(), turns.next_due()), (Some("a"), None));
    }

    #[test]
    fn object_that_was_enqueued_while_it_ran_runs_again_after_those_that_waited() {
        let (mut turns, now) = (Turns::default(), start());
        turns.add("a");
        assert_eq!(turns.begin(), Some("a"));
        turns.add("b");
        turns.add("a");
        assert_eq!((turns.begin(), turns.begin()), (Some("b"), None), "it runs once at a time");
        turns.end("a", Some(now + SECOND));
        assert_eq!((turns.begin(), turns.next_due()), (Some("a"), None));
    }

    #[test]
    fn due_objects_run_in_the_order_of_their_times() {
        let (mut turns, now) = (Turns::default(), start());
        for (object, seconds) in [("b", 2), ("a", 1), ("c", 3), ("d", 2)] {
            turns.add(object);
            turns.begin();
            turns.end(object, Some(now + SECOND * seconds));
        }
        turns.add_due(now + SECOND * 2);
        let begun: Vec<_> = std::iter::from_fn(|| turns.begin()).collect();
        assert_eq!((begun, turns.next_due()), (vec!["a", "b", "d"], Some(now + SECOND * 3)));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Add(u8),
        Begin,
        /// Ends one of those that run, with the seconds until it is due again.
        End(usize, Option<u32>),
        Pass(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..6u8).prop_map(Op::Add),
            3 => Just(Op::Begin),
            3 => (0..6usize, prop::option::of(0..4u32)).prop_map(|(at, due)| Op::End(at, due)),
            1 => (0..4u32).prop_map(Op::Pass),
        ]
    }

    proptest! {
        /// Each change of an object is followed by a reconcile that begins after it, and no object is
        /// reconciled twice at a time.
        #[test]
        fn no_change_is_missed_and_no_object_runs_twice(ops in prop::collection::vec(op(), 0..100)) {
            let (mut turns, mut now) = (Turns::default(), start());
            // Those whose reconcile has to begin, at once or at a time, and those that run.
            let (mut wanted, mut due) = (BTreeSet::new(), BTreeMap::new());
            let mut running = Vec::new();
            for op in ops {
                match op {
                    Op::Add(object) => {
                        turns.add(object);
                        wanted.insert(object);
                        due.remove(&object);
                    }
                    Op::Begin => match turns.begin() {
                        Some(object) => {
                            prop_assert!(!running.contains(&object) && wanted.remove(&object));
                            running.push(object);
                        }
                        None => prop_assert!(wanted.iter().all(|object| running.contains(object))),
                    },
                    Op::End(at, seconds) if at < running.len() => {
                        let object = running.swap_remove(at);
                        let at = seconds.map(|seconds| now + SECOND * seconds);
                        turns.end(object, at);
                        if let Some(at) = at.filter(|_| !wanted.contains(&object)) {
                            due.insert(object, at);
                        }
                    }
                    Op::End(..) => {}
                    Op::Pass(seconds) => {
                        now += SECOND * seconds;
                        turns.add_due(now);
                        wanted.extend(due.extract_if(.., |_, at| *at <= now).map(|(object, _)| object));
                    }
                }
                prop_assert_eq!(turns.next_due(), due.values().min().copied());
                let known = wanted.iter().chain(due.keys()).chain(&running).collect::<BTreeSet<_>>();
                prop_assert_eq!(turns.states.len(), known.len(), "nothing is kept of the others");
            }
        }
    }
}

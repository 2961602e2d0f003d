//! Which message is posted when, over all nodes: one at a time to each, a bounded number at once, nothing to
//! nodes that are away. Pure; the posting itself is `post`'s.
//!
//! | what happened | what follows |
//! |---|---|
//! | the router took it | the next of that node; an index is said again until the node confirms it |
//! | the router knows no session of the node | nothing until the node speaks or its Node turns Ready |
//! | no answer, or a strange one | the same again after a pause of that node |
//! | no rule, or no router | the same again after a pause of all |
//! | it is too large for the router | it is dropped |
//! | the Node is not Ready, or gone | as without a session |
//! | the node speaks, or its Node turns Ready, after it was away | its index at once |
//!
//! For a node that is away only the index is kept: it tells the node what it has not, and the answer to
//! the sync that follows brings it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_wire::{NodeName, Sync};
use prometheus_client::encoding::EncodeLabelValue;

use super::{
    confirm::{Due, Unconfirmed},
    outbox::{Letter, Outbox},
};

/// Posts at once, over the fleet. A node whose session is missing holds its place for two seconds.
const AT_ONCE: usize = 32;

/// Pauses of one node after a post that failed; they double.
const NODE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Pauses of all nodes while there is no router or no rule.
const ROUTER_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// What waits, and for what.
#[derive(Debug, Default)]
pub struct Schedule {
    nodes: BTreeMap<NodeName, Node>,
    /// Of each node for which something is to be done at a time, the time.
    due: BTreeSet<(Instant, NodeName)>,
    in_flight: usize,
    router: Pause,
}

#[derive(Debug, Default)]
struct Node {
    outbox: Outbox,
    in_flight: bool,
    is_away: bool,
    /// Whether it has spoken since the post that is in flight began.
    spoke_meanwhile: bool,
    /// Whether its Node was Ready when it was last looked at.
    is_ready: Option<bool>,
    pause: Pause,
    /// What was said last, to be said again.
    index: Option<Letter>,
    unconfirmed: Option<Unconfirmed>,
    /// Its entry in `due`.
    due_at: Option<Instant>,
}

/// A time before which nothing is tried, longer with each failure.
#[derive(Debug, Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
}

/// What became of a post.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// Cloudcore has it in its memory.
    Taken,
    /// Cloudcore knows no session of this node.
    NoSession,
    /// There is no rule for it.
    NoRule,
    /// Nobody answers at the router's address.
    NoRouter,
    /// No answer in time, or one that says nothing.
    Failed,
    /// The router does not take messages that large.
    TooLarge,
}

/// Whether Kubernetes takes a node for alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its Ready condition is True, or it has none.
    Ready,
    /// Its Ready condition says otherwise.
    NotReady,
    /// There is no such Node.
    Gone,
}

impl Schedule {
    /// Adds a message. A newer one on its topic takes its place.
    pub fn say(&mut self, name: &NodeName, letter: Letter, now: Instant) {
        let node = self.nodes.entry(name.clone()).or_default();
        if let Some(revision) = letter.index {
            node.index = Some(letter.clone());
            node.unconfirmed = Some(Unconfirmed::new(revision));
        }
        if !node.is_away {
            node.outbox.push(letter);
        }
        self.arrange(name, now);
    }

    /// The next message to post, if there may be one more. From now on it is in flight.
    pub fn next(&mut self, now: Instant) -> Option<(NodeName, Letter)> {
        while self.in_flight < AT_ONCE && self.router.is_over(now) {
            let (at, name) = self.due.first()?;
            if *at > now {
                return None;
            }
            let name = name.clone();
            let node = self.nodes.get_mut(&name)?;
            if node.outbox.is_empty() {
                node.repeat();
            }
            let letter = node.outbox.pop();
            if letter.is_some() {
                node.in_flight = true;
                node.spoke_meanwhile = false;
                self.in_flight += 1;
            }
            self.arrange(&name, now);
            if let Some(letter) = letter {
                return Some((name, letter));
            }
        }
        None
    }

    /// What became of the message in flight. `random` is any number.
    pub fn done(
        &mut self,
        name: &NodeName,
        letter: Letter,
        outcome: Outcome,
        now: Instant,
        random: u64,
    ) {
        self.in_flight -= 1;
        match outcome {
            // Of those that were in flight together only the first counts.
            Outcome::NoRule | Outcome::NoRouter if self.router.is_over(now) => {
                self.router.fail(ROUTER_PAUSES, now, random);
            }
            Outcome::NoRule | Outcome::NoRouter | Outcome::Failed => {}
            Outcome::Taken | Outcome::NoSession | Outcome::TooLarge => {
                self.router = Pause::default();
            }
        }
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.in_flight = false;
        match outcome {
            Outcome::Taken => {
                node.pause = Pause::default();
                if let (Some(revision), Some(unconfirmed)) = (letter.index, &mut node.unconfirmed) {
                    unconfirmed.taken(revision, now, random);
                }
            }
            Outcome::NoSession if !node.spoke_meanwhile => node.leave(),
            Outcome::NoSession | Outcome::Failed => {
                node.pause.fail(NODE_PAUSES, now, random);
                node.put_back(letter);
            }
            Outcome::NoRule | Outcome::NoRouter => node.put_back(letter),
            Outcome::TooLarge => {}
        }
        self.arrange(name, now);
    }

    /// A node spoke; `is_back` if it had been silent for too long.
    pub fn heard(&mut self, name: &NodeName, is_back: bool, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.spoke_meanwhile = true;
        let rests = node.unconfirmed.as_mut().is_some_and(|unconfirmed| {
            unconfirmed.heard();
            unconfirmed.due_at().is_none()
        });
        let rests = rests && !node.in_flight && node.outbox.is_empty();
        if is_back || rests || node.is_away {
            node.come_back();
        }
        self.arrange(name, now);
    }

    /// A node told what it has.
    pub fn synced(&mut self, name: &NodeName, sync: &Sync, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.unconfirmed.as_ref().is_some_and(|index| index.is_confirmed_by(sync)) {
            node.unconfirmed = None;
        }
        self.arrange(name, now);
    }

    /// How Kubernetes sees a node.
    pub fn stands(&mut self, name: &NodeName, standing: Standing, now: Instant) {
        let node = self.nodes.entry(name.clone()).or_default();
        let is_ready = standing == Standing::Ready;
        if node.is_ready.replace(is_ready) == Some(is_ready) {
            return;
        }
        if !is_ready {
            node.leave();
            if standing == Standing::Gone && node.index.is_none() && !node.in_flight {
                self.forget(name);
                return;
            }
        } else if node.is_away {
            node.come_back();
        }
        self.arrange(name, now);
    }

    /// When [`Schedule::next`] may have something, unless something happens before.
    pub fn wake_at(&self) -> Option<Instant> {
        if self.in_flight >= AT_ONCE {
            return None;
        }
        let (at, _) = self.due.first()?;
        Some(self.router.until.map_or(*at, |until| until.max(*at)))
    }

    /// Whether the router answered last, as far as it was asked.
    pub fn has_router(&self) -> bool {
        self.router.until.is_none()
    }

    fn forget(&mut self, name: &NodeName) {
        if let Some(at) = self.nodes.remove(name).and_then(|node| node.due_at) {
            self.due.remove(&(at, name.clone()));
        }
    }

    /// Puts a node where it belongs in `due`.
    fn arrange(&mut self, name: &NodeName, now: Instant) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let due_at = node.due(now);
        if due_at == node.due_at {
            return;
        }
        if let Some(before) = std::mem::replace(&mut node.due_at, due_at) {
            self.due.remove(&(before, name.clone()));
        }
        if let Some(at) = due_at {
            self.due.insert((at, name.clone()));
        }
    }
}

impl Node {
    /// When something is to be done.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.in_flight || self.is_away {
            return None;
        }
        let wish = if self.outbox.is_empty() {
            self.unconfirmed.as_ref().and_then(Unconfirmed::due_at)?
        } else {
            // It stays where it stands in the queue; behind those that waited before it.
            self.due_at.unwrap_or(now).min(now)
        };
        Some(self.pause.until.map_or(wish, |until| until.max(wish)))
    }

    /// The time for the index to be said again has come.
    fn repeat(&mut self) {
        let due = self.unconfirmed.as_mut().map(Unconfirmed::due);
        if due == Some(Due::Again)
            && let Some(index) = &self.index
        {
            self.outbox.push(index.clone());
        }
    }

    fn put_back(&mut self, letter: Letter) {
        if !self.is_away {
            self.outbox.put_back(letter);
        }
    }

    fn leave(&mut self) {
        self.is_away = true;
        self.outbox.clear();
    }

    fn come_back(&mut self) {
        self.is_away = false;
        self.pause = Pause::default();
        if let Some(index) = &self.index {
            let revision = index.index.expect("the index kept is an index");
            self.unconfirmed.get_or_insert_with(|| Unconfirmed::new(revision)).begin_again();
            self.outbox.push(index.clone());
        }
    }
}

impl Pause {
    fn fail(&mut self, (first, longest): (Duration, Duration), now: Instant, random: u64) {
        let step = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(longest);
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        let span = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        self.until = Some(now + half + Duration::from_millis(random % (span + 1)));
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{AgentInstance, Revision};

    use super::*;

    /// A schedule, a clock, and what is in flight.
    struct Desk {
        schedule: Schedule,
        now: Instant,
        start: Instant,
        in_flight: BTreeMap<String, Letter>,
    }

    impl Desk {
        fn new() -> Self {
            let now = Instant::now();
            Self { schedule: Schedule::default(), now, start: now, in_flight: BTreeMap::new() }
        }

        fn say(&mut self, node: &str, text: &str) {
            let index = text.strip_prefix("index").map(|n| Revision(n.parse().unwrap()));
            let topic = if index.is_some() { "index" } else { text };
            let payload = text.to_owned().into();
            let letter = Letter { topic: topic.to_owned(), payload, index };
            self.schedule.say(&node.parse().unwrap(), letter, self.now);
        }

        /// Everything that may be posted now.
        fn posts(&mut self) -> Vec<String> {
            let mut posts = Vec::new();
            while let Some((node, letter)) = self.schedule.next(self.now) {
                posts.push(format!("{node} {}", String::from_utf8_lossy(&letter.payload)));
                assert!(self.in_flight.insert(node.to_string(), letter).is_none(), "one a node");
            }
            posts
        }

        fn done(&mut self, node: &str, outcome: Outcome) {
            let letter = self.in_flight.remove(node).unwrap();
            self.schedule.done(&node.parse().unwrap(), letter, outcome, self.now, 0);
        }

        /// Each is taken at once until nothing is left; what was posted.
        fn all_taken(&mut self) -> Vec<String> {
            let mut all = Vec::new();
            loop {
                let posts = self.posts();
                if posts.is_empty() {
                    return all;
                }
                all.extend(posts);
                while let Some(node) = self.in_flight.keys().next().cloned() {
                    self.done(&node, Outcome::Taken);
                }
            }
        }

        fn heard(&mut self, node: &str, is_back: bool) {
            self.schedule.heard(&node.parse().unwrap(), is_back, self.now);
        }

        fn stands(&mut self, node: &str, standing: Standing) {
            self.schedule.stands(&node.parse().unwrap(), standing, self.now);
        }

        fn synced(&mut self, node: &str, index: u64) {
            let sync = Sync {
                instance: AgentInstance("i".to_owned()),
                epoch: 1,
                index_revision: Revision(index),
                highest: Revision(index),
                complete: true,
                objects: [].into(),
            };
            self.schedule.synced(&node.parse().unwrap(), &sync, self.now);
        }

        /// Jumps to the next moment at which something may be due. Returns the milliseconds since the start.
        fn wake(&mut self) -> u128 {
            self.now = self.schedule.wake_at().unwrap().max(self.now);
            (self.now - self.start).as_millis()
        }
    }

    #[test]
    fn a_nodes_messages_go_one_after_the_other_and_nodes_do_not_wait_for_each_other() {
        let mut desk = Desk::new();
        for text in ["a", "b", "index1"] {
            desk.say("edge0", text);
        }
        desk.say("edge1", "c");
        assert_eq!(desk.posts(), ["edge0 a", "edge1 c"]);
        assert_eq!(desk.posts(), Vec::<String>::new());
        desk.done("edge1", Outcome::Taken);
        assert_eq!(desk.posts(), Vec::<String>::new());
        assert_eq!(desk.schedule.wake_at(), None, "edge0's answer is awaited");
        desk.done("edge0", Outcome::Taken);
        assert_eq!(desk.all_taken(), ["edge0 b", "edge0 index1"]);
    }

    #[test]
    fn no_more_than_so_many_are_in_flight_and_the_longest_waiting_comes_next() {
        let mut desk = Desk::new();
        for node in 0..=AT_ONCE {
            desk.say(&format!("n{node}"), "a");
            desk.say(&format!("n{node}"), "b");
            desk.now += Duration::from_millis(1);
        }
        assert_eq!(desk.posts().len(), AT_ONCE);
        desk.done("n0", Outcome::Taken);
        assert_eq!(desk.posts(), [format!("n{AT_ONCE} a")], "not n0's second");
    }

    #[test]
    fn an_index_is_said_until_the_node_confirms_it() {
        let mut desk = Desk::new();
        desk.say("edge0", "index1");
        assert_eq!(desk.all_taken(), ["edge0 index1"]);
        let mut times = Vec::new();
        for _ in 0..3 {
            times.push(desk.wake());
            assert_eq!(desk.all_taken(), ["edge0 index1"]);
        }
        assert_eq!(times, [2000, 6000, 14_000]);
        desk.say("edge0", "index2");
        assert_eq!(desk.all_taken(), ["edge0 index2"]);
        desk.synced("edge0", 1);
        assert_eq!(desk.wake(), 16_000, "a new index begins with the shortest pause");
        desk.synced("edge0", 2);
        assert_eq!(desk.schedule.wake_at(), None);
        assert_eq!(desk.posts(), Vec::<String>::new());
    }

    #[test]
    fn a_node_without_a_session_is_left_alone_until_it_speaks_and_then_gets_its_index() {
        let mut desk = Desk::new();
        for text in ["a", "index1"] {
            desk.say("edge0", text);
        }
        desk.posts();
        desk.done("edge0", Outcome::NoSession);
        for text in ["b", "index2"] {
            desk.say("edge0", text);
        }
        assert_eq!(desk.posts(), Vec::<String>::new());
        assert_eq!(desk.schedule.wake_at(), None, "it costs nothing");
        desk.heard("edge0", false);
        assert_eq!(desk.all_taken(), ["edge0 index2"], "the sync that follows asks for the rest");
    }

    #[test]
    fn a_node_that_spoke_while_it_was_tried_is_tried_again() {
        let mut desk = Desk::new();
        desk.say("edge0", "index1");
        desk.posts();
        desk.heard("edge0", false);
        desk.done("edge0", Outcome::NoSession);
        assert_eq!(desk.wake(), 500);
        assert_eq!(desk.all_taken(), ["edge0 index1"]);
    }

    #[test]
    fn a_node_that_is_not_ready_is_not_tried_and_gets_its_index_when_it_turns_ready_or_speaks() {
        let mut desk = Desk::new();
        desk.stands("edge0", Standing::NotReady);
        desk.say("edge0", "a");
        desk.say("edge0", "index1");
        assert_eq!(desk.posts(), Vec::<String>::new());
        desk.stands("edge0", Standing::NotReady);
        desk.stands("edge0", Standing::Ready);
        assert_eq!(desk.all_taken(), ["edge0 index1"]);
        desk.synced("edge0", 1);
        desk.stands("edge0", Standing::Ready);
        assert_eq!(desk.posts(), Vec::<String>::new(), "no transition");
        desk.stands("edge0", Standing::NotReady);
        desk.heard("edge0", false);
        assert_eq!(desk.all_taken(), ["edge0 index1"], "its word is worth more than the kubelet's");
        desk.stands("edge0", Standing::NotReady);
        desk.say("edge0", "b");
        assert_eq!(desk.all_taken(), ["edge0 b"], "it is known already, and the node spoke since");
    }

    #[test]
    fn a_node_that_was_silent_gets_its_index_also_when_it_was_confirmed() {
        let mut desk = Desk::new();
        desk.say("edge0", "index1");
        desk.all_taken();
        desk.synced("edge0", 1);
        desk.heard("edge0", false);
        assert_eq!(desk.posts(), Vec::<String>::new());
        desk.heard("edge0", true);
        assert_eq!(desk.all_taken(), ["edge0 index1"]);
        assert_eq!(desk.wake(), 2000);
    }

    #[test]
    fn a_node_that_never_spoke_is_left_alone_and_told_when_it_speaks() {
        let mut desk = Desk::new();
        desk.say("edge0", "index1");
        desk.all_taken();
        while desk.schedule.wake_at().is_some() {
            desk.wake();
            desk.all_taken();
        }
        assert_eq!((desk.now - desk.start).as_secs(), 2 + 4 + 8 + 16 + 32 + 60);
        desk.heard("edge0", false);
        assert_eq!(desk.all_taken(), ["edge0 index1"]);
    }

    #[test]
    fn while_there_is_no_rule_or_no_router_all_wait_and_nothing_is_dropped() {
        for outcome in [Outcome::NoRule, Outcome::NoRouter] {
            let mut desk = Desk::new();
            desk.say("edge0", "a");
            desk.say("edge1", "a");
            desk.posts();
            desk.done("edge0", outcome);
            desk.done("edge1", outcome);
            assert!(!desk.schedule.has_router());
            desk.say("edge2", "a");
            assert_eq!(desk.posts(), Vec::<String>::new());
            assert_eq!(desk.wake(), 250, "two that failed together are one failure");
            assert_eq!(desk.posts().len(), 3);
            desk.done("edge2", outcome);
            assert_eq!(desk.wake(), 250 + 500);
            for node in ["edge0", "edge1"] {
                desk.done(node, Outcome::Taken);
            }
            assert!(desk.schedule.has_router());
            assert_eq!(desk.all_taken(), ["edge2 a"]);
        }
    }

    #[test]
    fn a_post_that_failed_is_made_again_after_a_pause_that_grows_to_a_minute() {
        let mut desk = Desk::new();
        desk.say("edge0", "a");
        let mut before = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            desk.posts();
            desk.done("edge0", Outcome::Failed);
            let now = desk.wake();
            pauses.push(now - before);
            before = now;
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        desk.say("edge0", "b");
        assert_eq!(desk.all_taken(), ["edge0 a", "edge0 b"]);
    }

    #[test]
    fn what_the_router_never_takes_does_not_hold_up_the_rest() {
        let mut desk = Desk::new();
        desk.say("edge0", "a");
        desk.say("edge0", "b");
        desk.posts();
        desk.done("edge0", Outcome::TooLarge);
        assert_eq!(desk.all_taken(), ["edge0 b"]);
    }

    #[test]
    fn a_node_that_is_gone_leaves_nothing_behind_and_one_that_returns_gets_its_index() {
        let mut desk = Desk::new();
        desk.stands("edge0", Standing::Ready);
        desk.stands("edge0", Standing::Gone);
        assert!(desk.schedule.nodes.is_empty());
        desk.say("edge1", "index1");
        desk.stands("edge1", Standing::Gone);
        assert_eq!(desk.posts(), Vec::<String>::new());
        desk.stands("edge1", Standing::Ready);
        assert_eq!(desk.all_taken(), ["edge1 index1"]);
    }
}

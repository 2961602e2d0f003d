//! Tests of the schedule.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used)]
use neptune_wire::{Revision, fixtures::sync};

use super::{node::MAX_POSTS, *};

/// A schedule, a clock, and what is in flight.
struct Harness {
    schedule: Schedule,
    now: Instant,
    start: Instant,
    in_flight: Vec<(String, QueuedMessage)>,
}

impl Harness {
    fn new() -> Self {
        let now = Instant::now();
        Self { schedule: Schedule::default(), now, start: now, in_flight: Vec::new() }
    }

    fn enqueue(&mut self, node: &str, text: &str) {
        let index = text.strip_prefix("index").map(|n| Revision(n.parse().unwrap()));
        let topic = if index.is_some() { "index" } else { text };
        let payload = text.to_owned().into();
        let message = QueuedMessage { topic: topic.to_owned(), payload, index };
        self.schedule.enqueue(&node.parse().unwrap(), message, self.now);
    }

    /// Returns everything that may be posted now.
    fn posts(&mut self) -> Vec<String> {
        let mut posts = Vec::new();
        while let Some((node, message)) = self.schedule.next(self.now) {
            posts.push(format!("{node} {}", String::from_utf8_lossy(&message.payload)));
            let to_node = self.in_flight.iter().filter(|(to, _)| *to == node.to_string());
            assert!(to_node.count() < MAX_POSTS);
            self.in_flight.push((node.to_string(), message));
        }
        posts
    }

    fn done(&mut self, node: &str, outcome: PostOutcome) {
        let at = self.in_flight.iter().position(|(to, _)| to == node).unwrap();
        let (_, message) = self.in_flight.remove(at);
        self.schedule.done(&node.parse().unwrap(), message, outcome, self.now, 0);
    }

    /// Accepts each post at once until none is left. Returns the posts.
    fn all_taken(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let posts = self.posts();
            if posts.is_empty() {
                return all;
            }
            all.extend(posts);
            while let Some((node, _)) = self.in_flight.first().cloned() {
                self.done(&node, PostOutcome::Taken);
            }
        }
    }

    fn on_sign_of_life(&mut self, node: &str, is_back: bool) {
        self.schedule.on_sign_of_life(&node.parse().unwrap(), is_back, self.now);
    }

    fn set_readiness(&mut self, node: &str, readiness: NodeReadiness) {
        self.schedule.set_readiness(&node.parse().unwrap(), readiness, self.now);
    }

    fn on_sync(&mut self, node: &str, index: u64) {
        self.schedule.on_sync(&node.parse().unwrap(), &sync(index), self.now);
    }

    /// Advances the clock to the next due time. Returns the milliseconds since the start.
    fn advance(&mut self) -> u128 {
        self.now = self.schedule.next_due_at().unwrap().max(self.now);
        (self.now - self.start).as_millis()
    }
}

#[test]
fn messages_are_sequential_per_node_and_concurrent_across_nodes() {
    let mut controller = Harness::new();
    for text in ["a", "b", "index1"] {
        controller.enqueue("edge0", text);
    }
    controller.enqueue("edge1", "c");
    assert_eq!(controller.posts(), ["edge0 a", "edge1 c"]);
    assert_eq!(controller.posts(), Vec::<String>::new());
    controller.done("edge1", PostOutcome::Taken);
    assert_eq!(controller.posts(), Vec::<String>::new());
    assert_eq!(controller.schedule.next_due_at(), None, "edge0's answer is awaited");
    controller.done("edge0", PostOutcome::Taken);
    assert_eq!(controller.all_taken(), ["edge0 b"]);
    assert_eq!(controller.advance(), 250);
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
}

#[test]
fn connected_node_gets_several_messages_at_once_and_its_index_after_them() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
    let texts: Vec<String> = (0..=MAX_POSTS).map(|number| format!("m{number}")).collect();
    for text in &texts {
        controller.enqueue("edge0", text);
    }
    controller.enqueue("edge0", "index2");
    let expected: Vec<_> = texts.iter().map(|text| format!("edge0 {text}")).collect();
    assert_eq!(controller.posts(), expected[..MAX_POSTS]);
    controller.done("edge0", PostOutcome::Taken);
    assert_eq!(controller.posts(), expected[MAX_POSTS..]);
    controller.now += Duration::from_secs(1);
    for _ in 0..MAX_POSTS {
        assert_eq!(controller.posts(), Vec::<String>::new(), "the index waits for all of them");
        controller.done("edge0", PostOutcome::Taken);
    }
    assert_eq!(controller.posts(), ["edge0 index2"]);
    controller.enqueue("edge0", "later");
    assert_eq!(controller.posts(), ["edge0 later"], "it is newer than the index");
    controller.enqueue("edge0", "later");
    assert_eq!(controller.posts(), Vec::<String>::new(), "one at a time on a topic");
}

#[test]
fn objects_that_follow_each_other_have_one_index() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    controller.all_taken();
    controller.on_sync("edge0", 1);
    for number in 0..10 {
        controller.enqueue("edge0", &format!("m{number}"));
        controller.enqueue("edge0", &format!("index{number}0"));
        assert_eq!(controller.all_taken(), [format!("edge0 m{number}")]);
        controller.now += Duration::from_millis(100);
    }
    assert_eq!(controller.advance(), 900 + 250);
    assert_eq!(controller.all_taken(), ["edge0 index90"]);
    controller.enqueue("edge0", "index100");
    assert_eq!(controller.all_taken(), ["edge0 index100"], "no object was queued since");
}

#[test]
fn index_of_objects_without_a_pause_is_posted_after_two_seconds() {
    let mut controller = Harness::new();
    controller.on_sign_of_life("edge0", false);
    let mut indexes = Vec::new();
    for number in 0..60 {
        controller.enqueue("edge0", &format!("m{number}"));
        controller.enqueue("edge0", &format!("index{number}"));
        let posts = controller.all_taken();
        if posts.iter().any(|post| post.contains("index")) {
            indexes.push((controller.now - controller.start).as_millis());
        }
        controller.now += Duration::from_millis(100);
    }
    // The next object follows 100 ms after the first index.
    assert_eq!(indexes, [2000, 4100]);
}

#[test]
fn object_on_its_way_is_posted_once() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    controller.all_taken();
    controller.enqueue("edge0", "a");
    assert_eq!(controller.posts(), ["edge0 a"]);
    // A sync that was sent before.
    controller.enqueue("edge0", "a");
    controller.done("edge0", PostOutcome::Taken);
    controller.enqueue("edge0", "a");
    assert_eq!(controller.posts(), Vec::<String>::new());
    controller.now += Duration::from_secs(2);
    controller.on_sync("edge0", 1);
    controller.enqueue("edge0", "a");
    assert_eq!(controller.all_taken(), ["edge0 a"], "it was lost");
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.on_sign_of_life("edge0", true);
    controller.enqueue("edge0", "a");
    assert_eq!(controller.all_taken(), ["edge0 a"], "the session ended meanwhile");
}

#[test]
fn posts_in_flight_are_bounded_and_the_longest_waiting_is_next() {
    let mut controller = Harness::new();
    for node in 0..=MAX_IN_FLIGHT {
        controller.enqueue(&format!("n{node}"), "a");
        controller.enqueue(&format!("n{node}"), "b");
        controller.now += Duration::from_millis(1);
    }
    assert_eq!(controller.posts().len(), MAX_UNKNOWN);
    controller.done("n0", PostOutcome::Taken);
    assert_eq!(controller.posts(), [format!("n{MAX_UNKNOWN} a"), "n0 b".to_owned()]);
}

#[test]
fn nodes_without_session_do_not_delay_connected_ones() {
    let mut controller = Harness::new();
    for node in 0..200 {
        controller.enqueue(&format!("dead{node}"), "a");
    }
    controller.enqueue("live", "a");
    controller.on_sign_of_life("live", false);
    assert!(controller.posts().contains(&"live a".to_owned()), "it does not queue behind them");
    controller.enqueue("unseen", "a");
    let mut waited = None;
    while waited.is_none() && controller.now < controller.start + Duration::from_secs(20) {
        let ms = controller.advance();
        if controller.posts().contains(&"unseen a".to_owned()) {
            waited = Some(ms);
        }
    }
    assert!(waited.is_some_and(|ms| ms <= 2500), "a live node that was not seen yet: {waited:?}");
}

#[test]
fn index_is_repeated_until_the_node_confirms_it() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
    let mut times = Vec::new();
    for _ in 0..3 {
        times.push(controller.advance());
        assert_eq!(controller.all_taken(), ["edge0 index1"]);
    }
    assert_eq!(times, [2000, 6000, 14_000]);
    controller.enqueue("edge0", "index2");
    assert_eq!(controller.all_taken(), ["edge0 index2"]);
    controller.on_sync("edge0", 1);
    assert_eq!(controller.advance(), 16_000, "a new index begins with the shortest pause");
    controller.on_sync("edge0", 2);
    assert_eq!(controller.schedule.next_due_at(), None);
    assert_eq!(controller.posts(), Vec::<String>::new());
}

#[test]
fn node_without_a_session_gets_its_index_at_its_next_message() {
    let mut controller = Harness::new();
    for text in ["a", "index1"] {
        controller.enqueue("edge0", text);
    }
    controller.posts();
    controller.done("edge0", PostOutcome::NoSession);
    for text in ["b", "index2"] {
        controller.enqueue("edge0", text);
    }
    assert_eq!(controller.posts(), Vec::<String>::new());
    assert_eq!(controller.schedule.next_due_at(), None, "nothing is scheduled");
    controller.on_sign_of_life("edge0", false);
    assert_eq!(controller.all_taken(), ["edge0 index2"], "the sync that follows requests the rest");
}

#[test]
fn node_that_sent_a_message_during_a_post_is_tried_again() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    controller.posts();
    controller.on_sign_of_life("edge0", false);
    controller.done("edge0", PostOutcome::NoSession);
    assert_eq!(controller.advance(), 500);
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
}

#[test]
fn unready_node_gets_its_index_when_it_is_ready_or_sends_a_message() {
    let mut controller = Harness::new();
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.enqueue("edge0", "a");
    controller.enqueue("edge0", "index1");
    assert_eq!(controller.posts(), Vec::<String>::new());
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.set_readiness("edge0", NodeReadiness::Ready);
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
    controller.on_sync("edge0", 1);
    controller.set_readiness("edge0", NodeReadiness::Ready);
    assert_eq!(controller.posts(), Vec::<String>::new(), "no transition");
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.on_sign_of_life("edge0", false);
    assert_eq!(
        controller.all_taken(),
        ["edge0 index1"],
        "its message outweighs the kubelet's status"
    );
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.enqueue("edge0", "b");
    assert_eq!(
        controller.all_taken(),
        ["edge0 b"],
        "no transition, and the node sent a message since"
    );
}

#[test]
fn returning_node_gets_its_index_even_if_confirmed() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    controller.all_taken();
    controller.on_sync("edge0", 1);
    controller.on_sign_of_life("edge0", false);
    assert_eq!(controller.posts(), Vec::<String>::new());
    controller.on_sign_of_life("edge0", true);
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
    assert_eq!(controller.advance(), 2000);
}

#[test]
fn silent_node_gets_its_index_at_its_first_message() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "index1");
    controller.all_taken();
    while controller.schedule.next_due_at().is_some() {
        controller.advance();
        controller.all_taken();
    }
    assert_eq!((controller.now - controller.start).as_secs(), 2 + 4 + 8 + 16 + 32 + 60);
    controller.on_sign_of_life("edge0", false);
    assert_eq!(controller.all_taken(), ["edge0 index1"]);
}

#[test]
fn without_rule_or_router_all_nodes_wait_and_nothing_is_dropped() {
    for outcome in [PostOutcome::NoRule, PostOutcome::NoRouter] {
        let mut controller = Harness::new();
        controller.enqueue("edge0", "a");
        controller.enqueue("edge1", "a");
        controller.posts();
        controller.done("edge0", outcome);
        controller.done("edge1", outcome);
        assert!(!controller.schedule.is_router_reachable());
        controller.enqueue("edge2", "a");
        assert_eq!(controller.posts(), Vec::<String>::new());
        assert_eq!(controller.advance(), 250, "two that failed together are one failure");
        assert_eq!(controller.posts().len(), 3);
        controller.done("edge2", outcome);
        assert_eq!(controller.advance(), 250 + 500);
        for node in ["edge0", "edge1"] {
            controller.done(node, PostOutcome::Taken);
        }
        assert!(controller.schedule.is_router_reachable());
        assert_eq!(controller.all_taken(), ["edge2 a"]);
    }
}

#[test]
fn failed_post_is_repeated_after_a_pause_of_up_to_a_minute() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "a");
    let mut before = 0;
    let mut pauses = Vec::new();
    for _ in 0..9 {
        controller.posts();
        controller.done("edge0", PostOutcome::Failed);
        let now = controller.advance();
        pauses.push(now - before);
        before = now;
    }
    assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
    controller.enqueue("edge0", "b");
    assert_eq!(controller.all_taken(), ["edge0 a", "edge0 b"]);
}

#[test]
fn rejected_message_does_not_block_the_others() {
    let mut controller = Harness::new();
    controller.enqueue("edge0", "a");
    controller.enqueue("edge0", "b");
    controller.posts();
    controller.done("edge0", PostOutcome::TooLarge);
    assert_eq!(controller.all_taken(), ["edge0 b"]);
}

#[test]
fn deleted_node_leaves_no_state_and_a_returning_one_gets_its_index() {
    let mut controller = Harness::new();
    controller.set_readiness("edge0", NodeReadiness::Ready);
    controller.set_readiness("edge0", NodeReadiness::Gone);
    assert!(controller.schedule.nodes.is_empty());
    controller.set_readiness("edge0", NodeReadiness::NotReady);
    controller.on_sign_of_life("edge0", false);
    controller.enqueue("edge0", "a");
    controller.set_readiness("edge0", NodeReadiness::Gone);
    assert!(controller.schedule.nodes.is_empty(), "it was not ready before");
    controller.enqueue("edge1", "index1");
    controller.set_readiness("edge1", NodeReadiness::Gone);
    assert_eq!(controller.posts(), Vec::<String>::new());
    controller.set_readiness("edge1", NodeReadiness::Ready);
    assert_eq!(controller.all_taken(), ["edge1 index1"]);
}

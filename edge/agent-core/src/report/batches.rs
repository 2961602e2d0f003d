//! Schedules the messages of a node over `KubeEdge`'s `EventBus`. `EventBus` has a low throughput,
//! loses messages silently and retains none. Therefore messages are sent in batches, at most one
//! per second, and repeated. Publishing a batch is left to publisher.rs.
//!
//! | message | is sent |
//! |---|---|
//! | retained | at once; again after 5 to 10 s, 10 to 20 s, ... and then every 2.5 to 5 minutes |
//! | clears a retained one | like a retained one, four times in total |
//! | any other | once |
//! | equal to the last one on its topic | not again |
//! | an answer to a request | once, behind the others; at most one per batch |
//! | none within a heartbeat interval | as an empty batch, the heartbeat |
//!
//! In a large fleet retained messages wait longer for the next batch, so that all nodes together
//! send a limited number. A message after a pause, and any that is not retained, does not wait.
//!
//! A message that was lost in an outage is sent again within 10 s or the length of the outage after
//! its end, and within 5 minutes at the latest. A repetition is the same message with the same
//! sequence number, so that nothing is counted twice.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use neptune_wire::{Batch, BatchMessage, Payload};

use crate::{backoff::EVENTBUS_REPEAT, domain::identity::AgentIdentity};

/// Minimum time between two batches.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of a batch in bytes. A larger message is sent in its own batch, such as a sync of
/// more than about 400 objects. The controller accepts batches up to the limit of `KubeEdge`'s
/// router, and counts a large one as several.
const MAX_BATCH_BYTES: usize = 64 * 1024;
/// Number of answers that wait. The controller repeats the request of one that is dropped.
const MAX_ANSWERS: usize = 8;
/// How often a clear is sent.
const CLEAR_REPETITIONS: u32 = 4;

/// The queue of messages and the schedule of batches.
#[derive(Debug)]
pub struct Batches {
    identity: AgentIdentity,
    heartbeat: Duration,
    /// Minimum time from a batch with messages to the next one for retained messages alone.
    interval: Duration,
    /// Size of a batch without messages, in bytes.
    frame_bytes: usize,
    seq: u64,
    /// [`Batch::uptime_ms`] at the last call of [`Batches::set_uptime`].
    uptime_ms: Option<u64>,
    last_at: Option<Instant>,
    /// When the last batch with messages was sent.
    content_at: Option<Instant>,
    /// The last message of each topic.
    queued: BTreeMap<String, QueuedMessage>,
    /// The answers, which do not replace each other, with their size.
    answers: VecDeque<(BatchMessage, usize)>,
    /// The last position that a message got in the queue.
    position: u64,
}

#[derive(Debug)]
struct QueuedMessage {
    payload: Payload,
    /// Size within a batch, in bytes.
    size: usize,
    is_retained: bool,
    sent_count: u32,
    /// When the message is sent next; `None` if it is sent with the next batch.
    at: Option<Instant>,
    /// Position of the message in the queue; lower positions are sent first.
    position: u64,
}

impl QueuedMessage {
    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }
}

impl Batches {
    /// An empty queue. An empty batch is due when none was sent for `heartbeat`.
    pub fn new(identity: AgentIdentity, heartbeat: Duration) -> Self {
        let longest = Batch {
            instance: identity.instance.clone(),
            epoch: identity.epoch,
            seq: u64::MAX,
            uptime_ms: Some(u64::MAX),
            messages: Vec::new(),
        };
        let frame_bytes = bytes(&longest).len();
        Self {
            identity,
            heartbeat,
            interval: MIN_INTERVAL,
            frame_bytes,
            seq: 0,
            uptime_ms: None,
            last_at: None,
            content_at: None,
            queued: BTreeMap::new(),
            answers: VecDeque::new(),
            position: 0,
        }
    }

    /// Numbers the batches above `seq`.
    #[must_use]
    pub fn starting_after(self, seq: u64) -> Self {
        Self { seq, ..self }
    }

    /// Queues a message; it replaces a queued one of its topic. The payload is JSON, or empty.
    pub fn put(&mut self, topic: String, payload: &[u8], is_retained: bool) {
        let payload = Payload::parse(payload).expect("messages are JSON");
        self.position += 1;
        let mut position = self.position;
        if let Some(before) = self.queued.get(&topic) {
            if before.is_retained && before.payload == payload {
                return;
            }
            if before.at.is_none() {
                position = before.position;
            }
        }
        let message = BatchMessage { topic, payload };
        let size = bytes(&message).len();
        let BatchMessage { topic, payload } = message;
        self.queued.insert(
            topic,
            QueuedMessage { payload, size, is_retained, sent_count: 0, at: None, position },
        );
    }

    /// Queues the answer to a request, unless it is queued already.
    pub fn put_answer(&mut self, topic: String, payload: &[u8]) {
        let payload = Payload::parse(payload).expect("messages are JSON");
        let message = BatchMessage { topic, payload };
        if self.answers.iter().any(|(queued, _)| *queued == message) {
            return;
        }
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.pop_front();
        }
        let size = bytes(&message).len();
        self.answers.push_back((message, size));
    }

    /// Makes every retained message due now, because the cloud may have lost its state.
    pub fn repeat_all(&mut self) {
        for message in self.queued.values_mut() {
            message.sent_count = 0;
            message.at = None;
        }
    }

    /// Sets the intervals of heartbeats and of batches with retained messages alone.
    pub fn set_intervals(&mut self, heartbeat: Duration, interval: Duration) {
        self.heartbeat = heartbeat;
        self.interval = interval.max(MIN_INTERVAL);
    }

    /// Whether a batch is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_at().is_none_or(|at| at <= now)
    }

    /// Sets the node's uptime, which the next batches state.
    pub fn set_uptime(&mut self, uptime_ms: Option<u64>) {
        self.uptime_ms = uptime_ms;
    }

    /// The batch that is due, which then counts as sent. `random` is any number, for jitter.
    pub fn due(&mut self, now: Instant, random: u64) -> Option<Vec<u8>> {
        self.is_due(now).then(|| self.batch(now, random))
    }

    /// When the next batch is due; `None` before the first one, which is due now.
    pub fn next_at(&self) -> Option<Instant> {
        let last_at = self.last_at?;
        let heartbeat_at = last_at + self.heartbeat;
        let retained_at = self.content_at.map_or(last_at, |at| at + self.interval);
        let queued = self.queued.values().map(|message| {
            let at = message.at.unwrap_or(last_at);
            if message.is_retained { at.max(retained_at) } else { at }
        });
        let answer = (!self.answers.is_empty()).then_some(last_at);
        let next = queued.chain(answer).min().map_or(heartbeat_at, |at| at.min(heartbeat_at));
        Some(next.max(last_at + MIN_INTERVAL))
    }

    /// All due messages in batches to send now, for a stopping agent.
    pub fn drain(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        while self.queued.values().any(|message| message.is_due(now)) {
            batches.push(self.batch(now, 0));
        }
        batches
    }

    fn batch(&mut self, now: Instant, random: u64) -> Vec<u8> {
        let mut waiting: Vec<_> =
            self.queued.iter().filter(|(_, message)| message.is_due(now)).collect();
        waiting.sort_by_key(|(_, message)| message.position);
        let mut size = self.frame_bytes;
        let (mut topics, mut is_full) = (Vec::new(), false);
        for (topic, message) in waiting {
            // Plus a comma.
            size += message.size + 1;
            is_full = size > MAX_BATCH_BYTES && !topics.is_empty();
            if is_full {
                break;
            }
            topics.push(topic.clone());
        }
        let has_room = topics.is_empty()
            || self.answers.front().is_some_and(|(_, it)| size + it < MAX_BATCH_BYTES);
        let answer = if is_full || !has_room { None } else { self.answers.pop_front() };
        self.seq += 1;
        self.last_at = Some(now);
        if !topics.is_empty() {
            // The messages that did not fit do not wait.
            self.content_at = (!is_full).then_some(now);
        }
        let messages = topics.into_iter().map(|topic| self.take(topic, now, random));
        let messages = messages.collect::<Vec<_>>().into_iter();
        bytes(&Batch {
            instance: self.identity.instance.clone(),
            epoch: self.identity.epoch,
            seq: self.seq,
            uptime_ms: self.uptime_ms,
            messages: messages.chain(answer.map(|(message, _)| message)).collect(),
        })
    }

    fn take(&mut self, topic: String, now: Instant, random: u64) -> BatchMessage {
        let message = self.queued.get_mut(&topic).expect("the topic was just listed");
        message.sent_count = message.sent_count.saturating_add(1);
        self.position += 1;
        message.position = self.position;
        message.at = Some(now + EVENTBUS_REPEAT.delay(message.sent_count, random));
        let payload = message.payload.clone();
        if !message.is_retained || payload.is_empty() && message.sent_count >= CLEAR_REPETITIONS {
            self.queued.remove(&topic);
        }
        BatchMessage { topic, payload }
    }
}

fn bytes(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("wire values have text keys and finite numbers")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use std::fmt::Write as _;

    use neptune_wire::AgentInstance;
    use serde_json::json;

    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(15);

    fn batches() -> Batches {
        Batches::new(AgentIdentity { instance: AgentInstance("i".repeat(32)), epoch: 3 }, HEARTBEAT)
    }

    /// The number and the messages of a batch, such as `a=1 b=null`.
    fn read(batch: &[u8]) -> (u64, String) {
        let batch: Batch = serde_json::from_slice(batch).unwrap();
        let mut text = String::new();
        for BatchMessage { topic, payload } in batch.messages {
            let space = if text.is_empty() { "" } else { " " };
            write!(text, "{space}{topic}={payload}").unwrap();
        }
        (batch.seq, text)
    }

    /// All batches until `end` seconds: the second and the messages of each.
    fn sent_until(
        batches: &mut Batches,
        start: Instant,
        mut now: Instant,
        end: u64,
    ) -> Vec<(u64, String)> {
        let mut sent = Vec::new();
        while now < start + Duration::from_secs(end) {
            let batch = batches.due(now, u64::MAX).expect("a batch is due at the announced time");
            sent.push((now.duration_since(start).as_secs(), read(&batch).1));
            now = batches.next_at().unwrap();
        }
        sent
    }

    #[test]
    fn messages_within_a_second_share_a_batch_with_the_newest_per_topic() {
        let (mut batches, start) = (batches(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        batches.put("first".into(), b"0", true);
        let first = batches.due(after(0), 0).unwrap();
        assert_eq!(read(&first), (1, "first=0".into()));
        for (ms, topic, payload) in
            [(1, "b", "1"), (2, "a", "1"), (3, "b", "2"), (4, "c", ""), (5, "first", "0")]
        {
            batches.put(topic.into(), payload.as_bytes(), true);
            assert_eq!(batches.due(after(ms), 0), None);
        }
        assert_eq!(batches.next_at(), Some(after(1000)));
        batches.set_uptime(Some(700));
        let second = batches.due(after(1000), 0).unwrap();
        assert_eq!(
            read(&second),
            (2, "b=2 a=1 c=null".into()),
            "an unchanged message is not sent again"
        );
        let batch: Batch = serde_json::from_slice(&second).unwrap();
        assert_eq!((batch.instance.0.len(), batch.epoch, batch.uptime_ms), (32, 3, Some(700)));
    }

    #[test]
    fn batch_has_at_most_one_answer_behind_the_other_messages() {
        let (mut batches, start) = (batches(), Instant::now());
        for payload in ["1", "2", "1", "3"] {
            batches.put_answer("answer".into(), payload.as_bytes());
        }
        batches.put("a".into(), b"1", true);
        batches.put("sync".into(), b"2", false);
        let sent = sent_until(&mut batches, start, start, 4);
        let expected = [(0, "a=1 sync=2 answer=1"), (1, "answer=2"), (2, "answer=3")];
        assert_eq!(sent[..3], expected.map(|(at, text)| (at, text.to_owned())));
        assert!(sent.iter().skip(3).all(|(_, text)| !text.contains("answer")), "{sent:?}");
        // An answer waits for a batch with room.
        let large = format!("\"{}\"", "x".repeat(40 * 1024));
        batches.put("status".into(), large.as_bytes(), false);
        batches.put_answer("answer".into(), large.as_bytes());
        let at = batches.next_at().unwrap();
        let sent = sent_until(&mut batches, at, at, 2);
        assert!(!sent[0].1.contains("answer") && sent[1].1.starts_with("answer="));
    }

    #[test]
    fn retained_messages_repeat_with_backoff_between_heartbeats() {
        let (mut batches, start) = (batches(), Instant::now());
        batches.put("a".into(), b"1", true);
        batches.put("sync".into(), b"2", false);
        let sent = sent_until(&mut batches, start, start, 1800);
        assert_eq!(sent[0], (0, "a=1 sync=2".into()));
        let times = sent.iter().filter(|(_, text)| text.contains("a=1")).map(|(at, _)| *at);
        let times: Vec<_> = times.collect();
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = [10, 20, 40, 80, 160, 300, 300, 300].into_iter();
        assert!(pauses.len() >= longest.len(), "{pauses:?}");
        for (pause, longest) in pauses.iter().zip(longest) {
            // Times are rounded to seconds.
            assert!((longest / 2..=longest + 1).contains(pause), "{pauses:?}");
        }
        let silences = sent.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert_eq!(silences.max(), Some(15));
        assert!(sent[1..].iter().all(|(_, text)| text == "a=1" || text.is_empty()));
    }

    #[test]
    fn repeat_all_restarts_the_backoff_and_a_clear_is_sent_four_times() {
        let (mut batches, start) = (batches(), Instant::now());
        let after = |s| start + Duration::from_secs(s);
        batches.put("a".into(), b"1", true);
        sent_until(&mut batches, start, start, 1000);
        batches.repeat_all();
        let repeated = sent_until(&mut batches, start, after(1001), 1012);
        assert_eq!(repeated[0], (1001, "a=1".into()));
        assert_eq!(repeated.iter().filter(|(_, text)| text == "a=1").count(), 2, "{repeated:?}");
        batches.put("a".into(), b"", true);
        let cleared = sent_until(&mut batches, start, after(1100), 3600);
        assert_eq!(cleared.iter().filter(|(_, text)| text == "a=null").count(), 4);
        assert!(batches.queued.is_empty());
    }

    #[test]
    fn batches_stay_below_the_limit_and_larger_messages_are_sent_alone() {
        let (mut batches, start) = (batches(), Instant::now());
        for n in 0..200 {
            let payload = json!("x".repeat(997)).to_string();
            batches.put(format!("topic/{n:03}"), payload.as_bytes(), false);
        }
        let large = json!("\u{fe}\u{0}".repeat(MAX_BATCH_BYTES)).to_string();
        batches.put("topic/large".into(), large.as_bytes(), false);
        batches.put("topic/last".into(), b"1", false);
        let (mut now, mut topics, mut sizes) = (start, Vec::new(), Vec::new());
        for _ in 0..6 {
            let batch = batches.due(now, 0).unwrap();
            sizes.push(batch.len());
            let read: Batch = serde_json::from_slice(&batch).unwrap();
            topics.extend(read.messages.into_iter().map(|message| message.topic));
            now = batches.next_at().unwrap();
        }
        assert_eq!(topics.len(), 202);
        assert!(topics.is_sorted(), "in queue order");
        assert_eq!(now, start + Duration::from_secs(20), "5 s for six batches, and a heartbeat");
        assert!(
            sizes[..3].iter().all(|size| (MAX_BATCH_BYTES - 1100..=MAX_BATCH_BYTES).contains(size)),
            "{sizes:?}"
        );
        assert!(sizes[4] > MAX_BATCH_BYTES && sizes[5] < 200, "{sizes:?}");
    }

    #[test]
    fn in_a_large_fleet_changing_messages_wait_and_first_ones_and_syncs_do_not() {
        let (mut batches, start) = (batches(), Instant::now());
        let second = |n| start + Duration::from_secs(n);
        batches.set_intervals(Duration::from_secs(20), Duration::from_secs(20));
        let mut sent = Vec::new();
        for n in 0..100 {
            batches.put("counters".into(), n.to_string().as_bytes(), true);
            if n == 30 {
                batches.put("sync".into(), b"1", false);
            }
            sent.extend(batches.due(second(n), 0).map(|_| n));
        }
        assert_eq!(
            sent,
            [0, 20, 30, 50, 70, 90],
            "a sync does not wait, and takes the others along"
        );
        let mut idle = Batches::new(batches.identity.clone(), Duration::from_secs(20));
        idle.set_intervals(Duration::from_secs(20), Duration::from_secs(20));
        assert!(idle.due(second(0), 0).is_some() && idle.next_at() == Some(second(20)));
        assert!(idle.due(second(20), 0).is_some());
        idle.put("state".into(), b"1", true);
        assert_eq!(idle.next_at(), Some(second(21)), "only heartbeats came before");
        let large = json!("x".repeat(MAX_BATCH_BYTES)).to_string();
        idle.put("large".into(), large.as_bytes(), true);
        assert!(idle.due(second(21), 0).is_some());
        assert_eq!(idle.next_at(), Some(second(22)), "the rest of a full batch");
    }

    #[test]
    fn drain_returns_all_queued_messages() {
        let (mut batches, start) = (batches(), Instant::now());
        batches.put("node".into(), b"1", true);
        assert!(batches.due(start, 0).is_some());
        batches.put("a".into(), b"1", true);
        batches.put("node".into(), b"0", true);
        let rest = batches.drain(start);
        assert_eq!(
            rest.iter().map(|batch| read(batch)).collect::<Vec<_>>(),
            [(2, "a=1 node=0".into())]
        );
        assert_eq!(batches.drain(start), Vec::<Vec<u8>>::new());
    }

    /// The node has four services that do not change, and syncs every few minutes.
    #[test]
    fn idle_node_sends_less_than_300_bits_per_second() {
        let (mut batches, start) = (batches(), Instant::now());
        batches.set_uptime(Some(30 * 24 * 3600 * 1000));
        let payload = |bytes: usize| json!("x".repeat(bytes)).to_string();
        let status =
            |n| format!("neptune/edge0/upstream/default/jointinferenceservices/s{n}/status");
        for n in 0..4 {
            batches.put(status(n), payload(600).as_bytes(), true);
        }
        batches.put("neptune/edge0/upstream/node".into(), payload(200).as_bytes(), true);
        let (mut now, mut octets, day) = (start, 0, Duration::from_secs(24 * 3600));
        let mut sync_at = start;
        while now < start + day {
            if now >= sync_at {
                let sync = payload(1000);
                batches.put("neptune/edge0/upstream/sync".into(), sync.as_bytes(), false);
                sync_at += Duration::from_secs(225);
            }
            octets += batches.due(now, now.duration_since(start).as_secs()).unwrap().len();
            now = batches.next_at().unwrap();
        }
        let bits = octets * 8 / usize::try_from(day.as_secs()).unwrap();
        assert!((100..300).contains(&bits), "{bits} bit/s");
    }
}

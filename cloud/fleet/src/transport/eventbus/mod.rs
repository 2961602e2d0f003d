//! The transport through `KubeEdge`, without a broker in the cloud: a POST to cloudcore's router
//! becomes a message on the node's local broker, and a message on that broker becomes a POST to
//! this program. Delivery is at most once, regardless of the response; see docs/kubeedge.md.

mod base_url;
mod batch_interval;
mod confirm;
mod fleet_rate;
mod order;
mod outbox;
mod post;
mod rate;
mod receive;
mod rules;
mod schedule;
mod secret;
mod token;

use std::{
    collections::HashSet,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::reflector::Store};
use neptune_cloud_kinds::kubernetes::nodes::{NodeReadiness, is_edge_node};
use neptune_cloud_metrics::{Metrics, PostOutcome, Rejection};
use neptune_program::listen;
use neptune_wire::{
    Namespace, NodeName, NodeRequest, Sync, Topic, TopicPrefix, encode, source::DownstreamMessage,
};
use tokio::{
    net::TcpListener,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
};

pub use self::{
    base_url::BaseUrl,
    fleet_rate::DEFAULT_FLEET_RATE,
    order::{OrderKind, Orders},
};
use crate::{
    error::Error,
    token_key::TokenKey,
    transport::{
        Refused, Transport, TransportEvent, TransportEvents,
        eventbus::{
            fleet_rate::{FleetRate, RateChange},
            outbox::QueuedMessage,
            rate::Rates,
            rules::RulesState,
            schedule::Schedule,
            token::Tokens,
        },
    },
};

/// The heartbeat of agents on this transport, in seconds.
pub const HEARTBEAT_SECONDS: u32 = 15;

/// Maximum message size in bytes. The router responds 400 to a larger one. The limit of a node's
/// batches is the same, because a sync lists everything that was published to the node.
const MAX_MESSAGE_BYTES: usize = 12 << 20;

/// Batches that may wait to be processed.
const MAX_QUEUED_ARRIVALS: usize = 64;

/// Total size in KiB of the large batches that are being read or wait.
const LARGE_BUFFER_KIB: u32 = 16 * 1024;

/// Total size in KiB of the other batches that are being read or wait. A node that sends large
/// batches slowly does not delay them.
const BUFFER_KIB: u32 = 8 * 1024;

/// A batch with more bytes is large. Agents fill batches up to 64 KiB.
const LARGE: usize = 128 * 1024;

/// Senders whose rejected batches were logged. Batches of more senders are only counted.
const MAX_WARNED_SENDERS: usize = 1024;

/// The addresses and names of this transport.
#[derive(Debug, Clone)]
pub struct EventBusSettings {
    /// The URL of `KubeEdge`'s router.
    pub router: BaseUrl,
    /// The namespace of the Rules.
    pub namespace: Namespace,
    /// The URL to which the Rules send the nodes' messages: this program, as cloudcore reaches it.
    pub upstream: BaseUrl,
    /// The prefix of every topic.
    pub prefix: TopicPrefix,
    /// The file with the key of the tokens in the Rules' URLs.
    pub token_file: Option<PathBuf>,
    /// Batches per second that all nodes may send together.
    pub fleet_rate: u32,
}

/// A received event, with the buffer space that it occupies until it is processed.
pub type Arrival = (TransportEvent, OwnedSemaphorePermit);

/// The transport through `KubeEdge`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventBus(Arc<EventBusInner>);

#[derive(Debug)]
struct EventBusInner {
    settings: EventBusSettings,
    listener: TcpListener,
    client: reqwest::Client,
    metrics: Metrics,
    arrivals: mpsc::Sender<Arrival>,
    buffer: Arc<Semaphore>,
    large_buffer: Arc<Semaphore>,
    schedule: Mutex<Schedule>,
    /// The number of nodes with a Rule.
    nodes: AtomicUsize,
    /// Notified when the schedule changed.
    changed: Notify,
    rates: Mutex<Rates>,
    fleet_rate: Mutex<FleetRate>,
    tokens: Mutex<Tokens>,
    rules: Mutex<RulesState>,
    /// The nodes or the key of the tokens changed.
    rules_changed: Notify,
    warned_outcome: Mutex<Option<PostOutcome>>,
    warned_senders: Mutex<HashSet<(String, Rejection)>>,
}

impl EventBus {
    /// Binds the receiver's address. Nothing is posted or received before `EventBus::run`.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Client`], [`Error::TopicPrefix`] or [`Error::TokenFile`]. A
    /// missing `KubeEdge` is not an error.
    pub fn start(
        settings: EventBusSettings,
        listen: SocketAddr,
        metrics: Metrics,
    ) -> Result<(Transport, TransportEvents), Error> {
        let prefix = settings.prefix.to_string();
        // The rule's path is a regular expression for cloudcore, and part of a URL.
        if !prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte)) {
            return Err(Error::TopicPrefix(prefix));
        }
        let key = settings.token_file.as_deref();
        let key = key.map(|path| TokenKey::read(secret::FLAG, path)).transpose()?;
        let failed = |source| Error::Listen { flag: "--upstream-listen", address: listen, source };
        let listener = listen::bind(listen).map_err(failed)?;
        let client = post::client().map_err(|error| Error::Client(error.to_string()))?;
        let (arrivals, events) = mpsc::channel(MAX_QUEUED_ARRIVALS);
        metrics.set_fleet_rate(settings.fleet_rate);
        let fleet_rate = Mutex::new(FleetRate::new(settings.fleet_rate));
        let inner = EventBusInner {
            settings,
            listener,
            client,
            metrics,
            arrivals,
            buffer: Arc::new(Semaphore::new(BUFFER_KIB as usize)),
            large_buffer: Arc::new(Semaphore::new(LARGE_BUFFER_KIB as usize)),
            schedule: Mutex::default(),
            nodes: AtomicUsize::new(0),
            changed: Notify::new(),
            rates: Mutex::default(),
            fleet_rate,
            tokens: Mutex::new(Tokens::new(key)),
            rules: Mutex::default(),
            rules_changed: Notify::new(),
            warned_outcome: Mutex::default(),
            warned_senders: Mutex::default(),
        };
        Ok((Transport::EventBus(Self(Arc::new(inner))), TransportEvents::EventBus(events)))
    }

    /// Posts, receives and reconciles the Rules, indefinitely. The cache of the nodes must be
    /// complete.
    pub(super) async fn run(&self, client: &kube::Client, nodes: &Store<Node>) {
        self.count_nodes(nodes);
        futures::join!(
            post::run(self),
            receive::run(self, &self.0.listener, nodes),
            rules::run(self, client, nodes),
            secret::follow(self),
        );
    }

    pub(super) fn publish(
        &self,
        node: &NodeName,
        message: &DownstreamMessage,
    ) -> Result<(), Refused> {
        let (topic, payload) = message.encode(node);
        let topic = topic.under(&self.0.settings.prefix);
        if payload.len() > MAX_MESSAGE_BYTES {
            let size = payload.len();
            let text = format!(
                "message on {topic} has {size} bytes; KubeEdge's router accepts at most {MAX_MESSAGE_BYTES}"
            );
            return Err(Refused::TooLarge(text));
        }
        let index = match message {
            DownstreamMessage::Index(index) => Some(index.revision),
            DownstreamMessage::Insert(..) | DownstreamMessage::Delete(..) => None,
        };
        let message = QueuedMessage { topic, payload: payload.into(), index };
        self.change(|schedule, now| schedule.enqueue(node, message, now));
        Ok(())
    }

    pub(super) fn request(&self, node: &NodeName, request: &NodeRequest) {
        let topic = Topic::Request(node.clone()).under(&self.0.settings.prefix);
        // Its size is bounded by that of the names in it.
        let message = QueuedMessage { topic, payload: encode(request).into(), index: None };
        self.change(|schedule, now| schedule.enqueue(node, message, now));
    }

    pub(super) fn on_sign_of_life(&self, node: &NodeName, is_back: bool) {
        self.change(|schedule, now| schedule.on_sign_of_life(node, is_back, now));
    }

    pub(super) fn on_sync(&self, node: &NodeName, sync: &Sync) {
        self.change(|schedule, now| schedule.on_sync(node, sync, now));
    }

    pub(super) fn set_readiness(&self, node: &NodeName, readiness: NodeReadiness) {
        self.change(|schedule, now| schedule.set_readiness(node, readiness, now));
    }

    pub(super) fn on_nodes_changed(&self) {
        self.0.rules_changed.notify_one();
    }

    pub(super) fn batch_seconds(&self) -> Option<u32> {
        let rate = self.fleet_rate().rate();
        let seconds = batch_interval::batch_seconds(self.0.nodes.load(Ordering::Relaxed), rate);
        Some(seconds).filter(|seconds| *seconds > 1)
    }

    fn count_nodes(&self, nodes: &Store<Node>) {
        let nodes = nodes.state();
        let count = nodes.iter().filter(|node| is_edge_node(node.labels())).count();
        self.0.nodes.store(count, Ordering::Relaxed);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.schedule().is_router_reachable() && self.lock_rules().is_listed()
    }

    /// Ready once the Rules were listed. A Rule that cannot be created concerns its node only: a
    /// program that is not ready would get no messages of the other nodes either.
    pub(super) fn readiness(&self) -> (bool, String) {
        let rules = self.lock_rules();
        let text = match &*rules {
            RulesState::InPlace => "in place",
            RulesState::Unlisted(why) | RulesState::Incomplete(why) => why,
        };
        (rules.is_listed(), format!("receiver: listening\nrules: {text}\n"))
    }

    fn set_rules_state(&self, state: RulesState) {
        let mut held = self.lock_rules();
        if *held != state {
            match &state {
                RulesState::InPlace => tracing::info!("KubeEdge Rules are in place"),
                RulesState::Unlisted(why) | RulesState::Incomplete(why) => {
                    tracing::warn!(why, "KubeEdge Rules are not in place");
                }
            }
            self.0.metrics.set_rules_in_place(state == RulesState::InPlace);
            *held = state;
        }
    }

    /// Takes how long the router took for a post, and slows the nodes down if it is slow.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_answer(&self, outcome: PostOutcome, answer: Duration) {
        // Other outcomes have durations of their own: without a session it is always 2 s.
        if !matches!(outcome, PostOutcome::Taken | PostOutcome::Failed) {
            return;
        }
        let mut fleet_rate = self.fleet_rate();
        let Some(change) = fleet_rate.observe(answer, Instant::now()) else { return };
        let (rate, max) = (fleet_rate.rate(), fleet_rate.max());
        drop(fleet_rate);
        self.0.metrics.set_fleet_rate(rate);
        match change {
            RateChange::Slowed => tracing::warn!(
                rate,
                max,
                answer_ms = answer.as_millis(),
                "the router answers slowly; nodes send fewer batches per second. Raise cloudcore's CPU limit, or lower --fleet-rate"
            ),
            RateChange::Raised => tracing::info!(rate, max, "nodes send more batches per second"),
        }
    }

    /// Logs a failure of the router once, until a post succeeds.
    fn warn_outcome(&self, outcome: PostOutcome, why: &str) {
        let mut warned_outcome = self.0.warned_outcome.lock().expect(NO_PANIC);
        match outcome {
            PostOutcome::Taken => *warned_outcome = None,
            // A disconnected node is not a failure of the router.
            PostOutcome::NoSession => {}
            _ if warned_outcome.replace(outcome) == Some(outcome) => {}
            _ => {
                let router = &self.0.settings.router;
                tracing::warn!(%router, ?outcome, why, "router accepted no message");
            }
        }
    }

    /// Logs a dropped batch, once per sender and reason.
    fn warn_once(&self, path: &str, reason: Rejection, why: impl FnOnce() -> String) {
        let mut warned_senders = self.0.warned_senders.lock().expect(NO_PANIC);
        // Without the token.
        let sender = path.split('/').nth(2).unwrap_or_default();
        if warned_senders.len() < MAX_WARNED_SENDERS
            && warned_senders.insert((sender.to_owned(), reason))
        {
            let why = why();
            tracing::warn!(
                node = sender,
                why,
                "dropped a batch; further ones of this node are only counted"
            );
        }
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn change(&self, change: impl FnOnce(&mut Schedule, Instant)) {
        change(&mut self.schedule(), Instant::now());
        self.0.changed.notify_one();
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.0.schedule.lock().expect(NO_PANIC)
    }

    /// Waits until there is buffer space for a batch of this size.
    async fn reserve_buffer(&self, bytes: usize) -> OwnedSemaphorePermit {
        let (buffer, size) = if bytes > LARGE {
            (&self.0.large_buffer, LARGE_BUFFER_KIB)
        } else {
            (&self.0.buffer, BUFFER_KIB)
        };
        let needed = u32::try_from(bytes.div_ceil(1024)).unwrap_or(size).min(size);
        let buffer = Arc::clone(buffer).acquire_many_owned(needed).await;
        buffer.expect("the semaphore is never closed")
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.0.rates.lock().expect(NO_PANIC)
    }

    fn fleet_rate(&self) -> MutexGuard<'_, FleetRate> {
        self.0.fleet_rate.lock().expect(NO_PANIC)
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.0.tokens.lock().expect(NO_PANIC)
    }

    fn lock_rules(&self) -> MutexGuard<'_, RulesState> {
        self.0.rules.lock().expect(NO_PANIC)
    }
}

const NO_PANIC: &str = "nothing panics while it holds this lock";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{EncodedContent, EncodedInsert, Revision};
    use serde_json::json;

    use super::*;

    fn start(prefix: &str, token_file: Option<PathBuf>) -> Result<Transport, Error> {
        // Fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = EventBusSettings {
            router: "http://127.0.0.1:9".parse().unwrap(),
            namespace: "neptune-system".parse().unwrap(),
            upstream: "http://127.0.0.1:9".parse().unwrap(),
            prefix: prefix.parse().unwrap(),
            token_file,
            fleet_rate: DEFAULT_FLEET_RATE,
        };
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let started = EventBus::start(settings, listen, Metrics::default());
        started.map(|(transport, _)| transport)
    }

    fn insert(bytes: usize) -> DownstreamMessage {
        let content = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "spec": "a".repeat(bytes),
            "metadata": {"namespace": "default", "name": "a", "uid": "u"},
        }));
        let content = EncodedContent::new(&content.unwrap());
        let insert = EncodedInsert { revision: Revision(1), content };
        DownstreamMessage::Insert("default/models/a".parse().unwrap(), insert)
    }

    #[tokio::test]
    async fn too_large_message_is_rejected_before_it_is_posted() {
        let transport = start("neptune", None).unwrap();
        let node = "edge0".parse().unwrap();
        assert!(transport.publish(&node, &insert(MAX_MESSAGE_BYTES / 2)).is_ok());
        let Err(Refused::TooLarge(text)) = transport.publish(&node, &insert(MAX_MESSAGE_BYTES))
        else {
            unreachable!("it is larger with its frame")
        };
        assert!(text.contains("edge0/downstream") && text.contains("12582912"), "{text}");
    }

    #[tokio::test]
    async fn invalid_prefix_and_token_file_are_rejected_at_start() {
        for prefix in ["nep.tune", "nep(tune", "nep?tune"] {
            let error = start(prefix, None).unwrap_err().to_string();
            assert!(error.starts_with("--topic-prefix"), "{error}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        for content in [None, Some("short")] {
            if let Some(content) = content {
                std::fs::write(&file, content).unwrap();
            }
            let error = start("neptune", Some(file.clone())).unwrap_err().to_string();
            assert!(error.starts_with("--upstream-token-file"), "{error}");
        }
    }
}

//! Listens to the nodes: reads each message, tells the fleet, and wakes whoever has to look again.
//! What a message changes is `fleet`'s.

use std::collections::BTreeSet;

use futures::future::{Either, select};
use k8s_openapi::jiff::Timestamp;
use neptune_link::Message;
use neptune_wire::{
    Batch, DecodeError, ModelOutput, NodeName, NodeReport, ObjectKey, OutputError, Resource,
    StatusReport, Sync, Topic, TopicPrefix, decode,
};
use serde_json::Value;

use crate::{
    controllers::Context,
    fleet::{Nudge, Presence},
    metrics::{Kind, Rejection},
    transport::{Event, Events, OrderKind, Orders},
};

/// Counters above this are refused: JSON numbers stay exact up to here, and a status could hold no more.
const LARGEST: u64 = 1 << 53;

/// Senders whose bad messages were logged; more than these are only counted.
const SENDERS_KEPT: usize = 1024;

/// Why a message was dropped.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error(transparent)]
    Topic(#[from] neptune_wire::TopicError),
    #[error("nodes do not speak on this topic")]
    Direction,
    #[error("node {from} speaks for another")]
    OtherNode { from: NodeName },
    #[error("there is no Node {node}; what it says counts when there is")]
    UnknownNode { node: NodeName },
    #[error(transparent)]
    Payload(#[from] DecodeError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("the numbers {inference} and {hard} of taskInfo cannot be")]
    Impossible { inference: u64, hard: u64 },
    #[error("there is no {key} with uid {uid:?}")]
    UnknownObject { key: ObjectKey, uid: String },
}

impl Rejected {
    fn reason(&self) -> Rejection {
        match self {
            Self::Topic(_) | Self::Direction => Rejection::Topic,
            Self::OtherNode { .. } => Rejection::OtherNode,
            Self::UnknownNode { .. } => Rejection::UnknownNode,
            Self::Payload(_) | Self::Output(_) => Rejection::Payload,
            Self::Impossible { .. } => Rejection::Impossible,
            Self::UnknownObject { .. } => Rejection::UnknownObject,
        }
    }
}

/// What a message is worth, by the way it came.
#[derive(Debug, Clone, Copy)]
struct Worth {
    /// It was said just now: a sign of life.
    is_live: bool,
    /// A newer one has come before it, and it has no order of its own.
    is_late: bool,
}

/// What is remembered between messages.
struct Ears {
    context: Context,
    prefix: TopicPrefix,
    orders: Orders,
    blamed: BTreeSet<(String, Rejection)>,
}

/// Listens until the transport is closed.
pub async fn listen(mut events: Events, context: Context, prefix: TopicPrefix) {
    let mut ears = Ears { context, prefix, orders: Orders::default(), blamed: BTreeSet::new() };
    loop {
        let expiry = tokio::time::sleep(until_expiry(&ears.context));
        let next = std::pin::pin!(events.next());
        match select(next, std::pin::pin!(expiry)).await {
            Either::Left((None, _)) => return,
            Either::Left((Some(event), _)) => ears.on_event(event),
            Either::Right(_) => {
                let expired = ears.context.fleet().expire(Timestamp::now());
                for node in expired {
                    tracing::warn!(%node, "no heartbeat: the node is offline");
                    ears.context.wake_node(&node);
                }
            }
        }
        count_nodes(&ears.context);
    }
}

fn until_expiry(context: &Context) -> std::time::Duration {
    /// Long enough to cost nothing: any message makes the loop look again.
    const IDLE: std::time::Duration = std::time::Duration::from_secs(3600);
    let next = context.fleet().next_expiry();
    next.map_or(IDLE, |at| at.duration_since(Timestamp::now()).try_into().unwrap_or_default())
}

impl Ears {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Up => {
                self.context.fleet().listens_anew();
                self.context.downstream().repeat();
            }
            Event::Down => {}
            Event::Message(message) => {
                if let Err(rejected) = self.on_published(&message) {
                    self.reject(sender(&message.topic), &message.topic, &rejected);
                }
            }
            Event::Batch(node, batch) => self.on_batch(&node, &batch),
        }
    }

    /// A broker knows who may speak as which node, and not which nodes there are.
    fn on_published(&self, message: &Message) -> Result<(), Rejected> {
        let topic = Topic::parse(&self.prefix, &message.topic)?;
        if let Some(node) = speaker(&topic).filter(|node| !self.context.is_registered(node)) {
            self.context.downstream().transport().refused(node);
            // If it was registered since that look, nobody tells the transport any more.
            if !self.context.is_registered(node) {
                return Err(Rejected::UnknownNode { node: node.clone() });
            }
        }
        let worth = Worth { is_live: !message.retain, is_late: false };
        on_message(&topic, &message.payload, worth, &self.context)
    }

    /// The batch itself says that the node is there; each message in it stands for itself.
    fn on_batch(&mut self, from: &NodeName, batch: &Batch) {
        let context = &self.context;
        context.metrics().received(Kind::Batch);
        let is_live = !self.orders.is_late(from, batch, OrderKind::Batch);
        if is_live {
            let (is_back, nudge) = {
                let mut fleet = context.fleet();
                let is_back = fleet.presence(from) != Presence::Online;
                (is_back, fleet.spoke(from, &batch.instance, batch.epoch, Timestamp::now()))
            };
            wake(context, nudge, from, None);
            context.downstream().transport().heard(from, is_back);
            context.downstream().spoke(from);
        }
        for message in &batch.messages {
            let payload = match &message.payload {
                Value::Null => Vec::new(),
                payload => serde_json::to_vec(payload).expect("a value is JSON"),
            };
            if let Err(rejected) = self.on_batched(from, batch, is_live, &message.topic, &payload) {
                self.reject(from.as_str(), &message.topic, &rejected);
            }
        }
    }

    fn on_batched(
        &mut self,
        from: &NodeName,
        batch: &Batch,
        is_live: bool,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), Rejected> {
        let topic = Topic::parse(&self.prefix, topic)?;
        if speaker(&topic).is_some_and(|speaker| speaker != from) {
            return Err(Rejected::OtherNode { from: from.clone() });
        }
        let is_late = match &topic {
            Topic::Sync(_) => self.orders.is_late(from, batch, OrderKind::Sync),
            Topic::Node(_) => self.orders.is_late(from, batch, OrderKind::Report),
            _ => !is_live,
        };
        // The sign of life was the batch, and a goodbye in it has the last word.
        on_message(&topic, payload, Worth { is_live: false, is_late }, &self.context)
    }

    fn reject(&mut self, sender: &str, topic: &str, rejected: &Rejected) {
        let reason = rejected.reason();
        self.context.metrics().rejected(reason);
        if self.blamed.len() < SENDERS_KEPT && self.blamed.insert((sender.to_owned(), reason)) {
            tracing::warn!(sender, topic, %rejected, "dropped a message; more of this kind from there are only counted");
        }
    }
}

/// The part of a topic that tells who speaks, also where the topic is none of ours.
fn sender(topic: &str) -> &str {
    topic.split("/upstream").next().unwrap_or_default()
}

/// The node that speaks on a topic, if nodes do.
fn speaker(topic: &Topic) -> Option<&NodeName> {
    match topic {
        Topic::Node(node) | Topic::Sync(node) | Topic::Status(node, _) => Some(node),
        _ => None,
    }
}

fn on_message(
    topic: &Topic,
    payload: &[u8],
    worth: Worth,
    context: &Context,
) -> Result<(), Rejected> {
    match topic {
        Topic::Node(node) => {
            // Nobody clears what a node said of itself, except who cleans a broker up.
            if payload.is_empty() {
                return Ok(());
            }
            let report = decode(payload)?;
            if !worth.is_late {
                on_node(node, report, worth.is_live, context);
            }
        }
        Topic::Sync(node) => {
            let sync = decode(payload)?;
            if !worth.is_late {
                on_sync(node, sync, worth.is_live, context);
            }
        }
        // Said again where messages come late, so one that is late need not be taken.
        Topic::Status(..) if payload.is_empty() && worth.is_late => {}
        Topic::Status(node, key) => {
            if payload.is_empty() {
                let nudge = context.fleet().cleared(node, key);
                wake(context, nudge, node, Some(key));
            } else {
                on_status(node, key, decode(payload)?, worth.is_live, context)?;
            }
        }
        Topic::Insert(..)
        | Topic::Delete(..)
        | Topic::Index(..)
        | Topic::WorkerReload(..)
        | Topic::WorkerInfo(..) => {
            return Err(Rejected::Direction);
        }
    }
    Ok(())
}

fn on_sync(node: &NodeName, sync: Sync, is_live: bool, context: &Context) {
    context.metrics().received(Kind::Sync);
    if is_live {
        let nudge = context.fleet().spoke(node, &sync.instance, sync.epoch, Timestamp::now());
        wake(context, nudge, node, None);
    }
    context.downstream().transport().synced(node, &sync);
    context.downstream().answer(node, sync);
}

fn on_node(node: &NodeName, report: NodeReport, is_live: bool, context: &Context) {
    context.metrics().received(Kind::Node);
    let online = report.online;
    let nudge = context.fleet().node_report(node, report, is_live, Timestamp::now());
    if nudge != Nudge::None {
        tracing::info!(%node, online, "node");
    }
    wake(context, nudge, node, None);
    if online {
        context.downstream().spoke(node);
    }
}

fn on_status(
    node: &NodeName,
    key: &ObjectKey,
    report: StatusReport,
    live: bool,
    context: &Context,
) -> Result<(), Rejected> {
    if let Some(info) = &report.output.task_info {
        let (inference, hard) = (info.inference_number, info.hard_example_number);
        if hard > inference || inference > LARGEST {
            return Err(Rejected::Impossible { inference, hard });
        }
    }
    ModelOutput::check(&report.output.models)?;
    if !context.exists(key, &report.uid) {
        return Err(Rejected::UnknownObject { key: key.clone(), uid: report.uid });
    }
    context.metrics().received(Kind::Status);
    on_models(node, key, &report.output.models, context);
    let nudge = context.fleet().status(node, key, report, live, Timestamp::now());
    wake(context, nudge, node, Some(key));
    Ok(())
}

/// What is said of a model that is not there, or is another one of that name, counts for nothing.
fn on_models(node: &NodeName, object: &ObjectKey, outputs: &[ModelOutput], context: &Context) {
    for output in outputs {
        let model = ObjectKey {
            namespace: object.namespace.clone(),
            resource: Resource::Models,
            name: output.model.clone(),
        };
        let is_news = context.exists(&model, &output.uid)
            && context.fleet().evaluated(node, object, output, Timestamp::now());
        if is_news {
            context.wake(&model);
        }
    }
}

fn wake(context: &Context, nudge: Nudge, node: &NodeName, key: Option<&ObjectKey>) {
    if nudge == Nudge::Node {
        context.wake_node(node);
    }
    if let Some(key) = key.filter(|_| nudge != Nudge::None) {
        context.wake(key);
    }
}

fn count_nodes(context: &Context) {
    use crate::metrics::State;
    let census = context.fleet().census();
    context.metrics().set_nodes(State::Online, census.online);
    context.metrics().set_nodes(State::Offline, census.offline);
}

//! Listens to the nodes: reads each message, tells the fleet, and wakes whoever has to look again.
//! What a message changes is `fleet`'s.

use std::collections::BTreeSet;

use futures::future::{Either, select};
use k8s_openapi::jiff::Timestamp;
use neptune_link::{Event, Events, Message};
use neptune_wire::{
    DecodeError, NodeName, NodeReport, ObjectKey, Prefix, StatusReport, Topic, decode,
};

use crate::{
    controllers::Context,
    fleet::Nudge,
    metrics::{Kind, Rejection},
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
    #[error(transparent)]
    Payload(#[from] DecodeError),
    #[error("the numbers {inference} and {hard} of taskInfo cannot be")]
    Impossible { inference: u64, hard: u64 },
    #[error("there is no {key} with uid {uid:?}")]
    UnknownObject { key: ObjectKey, uid: String },
}

impl Rejected {
    fn reason(&self) -> Rejection {
        match self {
            Self::Topic(_) | Self::Direction => Rejection::Topic,
            Self::Payload(_) => Rejection::Payload,
            Self::Impossible { .. } => Rejection::Impossible,
            Self::UnknownObject { .. } => Rejection::UnknownObject,
        }
    }
}

/// Listens until the link is closed.
pub async fn listen(mut events: Events, context: Context, prefix: Prefix) {
    let mut blamed = BTreeSet::new();
    loop {
        let expiry = tokio::time::sleep(until_expiry(&context));
        let next = std::pin::pin!(events.next());
        match select(next, std::pin::pin!(expiry)).await {
            Either::Left((None, _)) => return,
            Either::Left((Some(event), _)) => on_event(event, &context, &prefix, &mut blamed),
            Either::Right(_) => {
                let expired = context.fleet().expire(Timestamp::now());
                for node in expired {
                    tracing::warn!(%node, "no heartbeat: the node is offline");
                    context.wake_node(&node);
                }
            }
        }
        count_nodes(&context);
    }
}

fn until_expiry(context: &Context) -> std::time::Duration {
    /// Long enough to cost nothing: any message makes the loop look again.
    const IDLE: std::time::Duration = std::time::Duration::from_secs(3600);
    let next = context.fleet().next_expiry();
    next.map_or(IDLE, |at| at.duration_since(Timestamp::now()).try_into().unwrap_or_default())
}

fn on_event(event: Event, context: &Context, prefix: &Prefix, blamed: &mut BTreeSet<String>) {
    match event {
        Event::Up => {
            tracing::info!("connected to the broker");
            context.metrics().set_connected(true);
            context.downstream().repeat();
        }
        Event::Down { reason } => {
            tracing::warn!(reason, "no connection to the broker; trying again");
            context.metrics().set_connected(false);
        }
        Event::Message(message) => {
            if let Err(rejected) = on_message(&message, context, prefix) {
                context.metrics().rejected(rejected.reason());
                let sender = sender(&message.topic);
                if blamed.len() < SENDERS_KEPT && blamed.insert(sender.to_owned()) {
                    tracing::warn!(topic = message.topic, %rejected, "dropped a message; more of this sender are only counted");
                }
            }
        }
    }
}

/// The part of a topic that tells who speaks, also where the topic is none of ours.
fn sender(topic: &str) -> &str {
    topic.split("/upstream").next().unwrap_or_default()
}

fn on_message(message: &Message, context: &Context, prefix: &Prefix) -> Result<(), Rejected> {
    match Topic::parse(prefix, &message.topic)? {
        Topic::Node(node) => {
            // Nobody clears what a node said of itself, except who cleans a broker up.
            if message.payload.is_empty() {
                return Ok(());
            }
            on_node(&node, decode(&message.payload)?, context);
        }
        Topic::Sync(node) => {
            let sync = decode(&message.payload)?;
            context.metrics().received(Kind::Sync);
            let nudge = context.fleet().synced(&node, &sync, Timestamp::now());
            wake(context, nudge, &node, None);
            context.downstream().answer(&node, sync);
        }
        Topic::Status(node, key) => {
            if message.payload.is_empty() {
                let nudge = context.fleet().cleared(&node, &key);
                wake(context, nudge, &node, Some(&key));
            } else {
                let report = decode(&message.payload)?;
                on_status(&node, &key, report, !message.retain, context)?;
            }
        }
        Topic::Insert(..) | Topic::Delete(..) | Topic::Index(..) | Topic::WorkerInfo(..) => {
            return Err(Rejected::Direction);
        }
    }
    Ok(())
}

fn on_node(node: &NodeName, report: NodeReport, context: &Context) {
    context.metrics().received(Kind::Node);
    let online = report.online;
    let nudge = context.fleet().node_report(node, report, Timestamp::now());
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
    if !context.exists(key, &report.uid) {
        return Err(Rejected::UnknownObject { key: key.clone(), uid: report.uid });
    }
    context.metrics().received(Kind::Status);
    let nudge = context.fleet().status(node, key, report, live, Timestamp::now());
    wake(context, nudge, node, Some(key));
    Ok(())
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

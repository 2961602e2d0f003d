//! The label values of the metrics: closed enums, never user input, so the number of series is
//! bounded.

use neptune_api::SelectionCause;
use neptune_cloud_kinds::error_class::Class;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// Defines an enum whose variants are label values, with their `snake_case` text.
macro_rules! label_values {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
                let text = match self { $(Self::$variant => $text,)+ };
                text.encode(encoder)
            }
        }
    };
}

label_values! {
    /// Result of a reconciliation, a publish or a status write.
    Outcome {
        /// The reconciliation, publish or status write succeeded.
        Ok = "ok",
        /// Another client wrote first.
        Conflict = "conflict",
        /// The request was rejected.
        Refused = "refused",
        /// The request failed, and may succeed later.
        Error = "error",
    }
}

impl From<Class> for Outcome {
    fn from(class: Class) -> Self {
        match class {
            Class::Conflict => Self::Conflict,
            Class::Refused | Class::Configuration => Self::Refused,
            Class::Transient => Self::Error,
        }
    }
}

label_values! {
    /// Why a service uses another model.
    SwitchReason {
        /// Another model has a better metric.
        Better = "better",
        /// The previous one is no candidate any more.
        Missing = "missing",
        /// The file of the previous one failed.
        Failed = "failed",
    }
}

impl SwitchReason {
    /// The reason of a choice; `None` for the first one, which replaces nothing.
    pub fn from_cause(cause: SelectionCause) -> Option<Self> {
        match cause {
            SelectionCause::First => None,
            SelectionCause::Better => Some(Self::Better),
            SelectionCause::Missing => Some(Self::Missing),
            SelectionCause::Failed => Some(Self::Failed),
        }
    }
}

label_values! {
    /// What a status write changes.
    StatusClass {
        /// A condition, or the generation that it refers to.
        State = "state",
        /// The write changes only other fields, such as counters.
        Counters = "counters",
    }
}

label_values! {
    /// Kind of an upstream message.
    MessageKind {
        /// A node report: birth, heartbeat or last will.
        Node = "node",
        /// A status report of one object.
        Status = "status",
        /// A sync: what the node has.
        Sync = "sync",
        /// An answer to a request.
        Answer = "answer",
        /// Several messages in one, over `KubeEdge`.
        Batch = "batch",
    }
}

label_values! {
    /// Why an upstream message was dropped.
    Rejection {
        /// Unknown topic, or an invalid name in it.
        Topic = "topic",
        /// The payload does not have the type of its topic.
        Payload = "payload",
        /// Numbers out of range.
        Impossible = "impossible",
        /// Counters of a node that never had the edge worker of the object.
        NeverHad = "never_had",
        /// The object does not exist, or has another uid.
        UnknownObject = "unknown_object",
        /// The message names another node than its sender.
        OtherNode = "other_node",
        /// The cluster has neither a Node nor an `EdgeNode` of that name.
        UnknownNode = "unknown_node",
        /// A person revoked the node.
        Revoked = "revoked",
        /// The upstream token is missing or wrong.
        Token = "token",
        /// The payload is no batch: not UTF-8, not JSON, or truncated.
        Batch = "batch",
        /// The batch exceeds the size limit.
        TooLarge = "too_large",
        /// The node exceeds its rate limit.
        TooFast = "too_fast",
    }
}

label_values! {
    /// Answer of the admission webhook.
    ReviewOutcome {
        /// Allowed without a warning.
        Allowed = "allowed",
        /// Allowed with a warning.
        Warned = "warned",
        /// The change was denied, and is not stored.
        Denied = "denied",
    }
}

label_values! {
    /// Presence of a node's agent.
    NodeState {
        /// The agent is connected.
        Online = "online",
        /// The agent was connected and is not now.
        Offline = "offline",
        /// The agent is connected, and its messages arrive late over `EventBus`.
        Delayed = "delayed",
        /// The agent is connected and reports a problem of the node.
        Problem = "problem",
    }
}

label_values! {
    /// Result of a POST to `KubeEdge`'s router.
    PostOutcome {
        /// Accepted; cloudcore has the message in memory.
        Taken = "taken",
        /// Cloudcore has no session with the node.
        NoSession = "no_session",
        /// Cloudcore has no Rule for the request.
        NoRule = "no_rule",
        /// The router cannot be reached.
        NoRouter = "no_router",
        /// No answer in time, or an unexpected one.
        Failed = "failed",
        /// The router does not accept messages of this size.
        TooLarge = "too_large",
    }
}

label_values! {
    /// How messages reach the nodes.
    TransportKind {
        /// Messages go over an MQTT broker.
        Mqtt = "mqtt",
        /// Messages go over `KubeEdge`'s router and `EventBus`.
        EventBus = "eventbus",
    }
}

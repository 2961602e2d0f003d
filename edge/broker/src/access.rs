//! Decides what a client of the embedded broker may publish and subscribe to. Pure.

use neptune_agent_core::domain::broker_login::PasswordDigest;
use neptune_wire::{Topic, TopicPrefix, WorkerName, is_topic_filter};

/// Who a client of the embedded broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientIdentity {
    /// The agent of this node, which may publish and subscribe to everything.
    Agent,
    /// A person with the observer's login: reads everything, publishes nothing.
    Observer,
    /// A worker with the password of one of its containers.
    Worker(WorkerName, PasswordDigest),
    /// A client without a login, which the agent may permit.
    Anonymous,
}

/// Why a message is discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishRefusal {
    /// The topic is not one that this client may publish on.
    Topic,
    /// A client without a login, on the topic of a worker that must log in.
    LoginRequired,
}

/// Checks whether a client may publish on a topic. Returns the worker whose topic it is.
///
/// # Errors
/// [`PublishRefusal`]; the message is discarded.
pub fn check_publish(
    identity: &ClientIdentity,
    topic: &str,
    prefix: &TopicPrefix,
    is_anonymous_allowed: impl FnOnce(&WorkerName) -> bool,
) -> Result<Option<WorkerName>, PublishRefusal> {
    if *identity == ClientIdentity::Agent {
        return Ok(None);
    }
    let owner = prefix.worker_of(topic).ok_or(PublishRefusal::Topic)?;
    // Only the agent requests a reload.
    if matches!(Topic::parse(prefix, topic), Ok(Topic::WorkerReload(_))) {
        return Err(PublishRefusal::Topic);
    }
    match identity {
        ClientIdentity::Worker(worker, _) if *worker == owner => Ok(Some(owner)),
        ClientIdentity::Anonymous if is_anonymous_allowed(&owner) => Ok(Some(owner)),
        ClientIdentity::Anonymous => Err(PublishRefusal::LoginRequired),
        _ => Err(PublishRefusal::Topic),
    }
}

/// Whether a client may subscribe to a filter.
pub fn may_subscribe(
    identity: &ClientIdentity,
    filter: &str,
    prefix: &TopicPrefix,
    is_anonymous_allowed: impl FnOnce(&WorkerName) -> bool,
) -> bool {
    match identity {
        ClientIdentity::Agent => true,
        // `$` topics are those of brokers: shared subscriptions and statistics.
        ClientIdentity::Observer => is_topic_filter(filter) && !filter.starts_with('$'),
        ClientIdentity::Worker(worker, _) => is_reload(filter, prefix, |owner| owner == worker),
        ClientIdentity::Anonymous => is_reload(filter, prefix, is_anonymous_allowed),
    }
}

fn is_reload(filter: &str, prefix: &TopicPrefix, is_of: impl FnOnce(&WorkerName) -> bool) -> bool {
    matches!(Topic::parse(prefix, filter), Ok(Topic::WorkerReload(worker)) if is_of(&worker))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn worker(name: &str) -> ClientIdentity {
        ClientIdentity::Worker(name.parse().unwrap(), PasswordDigest::compute("secret"))
    }

    fn publish(identity: &ClientIdentity, topic: &str) -> Result<(), PublishRefusal> {
        check_publish(identity, topic, &TopicPrefix::default(), |worker| worker.as_str() == "old")
            .map(drop)
    }

    fn subscribes(identity: &ClientIdentity, filter: &str) -> bool {
        may_subscribe(identity, filter, &TopicPrefix::default(), |worker| worker.as_str() == "old")
    }

    #[test]
    fn worker_publishes_only_below_its_own_name() {
        for topic in ["neptune/workers/a/info", "neptune/workers/a/own/thing"] {
            assert_eq!(publish(&worker("a"), topic), Ok(()), "{topic}");
        }
        for topic in [
            "neptune/workers/b/info",
            "neptune/workers/a",
            "neptune/workers/a/",
            "neptune/workers/a/reload",
            "neptune/workers/a/+",
            "neptune/workers/a/#",
            "neptune/workers/a/../b/info",
            "neptune/workers//info",
            "neptune/edge0/upstream/node",
            "other/workers/a/info",
            "$SYS/x",
            "",
        ] {
            let allowed = publish(&worker("a"), topic);
            let is_own = topic.starts_with("neptune/workers/a/..");
            assert_eq!(allowed.is_ok(), is_own, "{topic:?}");
        }
    }

    #[test]
    fn client_without_login_publishes_only_for_workers_that_permit_it() {
        assert_eq!(publish(&ClientIdentity::Anonymous, "neptune/workers/old/info"), Ok(()));
        assert_eq!(
            publish(&ClientIdentity::Anonymous, "neptune/workers/a/info"),
            Err(PublishRefusal::LoginRequired)
        );
        assert!(subscribes(&ClientIdentity::Anonymous, "neptune/workers/old/reload"));
        assert!(!subscribes(&ClientIdentity::Anonymous, "neptune/workers/a/reload"));
    }

    #[test]
    fn observer_reads_everything_and_publishes_nothing() {
        for filter in ["#", "neptune/workers/+/info", "neptune/#"] {
            assert!(subscribes(&ClientIdentity::Observer, filter), "{filter}");
        }
        for filter in ["$share/g/#", "$SYS/#", "a/#/b", "a+", ""] {
            assert!(!subscribes(&ClientIdentity::Observer, filter), "{filter}");
        }
        let topic = "neptune/workers/a/info";
        assert_eq!(publish(&ClientIdentity::Observer, topic), Err(PublishRefusal::Topic));
    }

    #[test]
    fn worker_subscribes_only_to_its_own_reload_topic() {
        assert!(subscribes(&worker("a"), "neptune/workers/a/reload"));
        for filter in [
            "neptune/workers/b/reload",
            "neptune/workers/a/info",
            "neptune/workers/a/#",
            "neptune/workers/+/reload",
            "#",
            "$share/g/neptune/workers/a/reload",
        ] {
            assert!(!subscribes(&worker("a"), filter), "{filter}");
        }
        assert_eq!(publish(&ClientIdentity::Agent, "neptune/workers/a/reload"), Ok(()));
    }
}

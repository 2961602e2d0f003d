//! The handle of a running emulator: rules, faults and counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::bus::BrokerAddress;
use crate::cloudcore::Cloudcore;
use crate::forward::Forwarder;
use crate::node::{Node, Traffic};
use crate::object::{Key, Object, Spec};
use crate::pace::Pace;
use crate::{Error, router};

/// The part of `KubeEdge` to emulate, and its speed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of the router. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The edge nodes that are registered, with their local brokers.
    pub nodes: Vec<(String, BrokerAddress)>,
    /// Factor for all durations: 1 is real time, 0.01 turns 30 s into 300 ms. Rates are divided by
    /// it.
    pub scale: f64,
    /// Seed of delays and losses, per node. Which message is delayed or lost still depends on
    /// timing.
    pub seed: u64,
}

impl Options {
    /// A free port of loopback, no nodes, real time.
    pub fn new() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            nodes: Vec::new(),
            scale: 1.0,
            seed: 0,
        }
    }

    /// Adds a node.
    ///
    /// # Errors
    /// [`Error::Broker`] unless the broker is `mqtt://host:port`.
    pub fn node(mut self, name: &str, broker: &str) -> Result<Self, Error> {
        self.nodes.push((name.to_owned(), broker.parse()?));
        Ok(self)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// A running emulator. Cheap to clone; it stops when the last clone is dropped.
///
/// Nodes have sessions from the start; [`Emulator::connected`] waits until EventBus has connected
/// to the node's broker.
#[derive(Debug, Clone)]
pub struct Emulator(Arc<Running>);

#[derive(Debug)]
struct Running {
    address: SocketAddr,
    cloudcore: Arc<Cloudcore>,
    /// The tasks of the emulator, which end with this value.
    _tasks: JoinSet<()>,
}

impl Emulator {
    /// Opens the router's port and starts to connect. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Scale`], [`Error::Listen`] or [`Error::Client`]. An unreachable broker is not an
    /// error.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let pace = Pace::new(options.scale)?;
        let failed = |source| Error::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let rules = Arc::new(Mutex::default());
        let forwarder = Arc::new(Forwarder::new(Arc::clone(&rules))?);
        let mut tasks = JoinSet::new();
        let nodes: BTreeMap<_, _> = options
            .nodes
            .into_iter()
            .map(|(name, broker)| {
                let seed = options.seed;
                let forwarder = Arc::clone(&forwarder);
                (name.clone(), Node::start(name, broker, pace, seed, forwarder, &mut tasks))
            })
            .collect();
        let cloudcore = Arc::new(Cloudcore::new(pace, options.seed, rules, nodes));
        tasks.spawn(router::serve(Arc::clone(&cloudcore), listener));
        Ok(Self(Arc::new(Running { address, cloudcore, _tasks: tasks })))
    }

    /// `http://host:port`, without a slash at the end. It answers once there is a rule with a path.
    pub fn router_url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// A Rule or RuleEndpoint was created or updated. As in KubeEdge, an update does nothing until
    /// the object is deleted and created again (or cloudcore restarted); one with another
    /// `metadata.uid` counts as created again.
    ///
    /// # Errors
    /// [`Error::Object`] if it is neither.
    pub fn apply(&self, object: Value) -> Result<(), Error> {
        self.0.cloudcore.apply(Object::parse(object)?);
        Ok(())
    }

    /// Applies each document of a YAML text, in order.
    ///
    /// # Errors
    /// [`Error::Yaml`], or as [`Emulator::apply`]; the documents before the wrong one are applied.
    pub fn apply_yaml(&self, text: &str) -> Result<(), Error> {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| Error::Yaml(Box::new(error)))?;
        objects
            .into_iter()
            .filter(|object| !object.is_null())
            .try_for_each(|object| self.apply(object))
    }

    /// The object, in any version, was deleted.
    ///
    /// # Errors
    /// [`Error::Object`] if it is neither Rule nor RuleEndpoint.
    pub fn delete(&self, object: Value) -> Result<(), Error> {
        let Object { key, spec, .. } = Object::parse(object)?;
        match spec {
            Spec::Rule(_) => self.0.cloudcore.delete_rule(&key),
            Spec::Endpoint(_) => self.0.cloudcore.delete_endpoint(&key),
        }
        Ok(())
    }

    /// Deletes the Rule of this name.
    pub fn delete_rule(&self, namespace: &str, name: &str) {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        self.0.cloudcore.delete_rule(&key);
    }

    /// Breaks a node's session, and both sides notice: messages in transit and in queues are lost,
    /// POSTs get 500.
    ///
    /// # Errors
    /// [`Error::UnknownNode`], as for all methods below.
    pub fn cut(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node).map(|node| node.cut())
    }

    /// Silences a node's session: packets are lost and neither side notices. For 30 s POSTs still
    /// get 200.
    pub fn partition(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node).map(|node| node.partition())
    }

    /// Ends a cut at once, or a partition: after 30 s or more the session has failed, and edgehub
    /// needs up to 30 s to reconnect.
    pub fn heal(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node).map(Node::heal)
    }

    /// Restarts edgecore of a node: its queue is lost. Resolves when it has reconnected to its
    /// broker, and to cloudcore unless the node was cut.
    pub async fn restart_edgecore(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node)?.restart_edgecore(false).await;
        Ok(())
    }

    /// Like [`Emulator::restart_edgecore`], and deletes its database: the subscriptions of all
    /// rules are lost.
    pub async fn wipe_edgecore(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node)?.restart_edgecore(true).await;
        Ok(())
    }

    /// Kills cloudcore. It starts again 2 s later; nodes reconnect within 30 s after that. Open
    /// connections are closed, new ones are refused.
    pub fn restart_cloudcore(&self) {
        self.0.cloudcore.restart();
    }

    /// Resolves when the node's session is up and its EventBus has subscribed. Never resolves while
    /// the node is cut.
    pub async fn connected(&self, node: &str) -> Result<(), Error> {
        self.0.cloudcore.known_node(node)?.connected().await;
        Ok(())
    }

    /// Resolves when the router accepts requests. Never resolves without a rule that has a path.
    pub async fn listening(&self) {
        self.0.cloudcore.listening().await;
    }

    /// Counters of the messages between the cloud and a node since the start.
    pub fn traffic(&self, node: &str) -> Result<Traffic, Error> {
        self.0.cloudcore.known_node(node).map(|node| node.traffic())
    }
}

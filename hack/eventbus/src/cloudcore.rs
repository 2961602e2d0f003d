//! Cloudcore: the active rules, the known nodes, and whether it runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::Error;
use crate::node::Node;
use crate::object::{Key, Object};
use crate::pace::Pace;
use crate::random::Random;
use crate::rules::{Outcome, Rules, SubscriptionChange};
use crate::uri::Route;

#[derive(Debug)]
pub struct Cloudcore {
    pace: Pace,
    rules: Arc<Mutex<Rules>>,
    nodes: BTreeMap<String, Arc<Node>>,
    random: Mutex<Random>,
    /// Number of restarts, and whether the last one is complete.
    lifecycle: Mutex<Lifecycle>,
    /// Whether the router listens now.
    open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Lifecycle {
    restarts: u64,
    is_down: bool,
    /// Whether a rule with a path has been created: from then on the router listens.
    listens: bool,
}

impl Cloudcore {
    pub fn new(
        pace: Pace,
        seed: u64,
        rules: Arc<Mutex<Rules>>,
        nodes: BTreeMap<String, Arc<Node>>,
    ) -> Self {
        let (open, _) = watch::channel(false);
        let random = Mutex::new(Random::new(seed, "router"));
        Self { pace, rules, nodes, random, lifecycle: Mutex::default(), open }
    }

    pub fn pace(&self) -> Pace {
        self.pace
    }

    pub fn open(&self) -> watch::Receiver<bool> {
        self.open.subscribe()
    }

    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// Like [`Cloudcore::node`], with an error for an unknown node.
    pub fn known_node(&self, name: &str) -> Result<&Arc<Node>, Error> {
        self.node(name).ok_or_else(|| Error::UnknownNode(name.to_owned()))
    }

    /// Delay of a POST's answer 200.
    pub fn answer_delay(&self) -> Duration {
        let mut random = self.random.lock();
        random.time(self.pace.answer())
    }

    /// The route of a request target.
    pub fn route(&self, target: &str) -> Route {
        self.rules.lock().route(target)
    }

    /// An object was created or updated in the cluster.
    pub fn apply(self: &Arc<Self>, object: Object) {
        let outcome = self.rules.lock().apply(object);
        match outcome {
            Outcome::Done(changes) => self.send_subscriptions(changes),
            Outcome::Waiting(key, changes) => {
                self.send_subscriptions(changes);
                tracing::warn!(
                    ?key,
                    "rule is not active: its RuleEndpoints are missing or have the wrong type"
                );
                tokio::spawn(Arc::clone(self).retry_activation(key));
            }
        }
        self.update_listening();
    }

    pub fn delete_endpoint(&self, key: &Key) {
        self.rules.lock().delete_endpoint(key);
    }

    pub fn delete_rule(&self, key: &Key) {
        let changes = self.rules.lock().delete_rule(key);
        self.send_subscriptions(changes);
    }

    /// Stops it. It starts again by itself after a while.
    pub fn restart(self: &Arc<Self>) {
        let restart = {
            let mut lifecycle = self.lifecycle.lock();
            lifecycle.is_down = true;
            lifecycle.listens = false;
            lifecycle.restarts += 1;
            lifecycle.restarts
        };
        self.update_listening();
        for node in self.nodes.values() {
            node.cloudcore_restarted();
        }
        tokio::spawn(Arc::clone(self).finish_restart(restart));
    }

    /// Resolves when the router listens.
    pub async fn listening(&self) {
        // Cannot fail: the sender lives in `self`.
        let _ = self.open().wait_for(|open| *open).await;
    }

    async fn finish_restart(self: Arc<Self>, restart: u64) {
        tokio::time::sleep(self.pace.cloudcore_down()).await;
        {
            let mut lifecycle = self.lifecycle.lock();
            if lifecycle.restarts != restart {
                return;
            }
            lifecycle.is_down = false;
            self.rules.lock().restart();
        }
        self.update_listening();
    }

    async fn retry_activation(self: Arc<Self>, key: Key) {
        for wait in self.pace.rule_retry_delays() {
            tokio::time::sleep(wait).await;
            let outcome = self.rules.lock().activate(&key);
            if let Outcome::Done(changes) = outcome {
                self.send_subscriptions(changes);
                return self.update_listening();
            }
        }
    }

    fn send_subscriptions(&self, changes: Vec<SubscriptionChange>) {
        for SubscriptionChange { node, topic, subscribe } in changes {
            if let Some(node) = self.node(&node) {
                node.send_subscription(topic, subscribe);
            }
        }
    }

    /// Opens or closes the router's port.
    fn update_listening(&self) {
        let mut lifecycle = self.lifecycle.lock();
        lifecycle.listens |= !lifecycle.is_down && self.rules.lock().has_paths();
        let open = lifecycle.listens && !lifecycle.is_down;
        self.open.send_if_modified(|was| std::mem::replace(was, open) != open);
    }
}

//! Cloudcore: the rules that are in force, the nodes that it knows, and whether it is there at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::Error;
use crate::node::Node;
use crate::object::{Key, Object};
use crate::pace::Pace;
use crate::random::Random;
use crate::rules::{Notice, Outcome, Rules};
use crate::uri::Asked;

#[derive(Debug)]
pub struct Cloudcore {
    pace: Pace,
    rules: Arc<Mutex<Rules>>,
    nodes: BTreeMap<String, Arc<Node>>,
    random: Mutex<Random>,
    /// Restarts since the start, and whether the last one is over.
    life: Mutex<Life>,
    /// Whether the router listens.
    open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Life {
    restarts: u64,
    is_down: bool,
    /// A rule with a path has come: from then on the router listens.
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
        Self { pace, rules, nodes, random, life: Mutex::default(), open }
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

    /// As [`Cloudcore::node`], for those who have to be right.
    pub fn known_node(&self, name: &str) -> Result<&Arc<Node>, Error> {
        self.node(name).ok_or_else(|| Error::UnknownNode(name.to_owned()))
    }

    /// How long this POST waits for its 200.
    pub fn answer_delay(&self) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.time(self.pace.answer())
    }

    /// What a request target comes to.
    pub fn asked(&self, target: &str) -> Asked {
        self.rules().asked(target)
    }

    /// An object was created or updated in the cluster.
    pub fn apply(self: &Arc<Self>, object: Object) {
        let outcome = self.rules().apply(object);
        match outcome {
            Outcome::Done(notices) => self.tell(notices),
            Outcome::Waiting(key, notices) => {
                self.tell(notices);
                tracing::warn!(
                    ?key,
                    "the rule is not in force: its endpoints are missing or do not fit"
                );
                tokio::spawn(Arc::clone(self).try_again(key));
            }
        }
        self.follow();
    }

    pub fn delete_endpoint(&self, key: &Key) {
        self.rules().delete_endpoint(key);
    }

    pub fn delete_rule(&self, key: &Key) {
        let notices = self.rules().delete_rule(key);
        self.tell(notices);
    }

    /// It ends, and starts again by itself a little later.
    pub fn restart(self: &Arc<Self>) {
        let restart = {
            let mut life = self.life();
            life.is_down = true;
            life.listens = false;
            life.restarts += 1;
            life.restarts
        };
        self.follow();
        for node in self.nodes.values() {
            node.cloudcore_restarted();
        }
        tokio::spawn(Arc::clone(self).start_again(restart));
    }

    /// Resolves when the router listens.
    pub async fn listening(&self) {
        // Cannot fail: the sender lives in `self`.
        let _ = self.open().wait_for(|open| *open).await;
    }

    async fn start_again(self: Arc<Self>, restart: u64) {
        tokio::time::sleep(self.pace.cloudcore_down()).await;
        {
            let mut life = self.life();
            if life.restarts != restart {
                return;
            }
            life.is_down = false;
            self.rules().restart();
        }
        self.follow();
    }

    async fn try_again(self: Arc<Self>, key: Key) {
        for wait in self.pace.rule_again() {
            tokio::time::sleep(wait).await;
            let outcome = self.rules().put_in_force(&key);
            if let Outcome::Done(notices) = outcome {
                self.tell(notices);
                return self.follow();
            }
        }
    }

    fn tell(&self, notices: Vec<Notice>) {
        for Notice { node, topic, subscribe } in notices {
            if let Some(node) = self.node(&node) {
                node.tell(topic, subscribe);
            }
        }
    }

    /// Opens or closes the router's door as things are now.
    fn follow(&self) {
        let mut life = self.life();
        life.listens |= !life.is_down && self.rules().has_doors();
        let open = life.listens && !life.is_down;
        self.open.send_if_modified(|was| std::mem::replace(was, open) != open);
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! One edge node: moves messages between its session with cloudcore and its EventBus in both
//! directions, and executes faults. `session.rs` and `uplink.rs` decide which messages are lost.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::bus::{BrokerAddress, Bus};
use crate::forward::Forwarder;
use crate::pace::Pace;
use crate::payload::replace_invalid_utf8;
use crate::random::Random;
use crate::session::{Fate, Healed, Item, Next, Session};
use crate::uplink::{Message, Uplink};

/// Messages in one direction since the start. `taken` is at least `passed + lost`; the rest is in
/// transit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DirectionCounters {
    /// Accepted. Downstream: POSTs with answer 200. Upstream: messages that EventBus received from
    /// the broker.
    pub taken: u64,
    /// Downstream: acknowledged by the node's broker. Upstream: the URL answered with any status.
    pub passed: u64,
    /// Dropped by an emulated fault or a full queue.
    pub lost: u64,
}

/// Message counters of a node, by which tests check that faults had an effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Messages from the cloud to the node.
    pub down: DirectionCounters,
    /// Messages from the node to the cloud.
    pub up: DirectionCounters,
}

#[derive(Debug)]
pub struct Node {
    name: String,
    pace: Pace,
    bus: Bus,
    forwarder: Arc<Forwarder>,
    state: Mutex<State>,
    /// Notifies waiting tasks of every change.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    session: Session,
    uplink: Uplink,
    random: Random,
    /// The counted messages, without the losses that `session` and `uplink` count.
    traffic: Traffic,
}

impl Node {
    /// Starts a node that is connected to cloudcore. It connects to its broker in the background.
    pub fn start(
        name: String,
        broker: BrokerAddress,
        pace: Pace,
        seed: u64,
        forwarder: Arc<Forwarder>,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let (mut session, mut random) = (Session::new(pace), Random::new(seed, &name));
        let now = Instant::now();
        session.heal(now, &mut random);
        let uplink = Uplink::new(pace, now);
        let state = Mutex::new(State { session, uplink, random, traffic: Traffic::default() });
        let (changed, _) = watch::channel(());
        let node = Arc::new(Self { name, pace, bus: Bus::new(broker), forwarder, state, changed });
        let (arrivals, arriving) = mpsc::unbounded_channel();
        tasks.spawn(node.bus.clone().run(arrivals, pace.broker_retry_interval()));
        tasks.spawn(Arc::clone(&node).receive_from_broker(arriving));
        tasks.spawn(Arc::clone(&node).deliver_downstream());
        tasks.spawn(Arc::clone(&node).deliver_upstream());
        node
    }

    /// Queues a message for the node's broker. Returns `false` if cloudcore knows no session.
    pub fn publish(&self, topic: String, payload: Bytes) -> bool {
        let sent = self.send(Item::Publish { topic, payload: replace_invalid_utf8(payload) });
        if sent {
            self.state.lock().traffic.down.taken += 1;
        }
        sent
    }

    /// Sends a subscription change to EventBus. It is lost without a session.
    pub fn send_subscription(&self, topic: String, subscribe: bool) {
        let item = if subscribe { Item::Subscribe(topic) } else { Item::Unsubscribe(topic) };
        if !self.send(item) {
            tracing::debug!(node = self.name, "subscription change lost: the node has no session");
        }
    }

    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.session.cut();
        state.uplink.clear();
        drop(state);
        self.changed.send_replace(());
    }

    pub fn partition(&self) {
        self.state.lock().session.partition(Instant::now());
        self.changed.send_replace(());
    }

    pub fn heal(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let State { session, uplink, random, .. } = &mut *state;
        let late = match session.heal(Instant::now(), random) {
            Healed::Already => Vec::new(),
            Healed::Late => uplink.release_stuck(random),
            Healed::New => {
                uplink.clear();
                Vec::new()
            }
        };
        drop(state);
        for message in late {
            let node = Arc::clone(self);
            tokio::spawn(async move { node.post(message).await });
        }
        self.changed.send_replace(());
    }

    /// Restarts edgecore; its queue is lost. Resolves when EventBus has reconnected to its broker,
    /// and with it the session, if the node had one.
    pub async fn restart_edgecore(self: &Arc<Self>, wipe: bool) {
        let comes_back = {
            let mut state = self.state.lock();
            let session = &mut state.session;
            let comes_back = session.is_up(Instant::now()) || session.returns_at().is_some();
            session.cut();
            state.uplink.clear();
            comes_back
        };
        self.changed.send_replace(());
        self.bus.restart(wipe).await;
        if comes_back {
            self.heal();
        }
    }

    pub fn cloudcore_restarted(&self) {
        let mut state = self.state.lock();
        let State { session, uplink, random, .. } = &mut *state;
        session.cloudcore_restarted(Instant::now(), random);
        uplink.clear();
        drop(state);
        self.changed.send_replace(());
    }

    /// Resolves when the session is up and EventBus has its subscriptions.
    pub async fn connected(&self) {
        let mut changes = self.changed.subscribe();
        loop {
            let at = {
                let session = &mut self.state.lock().session;
                if session.is_up(Instant::now()) {
                    break;
                }
                session.returns_at()
            };
            until(at, &mut changes).await;
        }
        self.bus.ready().await;
    }

    pub fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        let mut traffic = state.traffic;
        traffic.down.lost += state.session.lost();
        traffic.up.lost += state.uplink.lost();
        traffic
    }

    fn send(&self, item: Item) -> bool {
        let mut state = self.state.lock();
        let State { session, random, .. } = &mut *state;
        let sent = session.send(item, Instant::now(), random);
        drop(state);
        self.changed.send_replace(());
        sent
    }

    /// Receives messages from the broker into edgecore's queue. The broker has received the PUBACK
    /// already.
    async fn receive_from_broker(self: Arc<Self>, mut arriving: mpsc::UnboundedReceiver<Message>) {
        while let Some(message) = arriving.recv().await {
            let mut state = self.state.lock();
            let State { session, uplink, traffic, .. } = &mut *state;
            traffic.up.taken += 1;
            let number = session.number();
            uplink.push(message, session.fate(number, Instant::now()) != Fate::Lost);
            drop(state);
            self.changed.send_replace(());
        }
    }

    async fn deliver_downstream(self: Arc<Self>) {
        let mut changes = self.changed.subscribe();
        loop {
            let next = self.state.lock().session.next(Instant::now());
            match next {
                Next::Now(Item::Publish { topic, payload }) => {
                    let passed = self.bus.publish(topic, payload).await;
                    let down = &mut self.state.lock().traffic.down;
                    *(if passed { &mut down.passed } else { &mut down.lost }) += 1;
                }
                Next::Now(Item::Subscribe(topic)) => self.bus.subscribe(topic),
                Next::Now(Item::Unsubscribe(topic)) => self.bus.unsubscribe(&topic),
                Next::At(at) => until(Some(at), &mut changes).await,
                Next::Idle => until(None, &mut changes).await,
            }
        }
    }

    async fn deliver_upstream(self: Arc<Self>) {
        let mut changes = self.changed.subscribe();
        loop {
            let next = {
                let mut state = self.state.lock();
                let State { session, uplink, random, .. } = &mut *state;
                match uplink.next(Instant::now(), random) {
                    Next::Now(message) => {
                        let transit = random.time(self.pace.transit());
                        Next::Now((message, session.number(), transit))
                    }
                    Next::At(at) => Next::At(at),
                    Next::Idle => Next::Idle,
                }
            };
            match next {
                Next::Now((message, number, transit)) => {
                    let node = Arc::clone(&self);
                    // From here messages may overtake one another.
                    tokio::spawn(async move {
                        tokio::time::sleep(transit).await;
                        node.arrive_upstream(message, number).await;
                    });
                }
                Next::At(at) => until(Some(at), &mut changes).await,
                Next::Idle => until(None, &mut changes).await,
            }
        }
    }

    async fn arrive_upstream(&self, message: Message, number: u64) {
        {
            let mut state = self.state.lock();
            let State { session, uplink, .. } = &mut *state;
            match session.fate(number, Instant::now()) {
                Fate::Arrives => {}
                Fate::Stuck => return uplink.stuck(message),
                Fate::Lost => return uplink.count_lost(),
            }
        }
        self.post(message).await;
    }

    async fn post(&self, message: Message) {
        let passed = self.forwarder.post(&self.name, message).await;
        let up = &mut self.state.lock().traffic.up;
        *(if passed { &mut up.passed } else { &mut up.lost }) += 1;
    }
}

/// Waits until this time or the next change.
async fn until(at: Option<Instant>, changes: &mut watch::Receiver<()>) {
    // Cannot fail: the sender lives in the node, and the node in its tasks.
    let change = async { drop(changes.changed().await) };
    match at {
        None => change.await,
        Some(at) => tokio::select! {
            () = tokio::time::sleep_until(at.into()) => {}
            () = change => {}
        },
    }
}

//! A sample that the edge answered with confidence, and that the cloud answers as well, after the
//! client has its answer. Those that wait are dropped first when the gateway has too many bytes in
//! memory.

use std::{collections::VecDeque, sync::Arc};

use neptune_cascade::Signal;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

use super::{
    Service,
    memory::{HeldAnswers, MakeRoom},
};
use crate::{capture::Sample, protocol::Scores, upstream::CloudRequest};

/// Samples of one request.
#[derive(Debug)]
pub struct Shadow {
    /// The configuration with which the request began.
    pub service: Arc<Service>,
    /// The same request to the cloud.
    pub request: CloudRequest,
    /// The confidence of each sample.
    pub signals: Vec<Signal>,
    /// The part of the edge's answer that is compared.
    pub edge: EdgeAnswer,
    /// The samples to capture with the cloud's answer.
    pub sample: Option<Sample>,
}

/// The part of an answer that is compared with the cloud's.
#[derive(Debug)]
pub enum EdgeAnswer {
    /// Rows of a batch.
    Rows(Scores),
    /// The text of a completion.
    Text(String),
}

impl Shadow {
    /// The bytes that it keeps.
    fn bytes(&self) -> usize {
        let text = match &self.edge {
            EdgeAnswer::Rows(_) => 0,
            EdgeAnswer::Text(text) => text.len(),
        };
        self.request.body.body.len() + text + self.sample.as_ref().map_or(0, Sample::bytes)
    }
}

/// The shadows that wait for their comparison.
#[derive(Debug)]
pub struct ShadowQueue {
    waiting: Mutex<VecDeque<(Shadow, HeldAnswers)>>,
    arrived: Notify,
    places: usize,
    /// Shadows that were dropped for lack of room.
    dropped: Counter,
}

impl ShadowQueue {
    /// A queue with so many places.
    pub fn new(places: usize, dropped: Counter) -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new(), places, dropped }
    }

    /// Whether another shadow may wait.
    pub fn has_place(&self) -> bool {
        self.waiting.lock().len() < self.places
    }

    /// Adds a shadow. Returns whether it waits: without room for its bytes it is dropped.
    pub fn push(&self, mut shadow: Shadow) -> bool {
        let held = shadow.service.answer_room.of_shadow();
        // Its bytes, and the room for the cloud's answer, which is counted when it comes.
        let is_held = held.hold(shadow.bytes());
        shadow.request.held = Some(Arc::new(held.clone()));
        let mut waiting = self.waiting.lock();
        let is_queued = is_held && waiting.len() < self.places;
        if is_queued {
            waiting.push_back((shadow, held));
            self.arrived.notify_one();
        } else {
            self.dropped.inc();
        }
        is_queued
    }

    /// The next shadow, and its bytes. One task waits at a time.
    pub async fn next(&self) -> (Shadow, HeldAnswers) {
        loop {
            let next = self.waiting.lock().pop_front();
            match next {
                Some(next) => return next,
                None => self.arrived.notified().await,
            }
        }
    }
}

impl MakeRoom for ShadowQueue {
    /// Drops the shadow that waits for the longest time.
    fn make_room(&self) -> bool {
        let oldest = self.waiting.lock().pop_front();
        if oldest.is_some() {
            self.dropped.inc();
        }
        oldest.is_some()
    }
}

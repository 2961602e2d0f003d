//! The nodes: what each should have, how it is published, and what they report.

mod counters;
mod desired;
mod evaluations;
pub mod observed;
mod presence;
mod publisher;
mod state;
pub mod upstream;

use std::sync::{Arc, Mutex, MutexGuard};

use k8s_openapi::jiff::Timestamp;

pub use self::{
    counters::CounterReport,
    desired::{Requirements, Retained},
    evaluations::Evaluation,
    presence::Presence,
    publisher::Publisher,
    state::FleetState,
};

/// What the nodes report, shared by the upstream listener and the controllers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<Mutex<FleetState>>);

impl Fleet {
    /// No node has reported. Agents that do not announce their heartbeat have one every `heartbeat`
    /// seconds.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(heartbeat: u32) -> Self {
        Self(Arc::new(Mutex::new(FleetState::new(Timestamp::now(), heartbeat))))
    }

    /// Must not be held across an `await`.
    pub fn lock(&self) -> MutexGuard<'_, FleetState> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

//! The status of an aggregator, which is sent to the agent's loop after each change.

use neptune_agent_core::domain::aggregator::AggregatorEvent;
use neptune_pinned_tls::TlsKey;
use neptune_wire::{
    AggregatorReport,
    aggregator::{AggregatorProblem, RunStatus},
};
use tokio::sync::mpsc;

use crate::event::AgentEvent;

/// The status of an aggregator.
pub struct AggregatorStatus {
    uid: String,
    report: AggregatorReport,
    events: mpsc::Sender<AgentEvent>,
}

impl AggregatorStatus {
    pub fn new(uid: String, events: mpsc::Sender<AgentEvent>) -> Self {
        Self { uid, report: AggregatorReport::default(), events }
    }

    /// Sets the key of the container. A state with another key is that of files that are lost.
    pub async fn set_key(&mut self, key: &TlsKey) {
        if self.report.pin.as_ref() != Some(key.pin()) {
            let pin = Some(key.pin().clone());
            self.send(AggregatorReport { pin, state: None, ..self.report.clone() }).await;
        }
    }

    /// It answered, or failed. Without a state the last one stays.
    pub async fn set(&mut self, state: Option<RunStatus>, problem: Option<AggregatorProblem>) {
        let state = state.or_else(|| self.report.state.clone());
        self.send(AggregatorReport { state, problem, ..self.report.clone() }).await;
    }

    async fn send(&mut self, report: AggregatorReport) {
        if report == self.report {
            return;
        }
        self.report = report;
        let event = AggregatorEvent::Reported(Box::new(self.report.clone()));
        // The receiver is dropped only when the process exits.
        let _ = self.events.send(AgentEvent::Aggregator { uid: self.uid.clone(), event }).await;
    }
}

//! The one supervisor of containers: of workers and model servers, training tasks, and aggregators.
//! What to adopt, when to end it, and what an end means is decided in `supervision` of
//! `neptune-agent-core`.
//!
//! Workers and model servers are observed together, and their plan has the steps. Training tasks
//! and aggregators are supervised one by one; their labels keep them from the plan of the workers.

mod devices;
mod remove;
mod run;
mod start;
mod volumes;

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use neptune_agent_core::{
    domain::problem::Problem,
    logs::tails::withheld,
    supervision::{Claim, Exit, RestartPolicy, RunState, Use},
};
use neptune_wire::{LogKind, WorkerReason};

pub use run::NewContainer;

use crate::{containers::LogTail, docker::Docker};

/// What users see of the log of a program that failed.
const PROGRAM_LOG: LogTail = LogTail { lines: "3", max_bytes: 512 };

/// Adopts, starts, watches and removes the containers of this node.
#[derive(Clone)]
pub struct Supervisor {
    pub docker: Arc<Docker>,
}

/// A container of this engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundContainer {
    pub id: String,
    pub labels: HashMap<String, String>,
}

/// A container that an earlier process started, and that needs no other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    Running {
        container: FoundContainer,
        /// Start time by the clock of the engine; `None` if the engine does not state it.
        started_at: Option<Timestamp>,
    },
    /// It exited as it should.
    Done(Exit),
}

impl Supervisor {
    /// A supervisor of this engine's containers.
    pub fn new(docker: Arc<Docker>) -> Self {
        Self { docker }
    }

    /// All containers with these labels, of all nodes.
    pub(crate) async fn labelled(&self, labels: &[String]) -> Result<Vec<FoundContainer>, Problem> {
        let summaries = self.docker.socket().list(labels).await;
        let summaries = summaries.map_err(|error| self.docker.problem(&error))?.into_iter();
        let container = summaries.map(|summary| FoundContainer {
            id: summary.id,
            labels: summary.labels.unwrap_or_default(),
        });
        Ok(container.collect())
    }

    /// Finds the current container among those with this label, and removes the outdated ones. `None`
    /// if another one has to start.
    ///
    /// # Errors
    /// The engine does not answer, or refuses to remove one.
    pub async fn adopt(
        &self,
        label: &str,
        policy: RestartPolicy,
        claim: impl Fn(&HashMap<String, String>) -> Claim,
    ) -> Result<Option<Adopted>, Problem> {
        let mut adopted = None;
        for container in self.labelled(&[label.to_owned()]).await? {
            let claim = claim(&container.labels);
            if claim == Claim::Foreign {
                continue;
            }
            if claim == Claim::Current && adopted.is_none() {
                let state = match self.state(&container.id).await {
                    // The engine does not describe it: its data is damaged.
                    Err(problem) if problem.reason == WorkerReason::ContainerRefused => {
                        RunState::Unusable
                    }
                    state => state?,
                };
                match (policy.decide(&state), state) {
                    (Use::Adopt, RunState::Running { started_at }) => {
                        adopted = Some(Adopted::Running { container, started_at });
                        continue;
                    }
                    (Use::Done(exit), _) => return Ok(Some(Adopted::Done(exit))),
                    _ => {}
                }
            }
            self.remove(&[container.id]).await?;
        }
        Ok(adopted)
    }

    /// The last lines that the program of a training or an aggregator wrote, or why they are not
    /// reported.
    pub async fn log(&self, id: &str) -> String {
        if self.docker.reads_logs && !self.docker.reports_trainings {
            return withheld(LogKind::Training, id);
        }
        self.docker.log_tail(id, PROGRAM_LOG).await
    }
}

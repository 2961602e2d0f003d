//! Finds, starts and awaits training containers. They have labels of their own, so that neither the
//! plan of the workers nor the removal of unwanted workers sees them.

use std::collections::HashMap;

use bollard::{errors::Error as DockerError, query_parameters as query};
use futures::StreamExt as _;
use jiff::Timestamp;
use neptune_agent_core::domain::{
    container::ContainerSpec, outcome::StepOutcome, problem::Problem,
};

use crate::{
    containers::LogTail,
    create::{check, training_request},
    docker::{Docker, status_code},
    inspect::Lifecycle,
};

/// What users see of the log of a training program that failed.
const TRAINING_LOG: LogTail = LogTail { lines: "3", max_bytes: 512 };

/// A training container of this engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundContainer {
    pub id: String,
    pub labels: HashMap<String, String>,
}

/// The state of a training container in the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrainingState {
    Running {
        /// Start time by the clock of the engine; `None` if the engine does not state it.
        started_at: Option<Timestamp>,
    },
    Exited {
        code: i64,
        out_of_memory: bool,
        /// How long the container ran, in seconds.
        seconds: u64,
    },
    /// It never ran, or is being removed, or does not exist.
    Unusable,
}

/// The name, labels and specification of a training container to create.
#[derive(Debug)]
pub struct NewContainer {
    pub name: String,
    pub labels: HashMap<String, String>,
    pub spec: ContainerSpec,
    pub max_file_bytes: u64,
}

impl Docker {
    /// All containers with this label, of all nodes.
    pub async fn labelled(&self, label: &str) -> Result<Vec<FoundContainer>, Problem> {
        let found = self.socket().list(&[label.to_owned()]).await;
        let found = found.map_err(|error| self.problem(&error))?.into_iter();
        let container = found.map(|summary| FoundContainer {
            id: summary.id,
            labels: summary.labels.unwrap_or_default(),
        });
        Ok(container.collect())
    }

    /// Creates and starts a container. Returns its ID.
    pub async fn start_training(&self, new: &NewContainer) -> Result<String, Problem> {
        check(&new.spec)?;
        self.create(new).await.map_err(|error| self.problem(&error))
    }

    async fn create(&self, new: &NewContainer) -> Result<String, DockerError> {
        let client = self.client()?;
        let body = training_request(new.labels.clone(), &new.spec, new.max_file_bytes);
        let options = query::CreateContainerOptionsBuilder::new().name(&new.name).build();
        let created = client.create_container(Some(options), body).await?;
        client.start_container(&created.id, None::<query::StartContainerOptions>).await?;
        Ok(created.id)
    }

    /// Returns the state of a training container. A missing one is [`TrainingState::Unusable`].
    pub async fn training_state(&self, id: &str) -> Result<TrainingState, Problem> {
        let details = self.details(id).await.map_err(|error| self.problem(&error))?;
        let Some(details) = details else { return Ok(TrainingState::Unusable) };
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let started_at = time(&details.state.started_at);
        Ok(match details.state.lifecycle() {
            Lifecycle::Running | Lifecycle::Paused => TrainingState::Running { started_at },
            Lifecycle::Exited => {
                let ran = started_at.zip(time(&details.state.finished_at));
                let ran = ran.map_or(0, |(start, end)| (end - start).get_seconds());
                TrainingState::Exited {
                    code: details.state.exit_code,
                    out_of_memory: details.state.oom_killed,
                    seconds: u64::try_from(ran).unwrap_or(0),
                }
            }
            Lifecycle::Removing | Lifecycle::Unusable => TrainingState::Unusable,
        })
    }

    /// The last lines that a program wrote.
    pub async fn training_log(&self, id: &str) -> String {
        self.log_tail(id, TRAINING_LOG).await
    }

    /// Resolves when the container has ended, or when the engine cannot tell.
    pub async fn ended(&self, id: &str) -> Result<(), Problem> {
        let client = self.client().map_err(|error| self.problem(&error))?;
        let mut waiting = client.wait_container(id, None::<query::WaitContainerOptions>);
        match waiting.next().await {
            // Another exit code than 0 is an error of the client.
            Some(Err(DockerError::DockerContainerWaitError { .. }) | Ok(_)) | None => Ok(()),
            Some(Err(error)) if status_code(&error) == Some(404) => Ok(()),
            Some(Err(error)) => Err(self.problem(&error)),
        }
    }

    /// Stops and removes these containers.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub async fn remove_training(&self, ids: &[String]) -> Result<(), Problem> {
        match self.remove(ids).await {
            StepOutcome::Failed(problem) => Err(problem),
            _ => Ok(()),
        }
    }
}

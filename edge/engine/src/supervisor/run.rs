//! Runs one container of a training task or an aggregator: starts it, watches it until it ends, and
//! ends it when it exceeds a limit.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bollard::{errors::Error as DockerError, query_parameters as query};
use futures::StreamExt as _;
use jiff::Timestamp;
use neptune_agent_core::{
    domain::{container::ContainerSpec, problem::Problem},
    supervision::{End, Exit, Limits, RunState, RunWatch},
};
use neptune_wire::{NodeName, ObjectKey};
use tokio::time::{sleep, sleep_until};

use super::{Supervisor, devices::refused_devices};
use crate::{
    create::{check, training_request},
    docker::status_code,
    inspect::Lifecycle,
};

/// Pause between two questions to an engine that does not answer.
const ENGINE_RETRY: Duration = Duration::from_secs(1);

/// The name, labels and specification of a container of a training task or an aggregator.
#[derive(Debug)]
pub struct NewContainer {
    pub name: String,
    pub labels: HashMap<String, String>,
    /// The labels of its volumes of the engine.
    pub volume_labels: HashMap<String, String>,
    pub spec: ContainerSpec,
    pub max_file_bytes: u64,
    /// The node and the object of the container.
    pub node: NodeName,
    pub owner: ObjectKey,
}

impl Supervisor {
    /// Creates and starts a container. Returns its ID.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub async fn start_new(&self, new: &NewContainer) -> Result<String, Problem> {
        let NewContainer { name, labels, spec, max_file_bytes, node, owner, .. } = new;
        check(spec)?;
        self.check_engine(&spec.units).await?;
        let body = training_request(labels.clone(), spec, *max_file_bytes);
        let started = async {
            if let Err(problem) = self.provide_training_volumes(new).await? {
                return Ok(Err(problem));
            }
            let id = self.create(name, body).await?;
            self.start_with_devices(id, (spec, owner), node).await
        };
        started.await.unwrap_or_else(|error| {
            let refused = refused_devices(&error, &spec.units, node);
            Err(refused.unwrap_or_else(|| self.docker.problem(&error)))
        })
    }

    /// Waits for the end of a container. `check` looks at what the program does, at the interval of
    /// the limits.
    ///
    /// # Errors
    /// Why the container was ended and removed: it exceeded its deadline, or `check` returned that.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub async fn watch<P, C: Future<Output = Option<P>>>(
        &self,
        id: &str,
        mut limits: Limits<P>,
        check: impl Fn() -> C,
    ) -> Result<End, P> {
        let mut watch = RunWatch::default();
        loop {
            let answer = match self.ended_within(id, &mut limits, &check).await {
                Ok(Ok(())) => self.state(id).await,
                Ok(Err(problem)) => Err(problem),
                Err(reason) => {
                    return match self.remove(&[id.to_owned()]).await {
                        Ok(()) => Err(reason),
                        Err(problem) => Ok(End::EngineLost(problem)),
                    };
                }
            };
            if let Some(end) = watch.on_answer(answer, limits.engine_timeout, Instant::now()) {
                return Ok(end);
            }
            sleep(ENGINE_RETRY).await;
        }
    }

    /// Waits until the container ended or the engine cannot tell. The outer error is the limit that it
    /// exceeds.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn ended_within<P, C: Future<Output = Option<P>>>(
        &self,
        id: &str,
        limits: &mut Limits<P>,
        check: impl Fn() -> C,
    ) -> Result<Result<(), Problem>, P> {
        let ended = self.ended(id);
        tokio::pin!(ended);
        loop {
            let Some(next_check) = limits.next_check(Instant::now()) else {
                return Ok(ended.await);
            };
            tokio::select! {
                answer = &mut ended => return Ok(answer),
                () = sleep_until(next_check.into()) => {}
            }
            if let Some(reason) = limits.exceeded(Instant::now()) {
                return Err(reason);
            }
            if let Some(reason) = check().await {
                return Err(reason);
            }
        }
    }

    /// Resolves when the container has ended, or when the engine cannot tell.
    async fn ended(&self, id: &str) -> Result<(), Problem> {
        let client = self.docker.client().map_err(|error| self.docker.problem(&error))?;
        let mut waiting = client.wait_container(id, None::<query::WaitContainerOptions>);
        match waiting.next().await {
            // Another exit code than 0 is an error of the client.
            Some(Err(DockerError::DockerContainerWaitError { .. }) | Ok(_)) | None => Ok(()),
            Some(Err(error)) if status_code(&error) == Some(404) => Ok(()),
            Some(Err(error)) => Err(self.docker.problem(&error)),
        }
    }

    /// The state of a container. A missing one is [`RunState::Unusable`].
    pub(super) async fn state(&self, id: &str) -> Result<RunState, Problem> {
        let details = self.docker.details(id).await;
        let details = details.map_err(|error| self.docker.problem(&error))?;
        let Some(details) = details else { return Ok(RunState::Unusable) };
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let started_at = time(&details.state.started_at);
        Ok(match details.state.lifecycle() {
            Lifecycle::Running | Lifecycle::Paused => RunState::Running { started_at },
            Lifecycle::Exited => {
                let ran = started_at.zip(time(&details.state.finished_at));
                let ran = ran.map_or(0, |(start, end)| (end - start).get_seconds());
                RunState::Exited(Exit {
                    code: details.state.exit_code,
                    out_of_memory: details.state.oom_killed,
                    seconds: u64::try_from(ran).unwrap_or(0),
                })
            }
            Lifecycle::Removing | Lifecycle::Unusable => RunState::Unusable,
        })
    }
}

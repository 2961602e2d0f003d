//! The task of one `TrainingModel`: the volume, the run, the state, and the output Model. Every
//! step can be repeated; a failed one is retried with backoff.

use std::{future::pending, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use neptune_aggregator_client::AggregatorClient;
use neptune_backoff::{Backoff, Retries};
use neptune_cloud_kinds::{finding::Finding, reason::Reason};
use neptune_program::random::random;
use neptune_wire::{
    AggregatorEndpoint,
    aggregator::{RunRequest, RunStatus},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    AggregatorTask, AggregatorView, Own, Publication, ReportedAggregator, provision,
    publish::publish, request_error::finding,
};

/// The pause after a failed step.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));

/// The task of one `TrainingModel`.
pub struct Driver {
    client: Client,
    controller: Arc<Own>,
    desired: watch::Receiver<AggregatorTask>,
    view: Arc<Mutex<AggregatorView>>,
    notify: Box<dyn Fn() + Send + Sync>,
    /// The rights in the namespace were seen, and the volume exists if one is needed.
    is_provisioned: bool,
    /// The client of the current URL and pin.
    aggregator: Option<AggregatorClient>,
    /// The request that the aggregator accepted last.
    accepted: Option<RunRequest>,
    /// The revision of the newest state; `None` to get the state at once.
    revision: Option<u64>,
    /// The aggregator is behind the accepted request: what to send now is decided again.
    is_held: bool,
    /// The time of the last reconcile that a time caused.
    reconciled_at: Option<Timestamp>,
}

/// The task was dropped, so its driver ends.
struct Stopped;

impl Driver {
    pub fn new(
        (client, controller): (Client, Arc<Own>),
        desired: watch::Receiver<AggregatorTask>,
        view: Arc<Mutex<AggregatorView>>,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            client,
            controller,
            desired,
            view,
            notify,
            is_provisioned: false,
            aggregator: None,
            accepted: None,
            revision: None,
            is_held: false,
            reconciled_at: None,
        }
    }

    /// Runs until the task is dropped.
    pub async fn run(mut self) {
        let mut retries = Retries::new(RETRY);
        loop {
            match self.turn().await {
                Ok(Ok(())) => {
                    retries.reset();
                    if self.desired.borrow().node.is_none() {
                        self.change(|view| view.problem = None);
                    }
                }
                Ok(Err(problem)) => {
                    // The aggregator may have lost its files.
                    (self.is_provisioned, self.aggregator, self.revision) = (false, None, None);
                    tracing::debug!(reason = %problem.reason, problem.message, "retrying");
                    self.change(|view| view.problem = Some(problem));
                    let pause = tokio::time::sleep(retries.failed(random()));
                    tokio::select! {
                        () = pause => {}
                        changed = self.desired.changed() => if changed.is_err() { return },
                    }
                }
                Err(Stopped) => return,
            }
        }
    }

    /// The next step: publishes, sends the run, or waits for the next state.
    async fn turn(&mut self) -> Result<Result<(), Finding>, Stopped> {
        if self.desired.has_changed().map_err(|_| Stopped)? {
            self.is_held = false;
        }
        let task = self.desired.borrow_and_update().clone();
        if let Some(reported) = &task.node {
            return self.relay(&task, reported).await;
        }
        let aggregator = match self.connect(&task).await {
            Ok(aggregator) => aggregator,
            Err(problem) => return Ok(Err(problem)),
        };
        if let Some(publication) = task.publication.as_ref().filter(|it| !self.is_published(it)) {
            return Ok(self.publish(&task, publication).await);
        }
        let Some(aggregator) = aggregator else {
            return self.wait(&task, pending::<()>()).await.map(|_| Ok(()));
        };
        if let Some(request) = task.request.as_ref().filter(|request| self.is_new(request)) {
            return Ok(self.send(&task.object, &aggregator, request).await);
        }
        let after = self.revision;
        match self.wait(&task, aggregator.state(after)).await? {
            None => {}
            Some(Ok(Some(state))) => self.store(state),
            // An aggregator that lost its files counts its revisions from 0 again.
            Some(Ok(None)) => self.revision = None,
            Some(Err(error)) => {
                return Ok(Err(finding(&task.object, &aggregator.endpoint().url, error)));
            }
        }
        Ok(Ok(()))
    }

    /// The next step if a node runs the aggregator: takes over what the node reports and what it has
    /// to send, publishes, or waits for another task.
    async fn relay(
        &mut self,
        task: &AggregatorTask,
        reported: &ReportedAggregator,
    ) -> Result<Result<(), Finding>, Stopped> {
        (self.aggregator, self.accepted, self.revision) = (None, None, None);
        let ReportedAggregator { report, problem } = reported;
        let unbound = if task.has_output { self.check_rights(task).await.err() } else { None };
        let problem = unbound.as_ref().or(problem.as_ref());
        let publication = task.publication.as_ref().filter(|it| !self.is_published(it));
        self.change(|view| {
            view.pin = report.pin.clone().or(view.pin.take());
            if let Some(state) = &report.state
                && view.state.as_deref() != Some(state)
            {
                view.state = Some(Arc::new(state.clone()));
            }
            view.request.clone_from(&task.request);
            // The problem of a failed publication stays until another attempt.
            if problem.is_some() || publication.is_none() {
                view.problem = problem.cloned();
            }
        });
        if let Some(unbound) = unbound {
            return Ok(Err(unbound));
        }
        if let Some(publication) = publication {
            return Ok(self.publish(task, publication).await);
        }
        match self.wait(task, pending::<()>()).await {
            Ok(_) => Ok(Ok(())),
            Err(stopped) => Err(stopped),
        }
    }

    /// Waits for `answer`, another task, or the time to reconcile. `None` in the last two cases.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn wait<T>(
        &mut self,
        task: &AggregatorTask,
        answer: impl Future<Output = T>,
    ) -> Result<Option<T>, Stopped> {
        let reconcile_at = task.reconcile_at.filter(|at| self.reconciled_at != Some(*at));
        let until = reconcile_at.map(|at| Timestamp::now().duration_until(at));
        let timer = async {
            match until {
                Some(until) => tokio::time::sleep(until.try_into().unwrap_or_default()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            answer = answer => Ok(Some(answer)),
            changed = self.desired.changed() => {
                self.is_held = false;
                // The next turn reads it.
                self.desired.mark_changed();
                changed.map(|()| None).map_err(|_| Stopped)
            }
            () = timer => {
                self.reconciled_at = reconcile_at;
                (self.notify)();
                Ok(None)
            }
        }
    }

    /// The client of the aggregator, whose volume exists then; `None` without a URL or pin.
    async fn connect(
        &mut self,
        task: &AggregatorTask,
    ) -> Result<Option<AggregatorClient>, Finding> {
        let controller = Arc::clone(&self.controller);
        if !self.is_provisioned {
            provision::create_volume(&self.client, &task.volume, &controller.identity).await?;
            self.is_provisioned = true;
        }
        let key = controller.key.get(&self.client).await?;
        self.change(|view| view.controller_pin = Some(key.pin().clone()));
        let Some((url, pin)) = task.url.as_ref().zip(task.pin.as_ref()) else { return Ok(None) };
        let endpoint = AggregatorEndpoint { url: url.clone(), pin: pin.clone() };
        if self.aggregator.as_ref().is_none_or(|client| *client.endpoint() != endpoint) {
            let client = AggregatorClient::new(key, endpoint);
            self.aggregator = Some(client.map_err(|error| finding(&task.object, url, error))?);
        }
        Ok(self.aggregator.clone())
    }

    /// Checks that the controller has the rights for trainings in the namespace.
    async fn check_rights(&mut self, task: &AggregatorTask) -> Result<(), Finding> {
        if !self.is_provisioned {
            provision::volume(&self.client, &task.volume, &self.controller.identity).await?;
            self.is_provisioned = true;
        }
        Ok(())
    }

    fn is_published(&self, publication: &Publication) -> bool {
        let view = self.view.lock();
        view.published.as_ref() == Some(&publication.sha256)
    }

    async fn publish(
        &mut self,
        task: &AggregatorTask,
        publication: &Publication,
    ) -> Result<(), Finding> {
        let namespace = task.volume.metadata.namespace.as_deref().unwrap_or_default();
        publish(&self.client, namespace, publication).await?;
        let digest = publication.sha256.clone();
        self.change(|view| view.published = Some(digest));
        Ok(())
    }

    fn is_new(&self, request: &RunRequest) -> bool {
        !self.is_held && self.accepted.as_ref() != Some(request)
    }

    async fn send(
        &mut self,
        object: &str,
        aggregator: &AggregatorClient,
        request: &RunRequest,
    ) -> Result<(), Finding> {
        match aggregator.put(request).await {
            Ok(state) => {
                tracing::debug!(run = request.run, revision = state.revision, "run sent");
                self.accepted = Some(request.clone());
                self.store(state);
                Ok(())
            }
            Err(error) => {
                let problem = finding(object, &aggregator.endpoint().url, error);
                // It may have a later run, which only its state has.
                if problem.reason == Reason::RunEnded
                    && let Ok(Some(state)) = aggregator.state(None).await
                {
                    self.store(state);
                }
                Err(problem)
            }
        }
    }

    fn store(&mut self, state: RunStatus) {
        self.revision = Some(state.revision);
        if self.accepted.as_ref().is_some_and(|accepted| state.run < accepted.run) {
            self.accepted = None;
            self.is_held = true;
        }
        self.change(|view| {
            if view.state.as_deref() != Some(&state) {
                view.state = Some(Arc::new(state));
            }
        });
    }

    /// Changes the view, and notifies the controller if it is another one then.
    fn change(&self, change: impl FnOnce(&mut AggregatorView)) {
        let is_new = {
            let mut view = self.view.lock();
            let before = view.clone();
            change(&mut view);
            *view != before
        };
        if is_new {
            (self.notify)();
        }
    }
}

//! Requests of the controller: which are valid, and what they change in a run.

use neptune_content::Digest;
use neptune_wire::{
    TaskId,
    aggregator::{AggregationRule, FailedTask, RunRequest, RunSettings},
};

use super::{Problem, Rejection, Run, Stage, TaskResult, UnixSeconds, Verdict};

/// Returns the request with lower-case digests.
pub(super) fn validated(mut request: RunRequest) -> Result<RunRequest, Rejection> {
    let invalid = |text: &str| Err(Rejection::Invalid(text.to_owned()));
    if request.uid.is_empty() || request.run == 0 {
        return invalid("uid must not be empty, and run must be at least 1");
    }
    let RunRequest { settings, keep, .. } = &mut request;
    if settings.workers.is_empty() {
        return invalid("settings.workers must not be empty");
    }
    if settings.workers.keys().any(String::is_empty) {
        return invalid("settings.workers must not contain an empty name");
    }
    if settings.rounds == 0 {
        return invalid("settings.rounds must be at least 1");
    }
    if settings.min_workers == Some(0) {
        return invalid("settings.minWorkers must be at least 1, or absent");
    }
    if settings.round_timeout_seconds == Some(0) {
        return invalid("settings.roundTimeoutSeconds must be at least 1, or absent");
    }
    if settings.max_update_bytes == 0 {
        return invalid("settings.maxUpdateBytes must be at least 1");
    }
    if !(settings.fraction > 0.0 && settings.fraction <= 1.0) {
        return invalid("settings.fraction must be above 0 and at most 1");
    }
    if settings.session.is_some()
        && (settings.evaluation.is_some() || settings.early_stop.is_some())
    {
        return invalid(
            "settings.evaluation and settings.earlyStop do not go with settings.session",
        );
    }
    if let Some(problem) = rule_problem(&settings.rule) {
        return Err(Rejection::Invalid(format!("settings.rule.{problem}")));
    }
    let present = settings.evaluation.as_mut().and_then(|it| it.present.as_mut());
    let initial = settings.initial.as_mut().map(|it| &mut it.sha256);
    for sha256 in keep.iter_mut().chain(present).chain(initial) {
        match sha256.parse::<Digest>() {
            Ok(digest) => *sha256 = digest.to_string(),
            Err(error) => return Err(Rejection::Invalid(format!("{sha256:?}: {error}"))),
        }
    }
    Ok(request)
}

fn rule_problem(rule: &AggregationRule) -> Option<&'static str> {
    let is_positive = |it: f64| it.is_finite() && it > 0.0;
    if rule.trim.is_some_and(|it| !(0.0..0.5).contains(&it)) {
        return Some("trim must be from 0 to below 0.5");
    }
    if !(is_positive(rule.max_weight) && rule.max_weight <= 1.0) {
        return Some("maxWeight must be above 0 and at most 1");
    }
    if ![rule.clip, rule.refuse].into_iter().flatten().all(is_positive) {
        return Some("clip and refuse must be above 0, or absent");
    }
    if !is_positive(rule.server_learning_rate) {
        return Some("serverLearningRate must be above 0");
    }
    let is_momentum = (0.0..1.0).contains(&rule.server_momentum);
    (!is_momentum).then_some("serverMomentum must be from 0 to below 1")
}

impl Run {
    /// Applies a request for the same `TrainingModel`. A higher number begins the next run.
    pub(super) fn on_request(
        &mut self,
        request: RunRequest,
        now: UnixSeconds,
    ) -> Result<(), Rejection> {
        let request = validated(request)?;
        if request.uid != self.uid {
            return Err(Rejection::OtherTrainingModel(self.uid.clone()));
        }
        if request.run < self.number {
            let (requested, current) = (request.run, self.number);
            return Err(Rejection::RunEnded { requested, current });
        }
        if request.run > self.number {
            *self = Self::start(request, now)?;
            return Ok(());
        }
        let mut settings = self.settings.clone();
        settings.adopt_live(&request.settings);
        if !is_same(&settings, &request.settings) {
            return Err(Rejection::RunChanged);
        }
        self.settings = settings;
        self.nodes = request.nodes;
        self.unavailable = request.unavailable;
        if let Stage::Open(open) = &mut self.stage
            && self.suspended
            && !request.suspended
        {
            open.begin_again(now);
        }
        self.suspended = request.suspended;
        self.keep = request.keep.into_iter().collect();
        self.session_host = request.session_host;
        let ids: Vec<TaskId> = request.failed.iter().map(|it| it.id.clone()).collect();
        for failed in request.failed {
            // A request is repeated, also after the task was opened again.
            if !self.reported_failed.contains(&failed.id) {
                self.on_failed(failed);
            }
        }
        self.reported_failed = ids.into_iter().collect();
        Ok(())
    }

    fn on_failed(&mut self, failed: FailedTask) {
        let Some(task) = self.open_tasks().into_iter().find(|it| it.id == failed.id) else {
            return;
        };
        if matches!(self.stage, Stage::Open(_)) {
            self.set_back_failed(&task.worker, &failed);
        }
        let problem = Problem { reason: failed.reason, message: failed.message };
        if matches!(self.stage, Stage::Evaluating { .. }) {
            self.on_evaluation_failed(&problem.message);
        } else {
            let verdict = Verdict::Failed(problem);
            let result = TaskResult { worker: task.worker.clone(), task: task.id, verdict };
            self.results.insert(task.worker, result);
        }
    }
}

/// Whether both are the same. The address of the first weights may change: their digest decides.
fn is_same(a: &RunSettings, b: &RunSettings) -> bool {
    let without_address = |settings: &RunSettings| {
        let mut settings = settings.clone();
        if let Some(initial) = &mut settings.initial {
            initial.url = None;
        }
        settings
    };
    without_address(a) == without_address(b)
}

//! What the controller sees of a run.

use neptune_wire::aggregator::{ResultState, RunPhase, RunStatus, UpdateReport, WorkerResult};

use super::{Problem, Run, Stage, Verdict};

impl Run {
    /// Returns the status that the HTTP API reports, with this revision.
    pub fn status(&self, revision: u64) -> RunStatus {
        let problem = self.problem();
        let workers = self.settings.workers.keys();
        RunStatus {
            revision,
            uid: self.uid.clone(),
            run: self.number,
            phase: self.phase(),
            round: self.round,
            base: self.base.clone(),
            tasks: self.open_tasks(),
            workers: workers.map(|it| (it.clone(), self.worker_result(it))).collect(),
            history: self.history.clone(),
            best: self.best.clone(),
            format: None,
            present: self.present.clone(),
            reason: problem.map(|it| it.reason.clone()),
            message: problem.map(|it| it.message.clone()).unwrap_or_default(),
            session: None,
        }
    }

    /// Returns what prevents progress, or why the run ended.
    pub fn problem(&self) -> Option<&Problem> {
        self.problem.as_ref().or(self.evaluation_problem.as_ref())
    }

    /// Returns the phase of the run: what it does, or how it ended.
    pub fn phase(&self) -> RunPhase {
        match self.stage {
            Stage::New | Stage::Idle | Stage::Open(_) if self.suspended => RunPhase::Suspended,
            Stage::New | Stage::Idle | Stage::FetchingInitial | Stage::Initializing => {
                RunPhase::Preparing
            }
            Stage::Session { is_ready: false, .. } => RunPhase::Preparing,
            Stage::Open { .. } | Stage::Session { .. } => RunPhase::Open,
            Stage::Closing(_) => RunPhase::Closing,
            Stage::FindingPresent | Stage::Evaluating { .. } => RunPhase::Evaluating,
            Stage::Succeeded => RunPhase::Succeeded,
            Stage::Failed => RunPhase::Failed,
        }
    }

    pub(super) fn worker_result(&self, worker: &str) -> WorkerResult {
        let is_selected = self.selected.contains(worker);
        let mut result = WorkerResult {
            state: if is_selected { ResultState::Pending } else { ResultState::Excluded },
            report: None,
            sha256: None,
            norm: None,
            weight: self.shares.get(worker).copied(),
            reason: None,
            message: String::new(),
        };
        let problem = match self.results.get(worker).map(|it| &it.verdict) {
            None => self.absence(worker).map(|it| {
                result.state = ResultState::Excluded;
                (it.reason, it.message)
            }),
            Some(Verdict::Accepted(update)) => {
                result.state = ResultState::Accepted;
                result.report = Some(update.report.clone());
                result.sha256 = Some(update.content.sha256.clone());
                result.norm = Some(update.norm);
                if let Some(text) = self.norm_refused.get(worker) {
                    result.state = ResultState::Refused;
                    Some(("NormTooLarge".to_owned(), text.clone()))
                } else {
                    let note = self.samples_note(worker, &update.report);
                    note.map(|text| ("SamplesNotCredible".to_owned(), text))
                }
            }
            Some(Verdict::Refused { sha256, report, problem }) => {
                result.state = ResultState::Refused;
                result.report = Some(report.clone());
                result.sha256 = Some(sha256.clone());
                Some((problem.reason.clone(), problem.message.clone()))
            }
            Some(Verdict::Failed(problem)) => {
                result.state = ResultState::Failed;
                Some((problem.reason.clone(), problem.message.clone()))
            }
        };
        if let Some((reason, message)) = problem {
            (result.reason, result.message) = (Some(reason), message);
        }
        result
    }

    /// Returns a text if the worker reported more samples than its dataset has.
    fn samples_note(&self, worker: &str, report: &UpdateReport) -> Option<String> {
        let counted = report.counted_samples.filter(|it| *it < report.samples)?;
        let dataset = &self.settings.workers.get(worker)?.dataset;
        let reported = report.samples;
        Some(format!(
            "reported {reported} samples, its dataset {dataset} has {counted}: {counted} is used"
        ))
    }
}

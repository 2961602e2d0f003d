//! The part of a page that only a `TrainingModel` has: its run and the course of its metric. Pure.

use neptune_api::{TrainingModelStatus, TrainingRound, TrainingWorkerStatus};
use serde::Serialize;

use super::{
    format::{or_none, short, sparkline},
    section::{Section, Value},
};

/// The rounds of the sparkline.
const ROUNDS: usize = 60;
/// The rounds with a line each.
const LINES: usize = 5;

/// The part of the page that only a training has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Training {
    pub run: i64,
    pub progress: String,
    pub participants: String,
    /// The metrics of the last round.
    pub metrics: Vec<String>,
    /// The metric per round of the run, or else the loss, oldest first.
    pub history: Vec<String>,
    /// The newest closed rounds of the run, oldest first.
    pub rounds: Vec<Line>,
    /// What each worker's update counts for in the current round.
    pub workers: Vec<Line>,
    pub best: Option<String>,
    pub aggregator: String,
    pub output: Option<String>,
    pub last_run: Option<String>,
}

/// A name with its values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    pub name: String,
    pub values: Vec<String>,
}

impl Training {
    /// The training part of a status.
    pub fn from_status(status: &TrainingModelStatus) -> Option<Self> {
        let run = status.run?;
        let rounds = status.history.iter().filter(|round| round.run == run);
        let lines: Vec<_> = rounds.clone().map(round_line).collect();
        let history: Vec<_> =
            rounds.filter_map(|round| round.metric.clone().or(round.loss.clone())).collect();
        Some(Self {
            run,
            progress: or_none(status.progress.as_deref()),
            participants: or_none(status.participants.as_deref()),
            metrics: status.metrics.iter().map(|it| format!("{} {}", it.key, it.value)).collect(),
            history: history[history.len().saturating_sub(ROUNDS)..].to_vec(),
            rounds: lines[lines.len().saturating_sub(LINES)..].to_vec(),
            workers: status.workers.iter().map(worker_line).collect(),
            best: status
                .best
                .as_ref()
                .map(|best| format!("round {}, sha256 {}", best.round, short(&best.sha256sum))),
            aggregator: or_none(status.aggregator.as_ref().and_then(|it| it.url.as_deref())),
            output: status.output.as_ref().map(|output| match &output.sha256sum {
                Some(digest) if output.published => {
                    format!("Model {} has sha256 {}", output.model, short(digest))
                }
                Some(digest) => format!("Model {} receives sha256 {}", output.model, short(digest)),
                None => format!("Model {} has no weights yet", output.model),
            }),
            last_run: status.last_run.as_ref().map(|last| {
                let message = last.message.as_deref().unwrap_or_default();
                format!("run {}: {}: {message}", last.run, last.result)
            }),
        })
    }

    /// The run, the course of its metric, and what each worker's update counts for.
    pub fn section(&self) -> Section {
        let mut values = vec![
            Value::new("Run", format!("{}, round {}", self.run, self.progress)),
            Value::new("Updates", format!("{} accepted", self.participants)),
        ];
        if !self.metrics.is_empty() {
            values.push(Value::new("Metrics", self.metrics.join(", ")));
        }
        let numbers = self.history.iter().filter(|it| it.parse::<f64>().is_ok()).count();
        if let (Some(first), Some(last), true) =
            (self.history.first(), self.history.last(), numbers > 1)
        {
            let course = format!("{} {first} to {last}", sparkline(&self.history));
            values.push(Value::new("History", course));
        }
        let lines = self.rounds.iter().chain(&self.workers);
        values.extend(lines.map(|Line { name, values }| Value::new(name, values.join(", "))));
        values.extend(Value::optional("Best", self.best.as_ref()));
        values.extend(Value::optional("Output", self.output.as_ref()));
        values.extend(Value::optional("Last run", self.last_run.as_ref()));
        values.push(Value::new("Aggregator", &self.aggregator));
        Section::Values(values)
    }
}

fn round_line(round: &TrainingRound) -> Line {
    let mut values =
        vec![format!("{} updates", round.participants), format!("{} samples", round.samples)];
    values.extend(round.loss.as_ref().map(|loss| format!("loss {loss}")));
    values.extend(round.metric.as_ref().map(|metric| format!("metric {metric}")));
    values.push(format!("{} s", round.seconds));
    Line { name: format!("Round {}", round.round), values }
}

fn worker_line(worker: &TrainingWorkerStatus) -> Line {
    let mut values = vec![format!("Dataset {}", worker.dataset)];
    values.extend(worker.samples.map(|samples| format!("{samples} samples")));
    let optional = [("weight", &worker.weight), ("loss", &worker.loss), ("norm", &worker.norm)];
    values.extend(
        optional
            .iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}"))),
    );
    Line { name: format!("Worker {}", worker.name), values }
}

//! What each worker contributed to a round that closes. Values of nodes are limited here.

use std::collections::BTreeMap;

use neptune_aggregate::close::CloseRecord;
use neptune_wire::{
    Metric,
    aggregator::{ResultState, RoundWorker, kept_rows},
};

use super::{Run, credible_samples};

/// The most metrics of a row.
const MAX_METRICS: usize = 8;
/// The most bytes of the name of a metric. Others are left out, as are those with a longer value.
const MAX_KEY: usize = 63;
/// The most bytes of the value of a metric.
const MAX_VALUE: usize = 32;
/// The most characters of a reason.
const MAX_REASON: usize = 63;

impl Run {
    /// Returns a row for each worker of the current round, and for each that is kept out of it by a
    /// problem. The record decides which updates count.
    pub(super) fn rows(&self, record: &CloseRecord) -> Vec<RoundWorker> {
        let weights: BTreeMap<_, _> =
            record.entries.iter().map(|it| (it.worker.as_str(), it.weight)).collect();
        let row = |name: &String| {
            let result = self.worker_result(name);
            let is_drawn = result.state != ResultState::Excluded || result.reason.is_some();
            let report = result.report.as_ref();
            let reported = report.map(|it| it.metrics.as_slice()).unwrap_or_default();
            let metrics = short(reported);
            is_drawn.then(|| RoundWorker {
                name: name.clone(),
                state: result.state,
                samples: report.map(credible_samples),
                loss: report.and_then(|it| it.loss).filter(|it| it.is_finite()),
                omitted_metrics: reported.len() - metrics.len(),
                metrics,
                norm: result.norm.filter(|it| it.is_finite()),
                weight: weights.get(name.as_str()).copied(),
                reason: result.reason.map(|it| it.chars().take(MAX_REASON).collect()),
            })
        };
        self.settings.workers.keys().filter_map(row).collect()
    }

    /// Drops the rows of the oldest rounds that exceed the limit.
    pub(super) fn drop_rows(&mut self) {
        let kept = kept_rows(self.history.iter().map(|it| it.workers.as_slice()));
        for (round, kept) in self.history.iter_mut().zip(kept) {
            round.omitted_workers += round.workers.len() - kept;
            round.workers.truncate(kept);
        }
    }
}

/// The first metrics of a report that are one short line each.
fn short(metrics: &[Metric]) -> Vec<Metric> {
    let is_line = |text: &str, max: usize| text.len() <= max && !text.contains(char::is_control);
    let is_short = |it: &&Metric| is_line(&it.key, MAX_KEY) && is_line(&it.value, MAX_VALUE);
    metrics.iter().filter(is_short).take(MAX_METRICS).cloned().collect()
}

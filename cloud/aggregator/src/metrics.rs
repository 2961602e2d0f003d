//! Prometheus metrics of the aggregator.

use std::{sync::atomic::AtomicU64, time::Duration};

use neptune_program::{listen::Refusals, metrics as program};
use neptune_wire::{NodeName, aggregator::UpdateReport};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::run::{Run, Stage, Verdict};

type Number = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByNode {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByMetric {
    metric: String,
}

/// All metrics, with their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    round: Gauge,
    rounds: Family<ByResult, Counter>,
    round_seconds: Histogram,
    updates: Family<ByResult, Counter>,
    update_bytes: Counter,
    resent_bytes: Counter,
    worker_seconds: Family<ByNode, Number>,
    loss: Number,
    metric: Family<ByMetric, Number>,
    samples: Gauge,
    aggregate_seconds: Histogram,
    refusals: Refusals,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Makes metrics at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            round: Gauge::default(),
            rounds: Family::default(),
            round_seconds: Histogram::new(program::WORK_BUCKETS),
            updates: Family::default(),
            update_bytes: Counter::default(),
            resent_bytes: Counter::default(),
            worker_seconds: Family::default(),
            loss: Number::default(),
            metric: Family::default(),
            samples: Gauge::default(),
            aggregate_seconds: Histogram::new(program::WORK_BUCKETS),
            refusals: Refusals::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        program::register(&mut self.registry);
        let all = self.registry.sub_registry_with_prefix("neptune_aggregator");
        self.refusals.register(all);
        all.register("round", "Current round of the run", self.round.clone());
        all.register("rounds", "Rounds that ended, closed or failed", self.rounds.clone());
        all.register_with_unit(
            "round",
            "Duration of rounds from opening to new weights",
            Unit::Seconds,
            self.round_seconds.clone(),
        );
        all.register("updates", "Results of workers", self.updates.clone());
        all.register_with_unit(
            "update",
            "Bytes of updates received",
            Unit::Bytes,
            self.update_bytes.clone(),
        );
        all.register_with_unit(
            "resent",
            "Bytes of updates received more than once",
            Unit::Bytes,
            self.resent_bytes.clone(),
        );
        all.register_with_unit(
            "worker",
            "Duration of the last successful training container of a node",
            Unit::Seconds,
            self.worker_seconds.clone(),
        );
        all.register("loss", "Loss of the last closed round", self.loss.clone());
        all.register("metric", "Metrics of the last measured weights", self.metric.clone());
        all.register("samples", "Samples of the last closed round", self.samples.clone());
        all.register_with_unit(
            "aggregate",
            "Duration of the computation of new weights",
            Unit::Seconds,
            self.aggregate_seconds.clone(),
        );
    }

    /// Counts connections that the server refuses.
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Counts what a new state adds to the one before; `None` at the start of the program.
    pub fn observe(&self, before: Option<&Run>, run: &Run) {
        self.round.set(i64::from(run.round));
        if let Some(record) = run.last_round() {
            self.samples.set(i64::try_from(record.samples).unwrap_or(i64::MAX));
            if let Some(loss) = record.loss {
                self.loss.set(loss);
            }
            for metric in &record.metrics {
                if let Ok(value) = metric.value.parse() {
                    let label = ByMetric { metric: metric.key.clone() };
                    self.metric.get_or_create(&label).set(value);
                }
            }
        }
        let Some(before) = before.filter(|it| it.number == run.number) else { return };
        let is_new = |it: &&_| before.last_round() != Some(*it);
        if let Some(record) = run.last_round().filter(is_new)
            && before.last_round().is_none_or(|it| it.round != record.round)
        {
            self.rounds.get_or_create(&ByResult { result: "closed" }).inc();
            #[allow(clippy::cast_precision_loss, reason = "a duration for people")]
            self.round_seconds.observe(record.seconds as f64);
        }
        if run.stage == Stage::Failed && before.stage != Stage::Failed {
            self.rounds.get_or_create(&ByResult { result: "failed" }).inc();
        }
    }

    /// Counts a result of a worker that is new.
    pub fn judged(&self, node: &NodeName, verdict: &Verdict) {
        let (result, report): (_, Option<&UpdateReport>) = match verdict {
            Verdict::Accepted(update) => ("accepted", Some(&update.report)),
            Verdict::Refused { .. } => ("refused", None),
            Verdict::Failed(_) => ("failed", None),
        };
        self.updates.get_or_create(&ByResult { result }).inc();
        if let Some(report) = report {
            #[allow(clippy::cast_precision_loss, reason = "a duration for people")]
            let seconds = report.seconds as f64;
            self.worker_seconds.get_or_create(&ByNode { node: node.to_string() }).set(seconds);
        }
    }

    /// Counts a block of an update.
    pub fn received(&self, bytes: usize, is_repeated: bool) {
        self.update_bytes.inc_by(bytes as u64);
        if is_repeated {
            self.resent_bytes.inc_by(bytes as u64);
        }
    }

    /// Records how long an aggregation took.
    pub fn aggregated(&self, duration: Duration) {
        self.aggregate_seconds.observe(duration.as_secs_f64());
    }

    /// Returns the metrics in the text format of `OpenMetrics`, without its end.
    pub fn text(&self) -> String {
        program::encode(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use neptune_program::{listen::Refusal, metrics::text_format};

    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::new();
        drop(metrics.rounds.get_or_create(&ByResult { result: "closed" }));
        drop(metrics.updates.get_or_create(&ByResult { result: "accepted" }));
        drop(metrics.worker_seconds.get_or_create(&ByNode { node: "edge0".to_owned() }));
        drop(metrics.metric.get_or_create(&ByMetric { metric: "accuracy".to_owned() }));
        metrics.refusals.count("aggregator", Refusal::PendingFull);
        let page = text_format(&metrics.text());
        neptune_harness::metrics_doc::check("neptune-aggregator", &page);
    }
}

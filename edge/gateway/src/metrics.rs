//! Prometheus metrics of the gateway.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use neptune_program::{listen::Refusals, metrics as program};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::decision::{CloudState, Decisions};

/// Series for gateways of a chain: eight gateways with seven decisions each.
const MAX_TIER_SERIES: u64 = 64;
/// Series of requests and samples by client: 64 clients with 15 series each. Those of removed
/// clients stay until a restart.
const MAX_CLIENT_SERIES: u64 = 1024;

type Number = Gauge<f64, AtomicU64>;

/// A side of the cascade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The model server of this node.
    Edge,
    /// The model server in the cloud.
    Cloud,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRequest {
    service: String,
    protocol: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDecision {
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTier {
    tier: String,
    decision: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClientResult {
    client: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByClientDecision {
    client: String,
    decision: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySide {
    side: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWindow {
    window: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAgreement {
    agree: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByTokens {
    side: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

/// The metrics of a capture.
#[derive(Debug, Clone, Default)]
pub struct CaptureMetrics {
    samples: Family<ByResult, Counter>,
    bytes: Gauge,
}

impl CaptureMetrics {
    /// Samples were captured, or not.
    pub fn samples(&self, result: &'static str, samples: u64) {
        self.samples.get_or_create(&ByResult { result }).inc_by(samples);
    }

    /// The size of all records.
    pub fn bytes(&self, bytes: u64) {
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

/// The metrics of one gateway, with their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<ByRequest, Counter>,
    samples: Family<ByDecision, Counter>,
    tiers: Family<ByTier, Counter>,
    /// Series of `tiers`: their names come from other gateways.
    tier_series: AtomicU64,
    client_requests: Family<ByClientResult, Counter>,
    client_samples: Family<ByClientDecision, Counter>,
    /// Number of series of both counters so far.
    client_series: AtomicU64,
    added: Histogram,
    upstream: Family<BySide, Histogram>,
    first_token: Family<BySide, Histogram>,
    confidence: Histogram,
    threshold: Number,
    ratio: Family<ByWindow, Number>,
    budget: Number,
    breaker_open: Gauge,
    shadows: Family<ByAgreement, Counter>,
    /// Shadows that were dropped for lack of room.
    pub dropped_shadows: Counter,
    upload: Counter,
    tokens: Family<ByTokens, Counter>,
    psi: Number,
    /// The metrics of the capture.
    pub capture: CaptureMetrics,
    /// Connections that the servers refused.
    pub refusals: Refusals,
}

impl Side {
    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Cloud => "cloud",
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let upstream = || Histogram::new(program::REQUEST_BUCKETS);
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            samples: Family::default(),
            tiers: Family::default(),
            tier_series: AtomicU64::default(),
            client_requests: Family::default(),
            client_samples: Family::default(),
            client_series: AtomicU64::default(),
            added: Histogram::new(program::FAST_BUCKETS),
            upstream: Family::new_with_constructor(upstream),
            first_token: Family::new_with_constructor(upstream),
            confidence: Histogram::new((1..=20).map(|bin| f64::from(bin) / 20.0)),
            threshold: Number::default(),
            ratio: Family::default(),
            budget: Number::default(),
            breaker_open: Gauge::default(),
            shadows: Family::default(),
            dropped_shadows: Counter::default(),
            upload: Counter::default(),
            tokens: Family::default(),
            psi: Number::default(),
            capture: CaptureMetrics::default(),
            refusals: Refusals::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        program::register(&mut self.registry);
        let r = self.registry.sub_registry_with_prefix("neptune_gateway");
        self.refusals.register(r);
        r.register("requests", "Answered requests", self.requests.clone());
        r.register("samples", "Answered samples, by decision", self.samples.clone());
        let help = "Time of a request that was not spent waiting for a model server";
        r.register_with_unit("added", help, Unit::Seconds, self.added.clone());
        let help = "Time until a model server's answer";
        r.register_with_unit("upstream", help, Unit::Seconds, self.upstream.clone());
        let help = "Time until the first event of a streamed answer";
        r.register_with_unit("first_token", help, Unit::Seconds, self.first_token.clone());
        r.register("confidence", "Confidence of judged samples", self.confidence.clone());
        let help = "Confidence below which a sample is hard";
        r.register("threshold", help, self.threshold.clone());
        let help = "Share of the last samples that the cloud answered";
        r.register("upload_ratio", help, self.ratio.clone());
        r.register("budget_uploads", "Uploads that the cap permits now", self.budget.clone());
        let help = "1 while the cloud is left alone";
        r.register("breaker_open", help, self.breaker_open.clone());
        let help = "Easy samples that the cloud answered as well";
        r.register("shadow", help, self.shadows.clone());
        let help = "Shadows that were dropped because the gateway held too many bytes";
        r.register("dropped_shadows", help, self.dropped_shadows.clone());
        let help = "Bytes of requests to the cloud";
        r.register_with_unit("upload", help, Unit::Bytes, self.upload.clone());
        r.register("tokens", "Tokens that the answers report", self.tokens.clone());
        let help = "Population stability index of the confidences";
        r.register("psi", help, self.psi.clone());
        let help = "Samples of a chain of gateways, by gateway and its decision";
        r.register("tier_samples", help, self.tiers.clone());
        let help = "Requests with a key of a client, by result";
        r.register("client_requests", help, self.client_requests.clone());
        let help = "Answered samples of a client, by decision";
        r.register("client_samples", help, self.client_samples.clone());
        let help = "Samples to capture, by result";
        r.register("capture_samples", help, self.capture.samples.clone());
        let help = "Size of the captured records, in bytes";
        r.register("capture_bytes", help, self.capture.bytes.clone());
    }

    /// A request was answered.
    pub fn request(&self, service: &str, protocol: &'static str, code: u16, added: Duration) {
        let labels = ByRequest { service: service.to_owned(), protocol, code };
        self.requests.get_or_create(&labels).inc();
        self.added.observe(added.as_secs_f64());
    }

    /// A sample was answered.
    pub fn sample(&self, decision: &'static str) {
        self.samples.get_or_create(&ByDecision { decision }).inc();
    }

    /// A gateway of the chain decided about a sample.
    pub fn tier(&self, tier: &str, decision: &str) {
        let labels = ByTier { tier: tier.to_owned(), decision: decision.to_owned() };
        let is_known = self.tiers.get(&labels).is_some();
        if is_known || self.tier_series.fetch_add(1, Ordering::Relaxed) < MAX_TIER_SERIES {
            self.tiers.get_or_create(&labels).inc();
        }
    }

    /// A request of a client was accepted, or refused.
    pub fn client_request(&self, client: &str, result: &'static str) {
        let labels = ByClientResult { client: client.to_owned(), result };
        let is_known = self.client_requests.get(&labels).is_some();
        if is_known || self.has_client_series() {
            self.client_requests.get_or_create(&labels).inc();
        }
    }

    /// A sample of a client was answered.
    pub fn client_sample(&self, client: &str, decision: &'static str) {
        let labels = ByClientDecision { client: client.to_owned(), decision };
        let is_known = self.client_samples.get(&labels).is_some();
        if is_known || self.has_client_series() {
            self.client_samples.get_or_create(&labels).inc();
        }
    }

    /// Whether there is room for one more series of a client, which is then taken.
    fn has_client_series(&self) -> bool {
        self.client_series.fetch_add(1, Ordering::Relaxed) < MAX_CLIENT_SERIES
    }

    /// A sample was judged.
    pub fn judged(&self, confidence: f64) {
        self.confidence.observe(confidence);
    }

    /// Records the time in which a model server answered.
    pub fn upstream(&self, side: Side, time: Duration) {
        let labels = BySide { side: side.as_str() };
        self.upstream.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// Records the time in which a streamed answer began.
    pub fn first_token(&self, side: Side, time: Duration) {
        let labels = BySide { side: side.as_str() };
        self.first_token.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// A shadow was compared.
    pub fn shadow(&self, agree: bool) {
        let labels = ByAgreement { agree: if agree { "true" } else { "false" } };
        self.shadows.get_or_create(&labels).inc();
    }

    /// Bytes were sent to the cloud.
    pub fn uploaded(&self, bytes: usize) {
        self.upload.inc_by(bytes as u64);
    }

    /// An answer reports its tokens.
    pub fn tokens(&self, side: Side, input: u64, output: u64) {
        for (r#type, count) in [("input", input), ("output", output)] {
            let labels = ByTokens { side: side.as_str(), r#type };
            self.tokens.get_or_create(&labels).inc_by(count);
        }
    }

    /// The page for Prometheus, with the state of the decisions at this time.
    pub fn page(&self, decisions: &Decisions, cloud: CloudState) -> String {
        self.threshold.set(decisions.policy().threshold());
        self.ratio.get_or_create(&ByWindow { window: "1000" }).set(decisions.recent_ratio());
        self.budget.set(decisions.policy().tokens());
        self.breaker_open.set(i64::from(cloud.is_away()));
        self.psi.set(decisions.policy().confidence_drift().psi().unwrap_or(0.0));
        program::encode(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use neptune_program::{listen::Refusal, metrics::text_format};

    use super::*;

    /// Metrics with a sample of each.
    fn sampled() -> Metrics {
        let metrics = Metrics::default();
        metrics.request("assistant", "oip", 200, Duration::ZERO);
        metrics.sample("easy");
        metrics.tier("assistant", "easy");
        metrics.client_request("hall", "accepted");
        metrics.client_sample("hall", "easy");
        metrics.upstream(Side::Edge, Duration::ZERO);
        metrics.first_token(Side::Edge, Duration::ZERO);
        metrics.shadow(true);
        metrics.tokens(Side::Edge, 1, 1);
        metrics.capture.samples("captured", 1);
        metrics.refusals.count("rest", Refusal::PendingFull);
        drop(metrics.ratio.get_or_create(&ByWindow { window: "1000" }));
        metrics
    }

    #[test]
    fn every_metric_is_documented() {
        let page = text_format(&program::encode(&sampled().registry));
        neptune_harness::metrics_doc::check("neptune-gateway", &page);
    }

    #[test]
    fn names_of_other_gateways_and_clients_create_a_bounded_number_of_series() {
        let metrics = sampled();
        for number in 0..1000 {
            metrics.tier(&format!("tier{number}"), "easy");
        }
        for number in 0..2000 {
            metrics.client_request(&format!("client{number}"), "accepted");
        }
        let page = program::encode(&metrics.registry);
        let series = page.lines().filter(|line| line.starts_with("neptune_gateway_client_"));
        assert_eq!(series.count() as u64, MAX_CLIENT_SERIES);
        let series = page.lines().filter(|line| line.starts_with("neptune_gateway_tier_samples_"));
        assert_eq!(series.count() as u64, MAX_TIER_SERIES);
    }
}

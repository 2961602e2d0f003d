//! Counts refused connections by server and cause.

use std::fmt;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::admission::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCause {
    server: &'static str,
    cause: Refusal,
}

impl EncodeLabelValue for Refusal {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// The counters of all servers of a program. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Family<ByCause, Counter>);

impl Refusals {
    /// Makes the series of a server, so that they are there from the start.
    pub(super) fn add_server(&self, server: &'static str) {
        for cause in Refusal::ALL {
            drop(self.0.get_or_create(&ByCause { server, cause }));
        }
    }

    /// Counts a refusal of a server.
    pub fn count(&self, server: &'static str, cause: Refusal) {
        self.0.get_or_create(&ByCause { server, cause }).inc();
    }

    /// Connections that a server refused for this cause.
    pub fn total(&self, server: &'static str, cause: Refusal) -> u64 {
        self.0.get_or_create(&ByCause { server, cause }).get()
    }

    /// Registers the counter `refused_connections`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Connections that a server refused, by cause";
        registry.register("refused_connections", help, self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::encode;

    #[test]
    fn each_cause_has_a_series_from_the_start() {
        let refusals = Refusals::default();
        refusals.add_server("broker");
        refusals.count("broker", Refusal::PendingFull);
        let mut registry = Registry::with_prefix("neptune_edge");
        refusals.register(&mut registry);
        let page = encode(&registry);
        let series = "neptune_edge_refused_connections_total{server=\"broker\",cause=";
        assert!(page.contains(&format!("{series}\"pending_full\"}} 1\n")), "{page}");
        assert_eq!(page.matches(series).count(), Refusal::ALL.len(), "{page}");
        assert!(!page.contains("EOF") && page.ends_with('\n'), "{page}");
    }
}

//! Families that are computed when the metrics are read.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
};

/// Exports a collector while this replica is the leader. The caches of a standby have every object
/// too: a sum over both replicas would count it twice.
#[derive(Debug)]
pub struct WhileLeading<C> {
    /// 1 while this replica is the leader.
    pub leads: Gauge,
    /// The collector whose metrics the leader exports.
    pub collector: C,
}

impl<C: Collector> Collector for WhileLeading<C> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if self.leads.get() == 1 { self.collector.encode(encoder) } else { Ok(()) }
    }
}

/// Reads the objects of a kind in the cluster.
pub struct Objects<T>(pub Box<dyn Fn() -> Vec<T> + Send + Sync>);

impl<T> fmt::Debug for Objects<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}

/// Encodes a gauge with these samples, unless there are none.
pub fn gauge<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes a counter with these samples, unless there are none.
pub fn counter<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Counts how often each value occurs.
pub fn counted<T: Ord>(values: impl IntoIterator<Item = T>) -> BTreeMap<T, u32> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts
}

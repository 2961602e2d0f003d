//! Detects late batches. `EventBus` reorders messages, and after a silent partition some arrive a
//! minute late: their reports on the node itself are outdated. Pure.
//!
//! | content of a late batch | processed |
//! |---|---|
//! | counters | yes: they are cumulative |
//! | an object's states | by their own (epoch, seq) |
//! | a cleared status | no: agents repeat it, and the object may exist again |
//! | a node report, a sync | only if no newer batch had one |
//! | the sign of life | no: the newer batch was one |

use std::collections::{BTreeMap, VecDeque};

use neptune_wire::{AgentInstance, Batch, NodeName};

/// Agent instances remembered per node. Only invented ones are more.
const MAX_INSTANCES: usize = 4;

/// The position of a batch among those of its instance: (epoch, seq).
pub type BatchOrder = (u64, u64);

/// The newest batches per node, instance and kind of content.
#[derive(Debug, Default)]
pub struct Orders(BTreeMap<NodeName, VecDeque<(AgentInstance, Newest)>>);

#[derive(Debug, Clone, Copy, Default)]
struct Newest {
    batch: BatchOrder,
    sync: BatchOrder,
    report: BatchOrder,
}

/// Content of which only the newest is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderKind {
    /// The batch itself, as a sign of life.
    Batch,
    /// A sync in the batch.
    Sync,
    /// A node report in the batch.
    Report,
}

impl Orders {
    /// Whether a newer one of that kind arrived before. If not, records this one as the newest.
    pub fn is_late(&mut self, node: &NodeName, batch: &Batch, kind: OrderKind) -> bool {
        let instances = self.0.entry(node.clone()).or_default();
        let position = instances.iter().position(|(instance, _)| *instance == batch.instance);
        let at = position.unwrap_or_else(|| {
            if instances.len() == MAX_INSTANCES {
                instances.pop_front();
            }
            instances.push_back((batch.instance.clone(), Newest::default()));
            instances.len() - 1
        });
        let newest = &mut instances[at].1;
        let held = match kind {
            OrderKind::Batch => &mut newest.batch,
            OrderKind::Sync => &mut newest.sync,
            OrderKind::Report => &mut newest.report,
        };
        let order = (batch.epoch, batch.seq);
        let is_late = order < *held;
        *held = order.max(*held);
        is_late
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn batch(instance: &str, epoch: u64, seq: u64) -> Batch {
        Batch {
            instance: AgentInstance(instance.to_owned()),
            epoch,
            seq,
            uptime_ms: None,
            messages: Vec::new(),
        }
    }

    #[test]
    fn message_is_late_only_after_a_newer_one_of_its_kind() {
        let (mut orders, node) = (Orders::default(), "edge0".parse().unwrap());
        let mut is_late = |epoch, seq, kind| orders.is_late(&node, &batch("a", epoch, seq), kind);
        assert!(!is_late(1, 5, OrderKind::Batch));
        assert!(!is_late(1, 5, OrderKind::Batch), "the same twice");
        assert!(is_late(1, 4, OrderKind::Batch));
        assert!(!is_late(1, 4, OrderKind::Sync), "the newer batch had none");
        assert!(is_late(1, 3, OrderKind::Sync));
        assert!(!is_late(2, 1, OrderKind::Batch), "a later start");
        assert!(is_late(1, 9, OrderKind::Batch));
        assert!(!is_late(1, 9, OrderKind::Report));
    }

    #[test]
    fn each_instance_has_its_own_order_and_few_are_remembered() {
        let (mut orders, node) = (Orders::default(), "edge0".parse().unwrap());
        assert!(!orders.is_late(&node, &batch("a", 9, 9), OrderKind::Batch));
        assert!(!orders.is_late(&node, &batch("b", 1, 1), OrderKind::Batch));
        assert!(orders.is_late(&node, &batch("a", 9, 8), OrderKind::Batch));
        for n in 0..1000 {
            assert!(!orders.is_late(&node, &batch(&n.to_string(), 1, 1), OrderKind::Batch));
        }
        assert_eq!(orders.0[&node].len(), MAX_INSTANCES);
    }
}

//! Which batches come late. `EventBus` lets messages overtake one another, and after a silent partition some
//! come a minute late: what such a batch says of the node itself is history. Pure.
//!
//! | in a batch that was overtaken | |
//! |---|---|
//! | counters | count: they are cumulative |
//! | an object's states | by their own (epoch, seq) |
//! | that an object is gone | does not count: agents say it again, and the object may be back |
//! | a node report, a sync | only if no newer batch had one |
//! | that the node is there | no: the newer batch told so already |

use std::collections::{BTreeMap, VecDeque};

use neptune_wire::{AgentInstance, Batch, NodeName};

/// Data directories remembered a node. More come from somebody who makes them up.
const INSTANCES: usize = 4;

/// The place of a batch among its instance's: epoch and seq.
pub type Order = (u64, u64);

/// The newest of each kind.
#[derive(Debug, Default)]
pub struct Orders(BTreeMap<NodeName, VecDeque<(AgentInstance, Newest)>>);

#[derive(Debug, Clone, Copy, Default)]
struct Newest {
    batch: Order,
    sync: Order,
    report: Order,
}

/// What only the newest counts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The batch itself, as a sign of life.
    Batch,
    /// A sync in it.
    Sync,
    /// A node report in it.
    Report,
}

impl Orders {
    /// Whether a newer one of that kind has come before; if not, this is the newest.
    pub fn is_late(&mut self, node: &NodeName, batch: &Batch, kind: Kind) -> bool {
        let instances = self.0.entry(node.clone()).or_default();
        let found = instances.iter().position(|(instance, _)| *instance == batch.instance);
        let at = found.unwrap_or_else(|| {
            if instances.len() == INSTANCES {
                instances.pop_front();
            }
            instances.push_back((batch.instance.clone(), Newest::default()));
            instances.len() - 1
        });
        let newest = &mut instances[at].1;
        let held = match kind {
            Kind::Batch => &mut newest.batch,
            Kind::Sync => &mut newest.sync,
            Kind::Report => &mut newest.report,
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
        Batch { instance: AgentInstance(instance.to_owned()), epoch, seq, messages: Vec::new() }
    }

    #[test]
    fn message_is_late_only_after_a_newer_one_of_its_kind() {
        let (mut orders, node) = (Orders::default(), "edge0".parse().unwrap());
        let mut is_late = |epoch, seq, kind| orders.is_late(&node, &batch("a", epoch, seq), kind);
        assert!(!is_late(1, 5, Kind::Batch));
        assert!(!is_late(1, 5, Kind::Batch), "the same twice");
        assert!(is_late(1, 4, Kind::Batch));
        assert!(!is_late(1, 4, Kind::Sync), "the newer batch had none");
        assert!(is_late(1, 3, Kind::Sync));
        assert!(!is_late(2, 1, Kind::Batch), "a later start");
        assert!(is_late(1, 9, Kind::Batch));
        assert!(!is_late(1, 9, Kind::Report));
    }

    #[test]
    fn each_instance_has_its_own_order_and_few_are_remembered() {
        let (mut orders, node) = (Orders::default(), "edge0".parse().unwrap());
        assert!(!orders.is_late(&node, &batch("a", 9, 9), Kind::Batch));
        assert!(!orders.is_late(&node, &batch("b", 1, 1), Kind::Batch));
        assert!(orders.is_late(&node, &batch("a", 9, 8), Kind::Batch));
        for n in 0..1000 {
            assert!(!orders.is_late(&node, &batch(&n.to_string(), 1, 1), Kind::Batch));
        }
        assert_eq!(orders.0[&node].len(), INSTANCES);
    }
}

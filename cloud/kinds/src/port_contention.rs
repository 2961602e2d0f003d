//! The ports that an object may have, and the keys of the objects that wait for one.

use std::collections::BTreeSet;

use crate::{index_key::IndexKey, worker::ports};

/// The ports that an object may have on its nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OccupiedPorts {
    /// The nodes of its server or gateway.
    pub nodes: BTreeSet<String>,
    /// The ports of its server or gateway.
    pub ports: BTreeSet<u16>,
    /// The node of its cloud worker, which may have any port of the range.
    pub of_cloud_worker: BTreeSet<String>,
}

/// The key of an object that waits for this port.
pub fn awaits(port: u16) -> IndexKey {
    IndexKey::AwaitsPort((!ports::may_be_of_cloud_worker(port)).then_some(port))
}

impl OccupiedPorts {
    /// Adds the nodes and ports of `others` to these.
    #[must_use]
    pub fn and(mut self, mut others: Self) -> Self {
        self.nodes.append(&mut others.nodes);
        self.ports.append(&mut others.ports);
        self.of_cloud_worker.append(&mut others.of_cloud_worker);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_range_of_cloud_workers_is_awaited_by_its_range() {
        assert_eq!(awaits(8080), IndexKey::AwaitsPort(Some(8080)));
        assert_eq!(awaits(20_000), IndexKey::AwaitsPort(None));
        assert_eq!(awaits(29_999), awaits(20_000));
    }
}

//! Stores which node the data directory belongs to, and to which nodes it belonged before: their
//! containers are still those of this data directory.

use std::collections::BTreeSet;

use neptune_wire::NodeName;
use rusqlite::OptionalExtension as _;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Store;
use crate::Error;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    node: NodeName,
    /// The inode of the database: a copied directory has another one.
    inode: u64,
    former: BTreeSet<NodeName>,
}

impl Store {
    /// Makes this node the owner of the data directory. Returns the nodes that owned it before,
    /// unless it is a copy: then the agent of the original may run on this machine.
    ///
    /// # Errors
    /// The stored owner cannot be read.
    pub fn set_owner(&mut self, node: &NodeName) -> Result<BTreeSet<NodeName>, Error> {
        let stored = self
            .connection
            .query_row("SELECT value FROM meta WHERE name = 'owner'", [], |row| {
                row.get::<_, String>(0)
            })
            .optional()?;
        let stored: Option<Owner> = stored.and_then(|text| serde_json::from_str(&text).ok());
        let inode = self.opened.map_or(0, |file| file.inode);
        if let Some(owner) = &stored
            && owner.inode != inode
            && owner.node != *node
        {
            let (before, dir) = (&owner.node, self.dir.display());
            warn!(%before, "data directory {dir} is a copy; containers of node {before} are left alone (docker ps --filter label=io.neptune.node={before})");
        }
        let owner = next_owner(stored, node, inode);
        let text = serde_json::to_string(&owner).expect("an owner has text keys");
        // Without space the next start stores it. The store logs the problem.
        let _ = self.durable(|tx| {
            tx.execute("INSERT OR REPLACE INTO meta VALUES ('owner', ?1)", [&text]).map(drop)
        });
        Ok(owner.former)
    }
}

fn next_owner(stored: Option<Owner>, node: &NodeName, inode: u64) -> Owner {
    let mut former = BTreeSet::new();
    if let Some(stored) = stored.filter(|stored| stored.inode == inode) {
        former = stored.former;
        former.insert(stored.node);
        former.remove(node);
    }
    Owner { node: node.clone(), inode, former }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn former_nodes_are_those_of_this_directory_only() {
        let node = |name: &str| name.parse::<NodeName>().unwrap();
        let first = next_owner(None, &node("a"), 1);
        assert_eq!(first.former, BTreeSet::new());
        let second = next_owner(Some(first.clone()), &node("b"), 1);
        assert_eq!(second.former, [node("a")].into());
        let third = next_owner(Some(second.clone()), &node("c"), 1);
        assert_eq!(third.former, [node("a"), node("b")].into());
        let back = next_owner(Some(second), &node("a"), 1);
        assert_eq!(back.former, [node("b")].into());
        let copied = next_owner(Some(first), &node("b"), 2);
        assert_eq!(copied.former, BTreeSet::new(), "the original may be in use");
    }
}

//! Decides the findings on the data directory, its disk, and what the running agent reports. Pure.

use neptune_wire::{NodeProblem, NodeProblemReason};

use crate::commands::doctor::{
    facts::{
        Checked, DataDirFacts, DataState, DatabaseState, DiskFacts, LocalBrokerAnswer,
        LocalBrokerFacts,
    },
    report::Finding,
};

/// The data directory and its database.
pub fn data(data: &DataDirFacts, user: u32, local: &LocalBrokerFacts) -> Finding {
    const CHECK: &str = "data directory";
    let path = data.path.display();
    if is_lost(data, local) {
        return Finding::error(
            CHECK,
            format!(
                "{path} has no database that an agent uses, but {} is in use: its directory was probably deleted while the agent runs",
                local.url
            ),
            "restart the agent (systemctl restart neptune-edge), which then counts as a new instance; workers keep running",
        );
    }
    let (owner, can_write, is_in_use, database) = match &data.state {
        Err(why) => {
            return Finding::error(
                CHECK,
                format!("{path}: {why}"),
                "check its disk, or set another --data-dir",
            );
        }
        Ok(DataState::Absent { can_create: Ok(()) }) => {
            return Finding::ok(CHECK, format!("{path} does not exist yet; the agent creates it"));
        }
        Ok(DataState::Absent { can_create: Err(why) }) => {
            return Finding::error(
                CHECK,
                format!("{path} does not exist, and user {user} cannot create it: {why}"),
                format!("create it for the agent's user: install -d -o USER {path}"),
            );
        }
        Ok(DataState::Present { owner, can_write, is_in_use, database }) => {
            (*owner, can_write, *is_in_use, database)
        }
    };
    if let Err(why) = can_write {
        return Finding::error(
            CHECK,
            format!("user {user} cannot write to {path}: {why}"),
            format!(
                "make the agent's user its owner (chown -R USER {path}), or mount its file system writable"
            ),
        );
    }
    let content = match database {
        DatabaseState::Invalid(why) => {
            return Finding::error(
                CHECK,
                why,
                "move it away and start the agent again; docs/operations.md, \"The data directory of a node\", lists what is lost",
            );
        }
        DatabaseState::Absent => "no database yet".to_owned(),
        DatabaseState::Valid { objects: 1, .. } => "1 object stored".to_owned(),
        DatabaseState::Valid { objects, .. } => format!("{objects} objects stored"),
    };
    let agent = if is_in_use { "in use by an agent" } else { "not in use by an agent" };
    let seen = format!("{path}: {content}; {agent}");
    if owner != user {
        return Finding::warning(
            CHECK,
            format!("{seen}; its owner is user {owner}, but the doctor runs as user {user}"),
            "run the doctor as the agent's user; another user has other permissions",
        );
    }
    Finding::ok(CHECK, seen)
}

/// What the running agent reports about the node, with what to look for in addition to its remedy.
pub fn agent(data: &DataDirFacts) -> Vec<Finding> {
    let Ok(DataState::Present {
        is_in_use: true,
        database: DatabaseState::Valid { problems, .. },
        ..
    }) = &data.state
    else {
        return Vec::new();
    };
    let finding = |NodeProblem { reason, message }: &NodeProblem| {
        let help = match reason {
            NodeProblemReason::NodeNameInUse => {
                "find the other agent: the broker's log has the address of each client; on this machine look for a second service, a Pod of the DaemonSet (docker ps), or a copy of the data directory"
            }
            _ => "the log of the agent has the time of the problem (journalctl -u neptune-edge)",
        };
        Finding::error("agent", message, help)
    };
    problems.iter().map(finding).collect()
}

/// Whether an agent seems to run whose data directory was deleted.
fn is_lost(data: &DataDirFacts, local: &LocalBrokerFacts) -> bool {
    let is_absent = match &data.state {
        Ok(DataState::Absent { can_create: Ok(()) }) => true,
        Ok(DataState::Present { can_write: Ok(()), is_in_use, database, .. }) => {
            !is_in_use && matches!(database, DatabaseState::Absent)
        }
        _ => false,
    };
    is_absent && matches!(local.answer, LocalBrokerAnswer::Free(false))
}

/// The space on its file system.
pub fn disk(disk: &Checked<DiskFacts>) -> Finding {
    const CHECK: &str = "disk";
    match disk {
        Err(why) => Finding::error(CHECK, why, "check the disk of the data directory"),
        Ok(DiskFacts { free, size, reserve }) => {
            let seen = format!("{} of {} free", bytes(*free), bytes(*size));
            if free < reserve {
                Finding::error(
                    CHECK,
                    format!("{seen}; models are not downloaded below {}", bytes(*reserve)),
                    "free disk space (docker system df, du -sh /var/lib/*), or lower --model-reserve-bytes",
                )
            } else if *free / 2 < *reserve {
                Finding::warning(
                    CHECK,
                    format!("{seen}; models are not downloaded below {}", bytes(*reserve)),
                    "free disk space before the next large model is downloaded",
                )
            } else {
                Finding::ok(CHECK, seen)
            }
        }
    }
}

/// The key with which the node connects to aggregators.
pub fn node_key(pin: &Checked<Option<String>>) -> Finding {
    const CHECK: &str = "node key";
    match pin {
        Ok(Some(pin)) => Finding::ok(CHECK, pin),
        Ok(None) => Finding::ok(CHECK, "no key yet; the agent creates it"),
        Err(why) => Finding::error(
            CHECK,
            why,
            "make it readable for the agent's user; a damaged key may be removed: the agent creates another one, which the controller accepts",
        ),
    }
}

/// A number of bytes for people: three digits are enough.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

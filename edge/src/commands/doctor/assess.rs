//! Decides the finding of each check and its remedy. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use neptune_wire::{NodeProblem, NodeProblemReason};

use crate::commands::doctor::{
    cloud_workers::cloud_workers,
    facts::{
        CertificateFile, Checked, CloudLinkFacts, DataDirFacts, DataState, DatabaseState,
        DiskFacts, DoctorFacts, EngineFacts, LocalBrokerAccess, LocalBrokerAnswer,
        LocalBrokerFacts,
    },
    report::Finding,
};

/// Remaining validity below which a certificate is a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// A file that is newer than now by more than this was written before the clock was set back.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);
/// A clock before this time (2024-01-01) was never set.
const EARLIEST_TIME: Timestamp = Timestamp::constant(1_704_067_200, 0);

/// One finding per check, in the order in which problems should be solved.
pub fn assess(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok("settings", format!("node {}, user id {}", facts.node, facts.user)),
        clock(facts),
        data(&facts.data, facts.user, &facts.local),
        disk(&facts.disk),
        engine(&facts.engine),
        local(&facts.local),
    ];
    findings.extend(agent(&facts.data));
    findings.extend(facts.certificates.iter().map(|file| certificates(file, facts.now)));
    findings.push(cloud(&facts.cloud));
    findings.extend(cloud_workers(&facts.cloud_workers, &facts.edge_mesh, &facts.name_servers));
    findings
}

fn clock(facts: &DoctorFacts) -> Finding {
    const CHECK: &str = "clock";
    let now = facts.now;
    if now < EARLIEST_TIME {
        return Finding::error(
            CHECK,
            format!("the clock is at {now:.0}: it was never set"),
            "set the clock (timedatectl set-time) and enable NTP (timedatectl set-ntp true); certificates are not valid with a wrong clock",
        );
    }
    if let DataDirFacts {
        state:
            Ok(DataState::Present { database: DatabaseState::Valid { written: Some(at), .. }, .. }),
        ..
    } = &facts.data
        && *at > after(now, CLOCK_TOLERANCE)
    {
        return Finding::warning(
            CHECK,
            format!("the clock is at {now:.0}, but the agent's database was written at {at:.0}"),
            "the clock was set back; enable NTP (timedatectl set-ntp true)",
        );
    }
    match facts.is_synchronized {
        Some(true) => Finding::ok(CHECK, format!("{now:.0}, synchronized")),
        Some(false) => Finding::warning(
            CHECK,
            format!("{now:.0}, not synchronized"),
            "enable NTP (timedatectl set-ntp true), or make its NTP server reachable from the node",
        ),
        None => {
            Finding::ok(CHECK, format!("{now:.0}; cannot determine whether it is synchronized"))
        }
    }
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    now.saturating_add(time).unwrap_or(Timestamp::MAX)
}

fn data(data: &DataDirFacts, user: u32, local: &LocalBrokerFacts) -> Finding {
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
fn agent(data: &DataDirFacts) -> Vec<Finding> {
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

fn disk(disk: &Checked<DiskFacts>) -> Finding {
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

/// Three digits are enough.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn engine(EngineFacts { socket, version }: &EngineFacts) -> Finding {
    const CHECK: &str = "engine";
    let socket = socket.display();
    match version {
        Ok(version) => Finding::ok(CHECK, format!("{version} on {socket}")),
        Err(why) => Finding::error(
            CHECK,
            why,
            "start it (systemctl start docker, or podman.socket), add the agent's user to the socket's group, or set --docker-host to the socket",
        ),
    }
}

fn local(LocalBrokerFacts { url, access, answer }: &LocalBrokerFacts) -> Finding {
    const CHECK: &str = "local broker";
    match answer {
        LocalBrokerAnswer::Connected(Ok(())) => match access {
            LocalBrokerAccess::LoginPerWorker => Finding::ok(CHECK, format!("{url} answers")),
            LocalBrokerAccess::Anonymous => Finding::warning(
                CHECK,
                format!("{url} answers; any process on the node can report for any worker"),
                "use the user and password of MQTT_URL in every worker, then remove --allow-anonymous-workers",
            ),
            LocalBrokerAccess::Shared => Finding::ok(
                CHECK,
                format!(
                    "{url} answers; its own rules decide who can report for a worker, because all workers get this URL"
                ),
            ),
        },
        LocalBrokerAnswer::Connected(Err(why)) => Finding::error(
            CHECK,
            format!("{url}: {why}"),
            "start the node's broker, or correct --local-broker (embedded needs no other broker)",
        ),
        LocalBrokerAnswer::Free(true) => {
            Finding::ok(CHECK, format!("{url} is free for the agent's embedded broker"))
        }
        LocalBrokerAnswer::Free(false) => Finding::error(
            CHECK,
            format!("{url} is in use by another process; the agent's embedded broker needs it"),
            "set another --local-listen, or use that process as --local-broker if it is a broker (ss -ltnp shows it)",
        ),
    }
}

fn cloud(CloudLinkFacts { url, filter, is_by_event_bus, answer }: &CloudLinkFacts) -> Finding {
    const CHECK: &str = "cloud link";
    match answer {
        Ok(()) if *is_by_event_bus => Finding::ok(
            CHECK,
            format!(
                "{url} answers; {filter} is readable. EventBus is part of edgecore: kubectl get node shows whether the node is Ready"
            ),
        ),
        Ok(()) => Finding::ok(CHECK, format!("{url} answers; {filter} is readable")),
        Err(why) => Finding::error(
            CHECK,
            format!("{url}: {why}"),
            "check that the node reaches the address and port, that user, password and certificates are correct, and that the broker's ACL lets the node read its topics; workers keep running",
        ),
    }
}

fn certificates(file: &CertificateFile, now: Timestamp) -> Finding {
    const CHECK: &str = "certificates";
    let path = file.path.display();
    let found = match &file.certificates {
        Ok(found) => found,
        Err(why) => {
            return Finding::error(
                CHECK,
                format!("{} {path}: {why}", file.flag),
                "create the PEM file, readable for the agent's user",
            );
        }
    };
    // One valid certificate of a bundle is enough: assess the one that is valid for longest.
    let Some(best) =
        found.iter().filter(|one| one.not_before <= now).max_by_key(|one| one.not_after)
    else {
        return match found.first() {
            None => Finding::error(
                CHECK,
                format!("{} {path} contains no PEM certificate", file.flag),
                "add one; it starts with -----BEGIN CERTIFICATE-----",
            ),
            Some(one) => Finding::error(
                CHECK,
                format!("{path}: {} is not valid before {:.0}", one.subject, one.not_before),
                "correct the node's clock if it is wrong; else wait, or install another certificate",
            ),
        };
    };
    let seen = match found.as_slice() {
        [_] => format!("{path}: {}", best.subject),
        _ => format!(
            "{path}: {} certificates; the last one to expire, {},",
            found.len(),
            best.subject
        ),
    };
    if best.not_after <= now {
        Finding::error(
            CHECK,
            format!("{seen} expired at {:.0}", best.not_after),
            "install a new one",
        )
    } else if best.not_after <= after(now, EXPIRES_SOON) {
        Finding::warning(
            CHECK,
            format!("{seen} expires at {:.0}", best.not_after),
            "install a new one before",
        )
    } else {
        Finding::ok(CHECK, format!("{seen} is valid until {:.0}", best.not_after))
    }
}

//! Decides what each fact means, and the remedy. Pure.

use std::{net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::commands::doctor::{
    facts::{
        CertificateFile, Checked, CloudLinkFacts, DataDirFacts, DataState, Database, DiskFacts,
        DoctorFacts, EngineFacts, HostLookup, LocalBrokerAnswer, LocalBrokerFacts,
    },
    report::Finding,
};

/// Certificates that end sooner are warned of.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// A file that was written so far in the future was written by a clock that has gone back since.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// No clock that was ever set is before 2024.
const NEVER_SET: Timestamp = Timestamp::constant(1_704_067_200, 0);

/// One finding a check, in the order in which one would put things right.
pub fn assess(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings = vec![
        Finding::ok("settings", format!("node {}, user id {}", facts.node, facts.user)),
        clock(facts),
        data(&facts.data, facts.user),
        disk(&facts.disk),
        engine(&facts.engine),
        local(&facts.local),
    ];
    findings.extend(facts.certificates.iter().map(|file| certificates(file, facts.now)));
    findings.push(cloud(&facts.cloud));
    findings.extend(names(&facts.names, &facts.name_servers));
    findings
}

fn clock(facts: &DoctorFacts) -> Finding {
    const CHECK: &str = "clock";
    let now = facts.now;
    if now < NEVER_SET {
        return Finding::error(
            CHECK,
            format!("it says {now:.0}: it was never set"),
            "set it (timedatectl set-time) and let NTP keep it (timedatectl set-ntp true): to a wrong clock no certificate is valid",
        );
    }
    if let DataDirFacts {
        state: Ok(DataState::Present { database: Database::Whole { written: Some(at), .. }, .. }),
        ..
    } = &facts.data
        && *at > after(now, CLOCK_SKEW)
    {
        return Finding::warning(
            CHECK,
            format!("it says {now:.0}, and the agent's database was written at {at:.0}"),
            "the clock has gone back since: let NTP keep it (timedatectl set-ntp true)",
        );
    }
    match facts.is_synchronized {
        Some(true) => Finding::ok(CHECK, format!("{now:.0}, synchronised")),
        Some(false) => Finding::warning(
            CHECK,
            format!("{now:.0}, not synchronised"),
            "let NTP keep it (timedatectl set-ntp true), or see that the node reaches its NTP server",
        ),
        None => {
            Finding::ok(CHECK, format!("{now:.0}; nothing here tells whether it is synchronised"))
        }
    }
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    now.saturating_add(time).unwrap_or(Timestamp::MAX)
}

fn data(data: &DataDirFacts, user: u32) -> Finding {
    const CHECK: &str = "data directory";
    let path = data.path.display();
    let (owner, written, is_in_use, database) = match &data.state {
        Err(why) => {
            return Finding::error(
                CHECK,
                format!("{path}: {why}"),
                "see that its disk answers, or give another --data-dir",
            );
        }
        Ok(DataState::Absent { can_be_made: Ok(()) }) => {
            return Finding::ok(CHECK, format!("{path} is not there yet; the agent makes it"));
        }
        Ok(DataState::Absent { can_be_made: Err(why) }) => {
            return Finding::error(
                CHECK,
                format!("{path} is not there, and user {user} cannot make it: {why}"),
                format!("make it and give it to the agent's user: install -d -o USER {path}"),
            );
        }
        Ok(DataState::Present { owner, written, is_in_use, database }) => {
            (*owner, written, *is_in_use, database)
        }
    };
    if let Err(why) = written {
        return Finding::error(
            CHECK,
            format!("user {user} cannot write to {path}: {why}"),
            format!(
                "give it to the agent's user (chown -R USER {path}), or see that its disk takes writes"
            ),
        );
    }
    let holds = match database {
        Database::Unusable(why) => {
            return Finding::error(
                CHECK,
                why,
                "docs/operations.md, \"The data directory of a node\", tells what is lost when it begins anew",
            );
        }
        Database::Absent => "no database yet".to_owned(),
        Database::Whole { objects: 1, .. } => "1 object stored".to_owned(),
        Database::Whole { objects, .. } => format!("{objects} objects stored"),
    };
    let agent = if is_in_use { "an agent runs on it" } else { "no agent runs on it" };
    let seen = format!("{path}: {holds}; {agent}");
    if owner != user {
        return Finding::warning(
            CHECK,
            format!("{seen}; it belongs to user {owner}, and user {user} looks"),
            "run the doctor as the agent's user: what another may do says little of what the agent may",
        );
    }
    Finding::ok(CHECK, seen)
}

fn disk(disk: &Checked<DiskFacts>) -> Finding {
    const CHECK: &str = "disk";
    match disk {
        Err(why) => Finding::error(CHECK, why, "see that the data directory's disk answers"),
        Ok(DiskFacts { free, size, reserve }) => {
            let seen = format!("{} of {} free", bytes(*free), bytes(*size));
            if free < reserve {
                Finding::error(
                    CHECK,
                    format!("{seen}; models are not downloaded below {}", bytes(*reserve)),
                    "free some (docker system df, du -sh /var/lib/*), or lower --model-reserve-bytes",
                )
            } else if *free / 2 < *reserve {
                Finding::warning(
                    CHECK,
                    format!("{seen}; models are not downloaded below {}", bytes(*reserve)),
                    "free some before the next large model comes",
                )
            } else {
                Finding::ok(CHECK, seen)
            }
        }
    }
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
            "start it (systemctl start docker, or podman.socket), put the agent's user into the socket's group, or name the socket with --docker-host",
        ),
    }
}

fn local(LocalBrokerFacts { url, answer }: &LocalBrokerFacts) -> Finding {
    const CHECK: &str = "local broker";
    match answer {
        LocalBrokerAnswer::Probed(Ok(())) => Finding::ok(CHECK, format!("{url} answers")),
        LocalBrokerAnswer::Probed(Err(why)) => Finding::error(
            CHECK,
            format!("{url}: {why}"),
            "start the node's broker, or correct --local-broker (embedded needs none)",
        ),
        LocalBrokerAnswer::PortFree(true) => {
            Finding::ok(CHECK, format!("{url} is free; the agent brings its own"))
        }
        LocalBrokerAnswer::PortFree(false) => Finding::error(
            CHECK,
            format!("{url} is taken by something else, and the agent would embed its broker there"),
            "give another --local-listen, or use what is there with --local-broker (ss -ltnp tells what it is)",
        ),
    }
}

fn cloud(CloudLinkFacts { url, filter, is_by_event_bus, answer }: &CloudLinkFacts) -> Finding {
    const CHECK: &str = "cloud link";
    match answer {
        Ok(()) if *is_by_event_bus => Finding::ok(
            CHECK,
            format!(
                "{url} answers; {filter} may be read. EventBus beyond it is edgecore's: kubectl get node tells whether that is Ready"
            ),
        ),
        Ok(()) => Finding::ok(CHECK, format!("{url} answers; {filter} may be read")),
        Err(why) => Finding::error(
            CHECK,
            format!("{url}: {why}"),
            "see that the node reaches that address and port, that user, password and certificates are the broker's, and that its rules let this node read its topics. The workers go on meanwhile",
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
                "put the PEM file there, readable for the agent's user",
            );
        }
    };
    // Of a bundle, one that is good for longest is enough.
    let Some(best) = found.iter().filter(|one| one.from <= now).max_by_key(|one| one.to) else {
        return match found.first() {
            None => Finding::error(
                CHECK,
                format!("{} {path} has no PEM certificate", file.flag),
                "put one there: it begins with -----BEGIN CERTIFICATE-----",
            ),
            Some(one) => Finding::error(
                CHECK,
                format!("{path}: {} is valid only from {:.0} on", one.subject, one.from),
                "correct the node's clock, if that is wrong; else wait, or get another certificate",
            ),
        };
    };
    let seen = match found.as_slice() {
        [_] => format!("{path}: {}", best.subject),
        _ => format!("{path}: {} certificates, the longest {}", found.len(), best.subject),
    };
    if best.to <= now {
        Finding::error(CHECK, format!("{seen} expired at {:.0}", best.to), "put a new one there")
    } else if best.to <= after(now, SOON) {
        Finding::warning(
            CHECK,
            format!("{seen} expires at {:.0}", best.to),
            "put a new one there before",
        )
    } else {
        Finding::ok(CHECK, format!("{seen} is valid until {:.0}", best.to))
    }
}

fn names(names: &[HostLookup], servers: &[IpAddr]) -> Vec<Finding> {
    const CHECK: &str = "cloud workers";
    if names.is_empty() {
        return vec![Finding::ok(CHECK, "no stored worker names one")];
    }
    let finding = |HostLookup { host, referenced_by, addresses }: &HostLookup| match addresses {
        Ok(addresses) => {
            let listed_addresses = listed(addresses);
            let seen = if listed_addresses == *host { "needs no DNS" } else { &listed_addresses };
            Finding::ok(CHECK, format!("{host} ({referenced_by}): {seen}"))
        }
        Err(why) if !servers.is_empty() => Finding::warning(
            CHECK,
            format!("{host} ({referenced_by}): this machine's resolver says: {why}"),
            format!(
                "containers ask {} in its place (--dns): see that it knows the name",
                listed(servers)
            ),
        ),
        Err(why) => Finding::error(
            CHECK,
            format!("{host} ({referenced_by}): {why}"),
            "hard examples do not reach the cloud worker: let the node's resolver know the name, or name one that does with --dns (EdgeMesh's is 169.254.96.16), or run the cloud worker on a node with neptune.io/runtime=agent",
        ),
    };
    names.iter().map(finding).collect()
}

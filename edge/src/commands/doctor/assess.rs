//! Decides the finding of each check and its remedy. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use neptune_agent_core::domain::peer_settings::WITHHELD;

use crate::commands::doctor::{
    cloud_workers::cloud_workers,
    data_directory::{agent, data, disk, node_key},
    devices::devices,
    engine::{engine, network, registries},
    facts::{
        CertificateFile, CloudLinkFacts, DataDirFacts, DataState, DatabaseState, DoctorFacts,
        DownloadFacts, LocalBrokerAccess, LocalBrokerAnswer, LocalBrokerFacts, PeerListenFacts,
    },
    report::Finding,
    runtime_files::{runtime_dir_finding, seal_key_finding},
    secrets::secrets,
    volumes::volumes,
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
        node_key(&facts.key_pin),
        seal_key_finding(&facts.seal_key),
        runtime_dir_finding(&facts.runtime_dir),
        engine(&facts.engine),
    ];
    findings.extend(facts.registries.iter().map(registries));
    findings.extend(facts.network.iter().map(network));
    findings.extend(facts.devices.iter().flat_map(devices));
    findings.extend(facts.volumes.iter().map(volumes));
    findings.push(local(&facts.local));
    findings.extend(facts.withholds_models.then(model_sharing));
    findings.extend(facts.peers.iter().map(|it| peers(it, &facts.data)));
    findings.extend(downloads(&facts.downloads));
    findings.extend(agent(&facts.data));
    findings.extend(facts.certificates.iter().map(|file| certificates(file, facts.now)));
    // A doctor of root may check an agent of another user, which owns its data.
    let agent = match &facts.data.state {
        Ok(DataState::Present { owner, .. }) if facts.user == 0 => *owner,
        _ => facts.user,
    };
    findings.extend(secrets(&facts.secrets, facts.user, agent));
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

/// Names the settings of downloads; `None` without any.
fn downloads(DownloadFacts { proxy, window }: &DownloadFacts) -> Option<Finding> {
    let proxy = proxy.as_ref();
    let proxy = proxy.map(|it| format!("through proxy {it}, except the hosts of --no-proxy"));
    let window = window.as_ref();
    let window = window.map(|(hours, now)| format!("updates at {hours}; it is {now} now"));
    let seen: Vec<_> = proxy.into_iter().chain(window).collect();
    (!seen.is_empty()).then(|| Finding::ok("downloads", seen.join("; ")))
}

fn model_sharing() -> Finding {
    let remedy = "use --model-sharing node to share them; omit --peers if the node has no copies of Datasets";
    Finding::warning("model sharing", WITHHELD, remedy)
}

fn peers(PeerListenFacts { listen, state }: &PeerListenFacts, data: &DataDirFacts) -> Finding {
    const CHECK: &str = "peers";
    let is_running = matches!(&data.state, Ok(DataState::Present { is_in_use: true, .. }));
    match (state, is_running) {
        (Ok(true), true) => Finding::ok(CHECK, format!("{listen} accepts connections")),
        (Ok(false), false) => Finding::ok(CHECK, format!("{listen} is free for the agent")),
        (Ok(false), true) => Finding::warning(
            CHECK,
            format!("the agent does not listen on {listen} yet"),
            "run doctor again in some seconds; restart the agent if --peers-listen was changed",
        ),
        (Ok(true), false) => Finding::error(
            CHECK,
            format!("{listen} is in use by another process"),
            "free the port, or use another with --peers-listen",
        ),
        (Err(why), _) => Finding::error(
            CHECK,
            format!("other nodes cannot fetch from {listen}: {why}"),
            "use an address of this node in the network of its zone with --peers-listen",
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
    let certificates = match &file.certificates {
        Ok(certificates) => certificates,
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
        certificates.iter().filter(|one| one.not_before <= now).max_by_key(|one| one.not_after)
    else {
        return match certificates.first() {
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
    let seen = match certificates.as_slice() {
        [_] => format!("{path}: {}", best.subject),
        _ => format!(
            "{path}: {} certificates; the last one to expire, {},",
            certificates.len(),
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

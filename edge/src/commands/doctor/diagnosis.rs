//! Decides why a call through `EdgeMesh` failed, from what the probes saw. Pure. The table of
//! docs/kubeedge.md, measured with a real `EdgeMesh`, is the source.

use std::{net::IpAddr, time::Duration};

use crate::commands::doctor::facts::{CallError, NameAnswer};

/// Below this, `EdgeMesh` closes a connection because it has no endpoint.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Time from which on a closed connection is no single refused one: `EdgeMesh` gives that up after
/// 3.8 s.
const LATE: Duration = Duration::from_secs(8);

/// What the probes of a failed call to a Service saw.
#[derive(Debug, Clone)]
pub struct Observation<'a> {
    /// The address that was called.
    pub called: IpAddr,
    pub error: &'a CallError,
    pub took: Duration,
    /// Whether this machine has `edgemesh0`.
    pub has_interface: bool,
    /// Whether this machine has a route to the address.
    pub has_route: bool,
    /// What the name server of `EdgeMesh` answers at all.
    pub server: &'a NameAnswer,
    /// What it answers for the host; `None` if it was not asked.
    pub name: Option<&'a NameAnswer>,
}

/// A cause of a failed call, with its remedy as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    AgentDied,
    AgentAbsent,
    AgentStarting,
    AgentWithoutApi,
    AgentHangs,
    NoRoute,
    StaleEntry,
    ServiceGone,
    ServiceChanged,
    NotProxied,
    NoEndpoints,
    WorkerRefuses,
    WorkerHangs,
    AgentThere,
    Tunnel,
    WrongAnswer,
}

impl Cause {
    pub const fn text(self) -> &'static str {
        match self {
            Self::AgentDied => {
                "edgemesh-agent died on this node and its rules remain: restart edgemesh-agent (kubectl -n kubeedge get pods -o wide)"
            }
            Self::AgentAbsent => "start edgemesh-agent on this node: it does not run",
            Self::AgentStarting => {
                "edgemesh-agent started without its relay node: wait 70 s, and open TCP 20006 to the nodes in relayNodes"
            }
            Self::AgentWithoutApi => {
                "edgemesh-agent waits for the Kubernetes API: check its log, and edgecore's metaServer"
            }
            Self::AgentHangs => "edgemesh-agent hangs on this node: restart it",
            Self::NoRoute => "add a default route, or ip route add <service CIDR> dev edgemesh0",
            Self::StaleEntry => {
                "the host entry is an earlier address of the Service: see the check \"cloud link\", over which the controller sends the new one. EdgeMesh keeps its answers for 30 s: if the Service was created again just now, run the doctor again"
            }
            Self::ServiceGone => {
                "the Service does not exist any more: see the check \"cloud link\", over which the controller sends the new address"
            }
            Self::ServiceChanged => {
                "the Service was deleted or created again in the last 30 s, for which EdgeMesh keeps its answers: run the doctor again"
            }
            Self::NotProxied => {
                "EdgeMesh has no rule for the Service: remove the label service.edgemesh.kubeedge.io/service-proxy-name from it"
            }
            Self::NoEndpoints => {
                "the Service has no Endpoints: check that the cloud worker's Pod is ready and that the port names are equal (kubectl get endpoints)"
            }
            Self::WorkerRefuses => {
                "the cloud worker refuses connections: check that it runs (kubectl neptune status)"
            }
            Self::WorkerHangs => {
                "the cloud worker does not answer, or refuses while calls queue: check that it runs, and its log"
            }
            Self::AgentThere => {
                "edgemesh-agent on the cloud worker's node does not run or hangs: check it"
            }
            Self::Tunnel => {
                "the tunnel to that node is down: list the node in relayNodes, and open TCP 20006 to it"
            }
            Self::WrongAnswer => {
                "check the cloud worker's log, and that its port has the protocol of the service"
            }
        }
    }
}

/// The possible causes, the most likely first. Never empty.
pub fn causes(seen: &Observation<'_>) -> Vec<Cause> {
    use Cause::{
        AgentAbsent, AgentDied, AgentHangs, AgentStarting, AgentThere, AgentWithoutApi,
        NoEndpoints, NoRoute, NotProxied, ServiceChanged, Tunnel, WorkerHangs, WorkerRefuses,
        WrongAnswer,
    };
    let is_there = seen.server.is_answer();
    if !seen.has_route {
        return vec![NoRoute];
    }
    if !seen.has_interface {
        return vec![AgentAbsent, AgentStarting];
    }
    if *seen.server == NameAnswer::Silent {
        return vec![AgentHangs];
    }
    if let Some(cause) = entry_problem(seen.called, seen.name) {
        return vec![cause];
    }
    match seen.error {
        CallError::Refused if is_there => vec![AgentStarting, AgentDied],
        CallError::Refused => vec![AgentDied, AgentStarting],
        CallError::ConnectTimeout | CallError::NoRoute => match seen.server {
            NameAnswer::Failed(_) => vec![AgentWithoutApi],
            _ if is_there => vec![NotProxied, ServiceChanged, AgentWithoutApi],
            _ => vec![AgentAbsent, AgentStarting],
        },
        CallError::Closed if seen.took < AT_ONCE => vec![NoEndpoints],
        CallError::Closed if seen.took < LATE => vec![WorkerRefuses, AgentThere, Tunnel],
        CallError::Closed => vec![AgentThere, Tunnel, WorkerRefuses],
        CallError::Silent => vec![WorkerHangs, AgentThere, Tunnel],
        CallError::NotHttp | CallError::NotGrpc | CallError::Tls(_) | CallError::Other(_) => {
            vec![WrongAnswer]
        }
    }
}

/// What is wrong with a host entry: the name server knows another address, or no such Service.
pub fn entry_problem(entry: IpAddr, name: Option<&NameAnswer>) -> Option<Cause> {
    match name {
        Some(NameAnswer::Addresses(now)) if !now.contains(&entry) => Some(Cause::StaleEntry),
        Some(NameAnswer::Unknown) => Some(Cause::ServiceGone),
        _ => None,
    }
}

/// The causes as one text, numbered if there are several.
pub fn listed(causes: &[Cause]) -> String {
    if let [cause] = causes {
        return cause.text().to_owned();
    }
    let numbered = causes.iter().zip(1..).map(|(cause, at)| format!("({at}) {}", cause.text()));
    format!("most likely first: {}", numbered.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 7));

    /// An answer, the seconds until the call ended, and how it ended.
    fn first(server: &NameAnswer, name: &NameAnswer, error: &CallError, took: u64) -> Vec<Cause> {
        causes(&Observation {
            called: ENTRY,
            error,
            took: Duration::from_millis(took),
            has_interface: true,
            has_route: true,
            server,
            name: Some(name),
        })
    }

    #[test]
    fn each_state_of_edgemesh_has_its_cause() {
        use CallError as E;
        use Cause as C;
        let there = NameAnswer::Addresses(vec![[10, 96, 0, 1].into()]);
        let same = NameAnswer::Addresses(vec![ENTRY]);
        let other = NameAnswer::Addresses(vec![[10, 96, 0, 8].into()]);
        let (refused, silent) = (NameAnswer::Refused, NameAnswer::Silent);
        let remote = vec![C::AgentThere, C::Tunnel, C::WorkerRefuses];
        let refusing = vec![C::WorkerRefuses, C::AgentThere, C::Tunnel];
        let hanging = vec![C::WorkerHangs, C::AgentThere, C::Tunnel];
        let unproxied = vec![C::NotProxied, C::ServiceChanged, C::AgentWithoutApi];
        for (state, server, name, error, took, expected) in [
            (
                "agent killed here",
                &refused,
                &refused,
                E::Refused,
                1,
                vec![C::AgentDied, C::AgentStarting],
            ),
            (
                "agent stopped here",
                &refused,
                &refused,
                E::ConnectTimeout,
                3000,
                vec![C::AgentAbsent, C::AgentStarting],
            ),
            (
                "stopped, router answers",
                &refused,
                &refused,
                E::NoRoute,
                1,
                vec![C::AgentAbsent, C::AgentStarting],
            ),
            ("agent hangs here", &silent, &silent, E::Silent, 9000, vec![C::AgentHangs]),
            ("agent killed there", &there, &same, E::Closed, 8800, remote),
            ("no agent there", &there, &same, E::Closed, 3800, refusing.clone()),
            ("agent hangs there", &there, &same, E::Silent, 9000, hanging.clone()),
            ("tunnel cut", &there, &same, E::Silent, 9000, hanging.clone()),
            ("worker refuses", &there, &same, E::Closed, 3800, refusing),
            ("worker hangs", &there, &same, E::Silent, 9000, hanging),
            ("stale entry", &there, &other, E::ConnectTimeout, 3000, vec![C::StaleEntry]),
            ("stale entry, router answers", &there, &other, E::NoRoute, 1, vec![C::StaleEntry]),
            (
                "Service deleted",
                &there,
                &NameAnswer::Unknown,
                E::ConnectTimeout,
                3000,
                vec![C::ServiceGone],
            ),
            ("label", &there, &same, E::ConnectTimeout, 3000, unproxied.clone()),
            ("created again just now", &there, &same, E::ConnectTimeout, 3000, unproxied),
            (
                "relay away at the start",
                &refused,
                &refused,
                E::ConnectTimeout,
                3000,
                vec![C::AgentAbsent, C::AgentStarting],
            ),
            (
                "API away at the start",
                &NameAnswer::Failed(2),
                &NameAnswer::Failed(2),
                E::NoRoute,
                3000,
                vec![C::AgentWithoutApi],
            ),
            ("no Endpoints", &there, &same, E::Closed, 2, vec![C::NoEndpoints]),
        ] {
            assert_eq!(first(server, name, &error, took), expected, "{state}");
        }
    }

    #[test]
    fn missing_route_or_interface_precedes_the_rest() {
        let silent = NameAnswer::Silent;
        let seen = Observation {
            called: ENTRY,
            error: &CallError::NoRoute,
            took: Duration::ZERO,
            has_interface: true,
            has_route: false,
            server: &silent,
            name: None,
        };
        assert_eq!(causes(&seen), [Cause::NoRoute]);
        let seen = Observation { has_interface: false, has_route: true, ..seen };
        assert_eq!(causes(&seen)[0], Cause::AgentAbsent);
    }
}

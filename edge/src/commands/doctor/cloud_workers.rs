//! Decides the findings about the path to the clouds of workers and gateways, and about `EdgeMesh`.
//! Pure; `diagnosis.rs` decides the causes behind `EdgeMesh`.

use std::net::IpAddr;

use crate::{
    commands::doctor::{
        diagnosis::{Cause, Observation, causes, entry_problem, listed as causes_text},
        facts::{Answer, CallError, CallFacts, CloudWorkerFacts, EdgeMeshFacts, NameAnswer},
        report::Finding,
    },
    config::EDGE_MESH_DNS,
};

const CHECK: &str = "cloud workers";

/// One finding per cloud, and one for `EdgeMesh` if a cloud needs it.
pub fn cloud_workers(
    workers: &[CloudWorkerFacts],
    edge_mesh: &EdgeMeshFacts,
    servers: &[IpAddr],
) -> Vec<Finding> {
    if workers.is_empty() {
        return vec![Finding::ok(CHECK, "no stored worker or gateway uses one")];
    }
    let findings = workers.iter().map(|worker| match (&worker.addresses, &worker.call) {
        (Ok(_), Some(call)) => called(worker, call, edge_mesh),
        (Ok(addresses), None) => Finding::ok(CHECK, named(worker, &listed(addresses))),
        (Err(why), _) => unresolved(worker, why, edge_mesh, servers),
    });
    let mut findings: Vec<_> = findings.collect();
    findings.extend(edge_mesh_finding(workers, edge_mesh, servers));
    findings
}

fn named(worker: &CloudWorkerFacts, seen: &str) -> String {
    format!("{} ({}): {seen}", worker.host, worker.used_by)
}

/// What a failed call means, with the remedy.
fn unreachable(worker: &CloudWorkerFacts, seen: &str, help: &str) -> Finding {
    let help = format!("hard samples do not reach the cloud; {help}");
    Finding::error(CHECK, named(worker, seen), help)
}

fn unresolved(
    worker: &CloudWorkerFacts,
    why: &str,
    edge_mesh: &EdgeMeshFacts,
    servers: &[IpAddr],
) -> Finding {
    let help = match servers {
        [] => {
            "upgrade neptune-cloud, which sends the address, set --dns to a name server that resolves the name (EdgeMesh's is 169.254.96.16), or run the cloud worker on a node with neptune.io/runtime=agent".to_owned()
        }
        [EDGE_MESH_DNS, ..] if edge_mesh.dns == NameAnswer::Silent => {
            Cause::AgentHangs.text().to_owned()
        }
        [EDGE_MESH_DNS, ..] if !edge_mesh.dns.is_answer() => Cause::AgentAbsent.text().to_owned(),
        servers => format!(
            "containers use {} (--dns): check that it resolves the name; EdgeMesh's resolves only full names in cluster.local",
            listed(servers)
        ),
    };
    unreachable(worker, why, &help)
}

fn called(worker: &CloudWorkerFacts, call: &CallFacts, edge_mesh: &EdgeMeshFacts) -> Finding {
    let took = format!("{:.1} s", call.took.as_secs_f64());
    let error = match &call.result {
        Ok(answer) => {
            let answer = match answer {
                Answer::Http(status) => format!("answers HTTP {status}"),
                Answer::Grpc => "answers gRPC".to_owned(),
                Answer::Connected => "accepts connections".to_owned(),
            };
            return answered(worker, &format!("{} {answer} after {took}", call.address), call);
        }
        Err(error) => error,
    };
    let mut seen = format!("{}: {} after {took}", call.address, text(error));
    if entry_problem(call.address.ip(), worker.name.as_ref()).is_some()
        && let Some(name) = &worker.name
    {
        seen = format!("{seen}; EdgeMesh {name}");
    }
    if !worker.is_service {
        return unreachable(worker, &seen, on_a_node(error));
    }
    let causes = causes(&Observation {
        called: call.address.ip(),
        error,
        took: call.took,
        has_interface: edge_mesh.has_interface,
        has_route: !edge_mesh.unroutable.contains(&call.address.ip()),
        server: &edge_mesh.dns,
        name: worker.name.as_ref(),
    });
    unreachable(worker, &seen, &causes_text(&causes))
}

/// An answer is a warning if another Service may have sent it.
fn answered(worker: &CloudWorkerFacts, seen: &str, call: &CallFacts) -> Finding {
    match entry_problem(call.address.ip(), worker.name.as_ref()).zip(worker.name.as_ref()) {
        Some((problem, name)) => {
            let seen = named(worker, &format!("{seen}, but EdgeMesh {name}"));
            Finding::warning(CHECK, seen, problem.text())
        }
        None => Finding::ok(CHECK, named(worker, seen)),
    }
}

fn text(error: &CallError) -> String {
    let text = match error {
        CallError::Refused => "connection refused",
        CallError::ConnectTimeout => "no connection",
        CallError::NoRoute => "no route, or a router answers that the address is unreachable",
        CallError::Closed => "connected, then closed",
        CallError::Silent => "connected, but no answer",
        CallError::NotHttp => "the answer is not HTTP",
        CallError::NotGrpc => "the answer is not gRPC",
        CallError::Tls(why) => return format!("TLS failed: {why}"),
        CallError::Other(why) => why,
    };
    text.to_owned()
}

fn on_a_node(error: &CallError) -> &'static str {
    match error {
        CallError::Refused => {
            "nothing listens there: check that the cloud worker, the gateway of the next service or the endpoint runs (kubectl neptune status)"
        }
        CallError::ConnectTimeout | CallError::NoRoute => {
            "check the route and the firewalls between this node and that address"
        }
        CallError::Tls(_) => {
            "check the URL and its certificate, and that spec.cloudWorker.endpoint.caFile names its authority"
        }
        CallError::Closed
        | CallError::Silent
        | CallError::NotHttp
        | CallError::NotGrpc
        | CallError::Other(_) => "check the log of the program there",
    }
}

/// `EdgeMesh` is checked if containers use its name server, or if a call to a Service failed.
fn edge_mesh_finding(
    workers: &[CloudWorkerFacts],
    edge_mesh: &EdgeMeshFacts,
    servers: &[IpAddr],
) -> Option<Finding> {
    const CHECK: &str = "edgemesh";
    let is_broken = |worker: &CloudWorkerFacts| {
        worker.is_service && worker.call.as_ref().is_some_and(|call| call.result.is_err())
    };
    let uses_dns = servers.contains(&EDGE_MESH_DNS);
    if !uses_dns && !workers.iter().any(is_broken) {
        return None;
    }
    if !edge_mesh.has_interface {
        return Some(Finding::error(
            CHECK,
            "edgemesh0 with 169.254.96.16 does not exist",
            "start edgemesh-agent on this node, or route the cluster's Services to this node in another way",
        ));
    }
    if !edge_mesh.unroutable.is_empty() {
        let seen = format!("no route to {}", listed(&edge_mesh.unroutable));
        return Some(Finding::error(CHECK, seen, Cause::NoRoute.text()));
    }
    let dns = &edge_mesh.dns;
    if let NameAnswer::Addresses(_) | NameAnswer::Unknown = dns {
        return Some(Finding::ok(CHECK, "edgemesh0 exists, and 169.254.96.16 answers DNS"));
    }
    let seen = format!("edgemesh0 exists, but its name server {dns}");
    Some(match dns {
        NameAnswer::Silent => Finding::error(CHECK, seen, Cause::AgentHangs.text()),
        NameAnswer::Failed(_) => Finding::error(CHECK, seen, Cause::AgentWithoutApi.text()),
        _ if uses_dns => Finding::error(
            CHECK,
            seen,
            "restart edgemesh-agent; it must not be in the node's own /etc/resolv.conf",
        ),
        _ => Finding::warning(
            CHECK,
            seen,
            "start edgemesh-agent on this node, unless it runs with EdgeDNS switched off",
        ),
    })
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

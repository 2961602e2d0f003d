//! Decides the findings about the path to cloud workers: names, calls, and `EdgeMesh`. Pure.

use std::{net::IpAddr, time::Duration};

use crate::{
    commands::doctor::{
        facts::{CallError, CallFacts, CloudWorkerFacts, EdgeMeshFacts},
        report::Finding,
    },
    config::EDGE_MESH_DNS,
};

const CHECK: &str = "cloud workers";

/// Below this, `EdgeMesh` closes a connection because it has no endpoint.
const AT_ONCE: Duration = Duration::from_secs(2);

/// One finding per cloud worker, and one for `EdgeMesh` if a cloud worker needs it.
pub fn cloud_workers(
    workers: &[CloudWorkerFacts],
    edge_mesh: &EdgeMeshFacts,
    servers: &[IpAddr],
) -> Vec<Finding> {
    if workers.is_empty() {
        return vec![Finding::ok(CHECK, "no stored worker uses one")];
    }
    let findings = workers.iter().map(|worker| match (&worker.addresses, &worker.call) {
        (Ok(_), Some(call)) => called(worker, call),
        (Ok(addresses), None) => Finding::ok(CHECK, named(worker, &listed(addresses))),
        (Err(why), _) => unresolved(worker, why, servers),
    });
    let mut findings: Vec<_> = findings.collect();
    findings.extend(edge_mesh_finding(workers, edge_mesh, servers));
    findings
}

fn named(worker: &CloudWorkerFacts, seen: &str) -> String {
    format!("{} ({}): {seen}", worker.host, worker.used_by)
}

fn unresolved(worker: &CloudWorkerFacts, why: &str, servers: &[IpAddr]) -> Finding {
    if !servers.is_empty() {
        return Finding::warning(
            CHECK,
            named(worker, &format!("this machine's resolver failed: {why}")),
            format!(
                "containers use {} instead (--dns); check that it resolves the name",
                listed(servers)
            ),
        );
    }
    Finding::error(
        CHECK,
        named(worker, why),
        "hard examples do not reach the cloud worker; upgrade neptune-cloud, which sends the address, set --dns to a name server that resolves the name (EdgeMesh's is 169.254.96.16), or run the cloud worker on a node with neptune.io/runtime=agent",
    )
}

fn called(worker: &CloudWorkerFacts, call: &CallFacts) -> Finding {
    let took = format!("{:.1} s", call.took.as_secs_f64());
    let error = match &call.result {
        Ok(status) => {
            let seen = format!("{} answers HTTP {status} after {took}", call.address);
            return Finding::ok(CHECK, named(worker, &seen));
        }
        Err(error) => error,
    };
    let seen = named(worker, &format!("{}: {} after {took}", call.address, text(error)));
    let help =
        if worker.is_service { through_edge_mesh(error, call.took) } else { on_a_node(error) };
    Finding::error(CHECK, seen, format!("hard examples do not reach the cloud worker; {help}"))
}

fn text(error: &CallError) -> &str {
    match error {
        CallError::Refused => "connection refused",
        CallError::ConnectTimeout => "no connection",
        CallError::NoRoute => "no route",
        CallError::Closed => "connected, then closed",
        CallError::Silent => "connected, but no answer",
        CallError::NotHttp => "the answer is not HTTP",
        CallError::Other(why) => why,
    }
}

/// The causes, as they were observed with `EdgeMesh`. See docs/kubeedge.md.
fn through_edge_mesh(error: &CallError, took: Duration) -> &'static str {
    match error {
        CallError::Refused => {
            "edgemesh-agent died and its rules remain: restart it on this node (kubectl -n kubeedge get pods -o wide)"
        }
        CallError::ConnectTimeout => {
            "no rule for the Service: start edgemesh-agent on this node, and remove the label service.edgemesh.kubeedge.io/service-proxy-name from the Service"
        }
        CallError::NoRoute => "add a default route, or ip route add <service CIDR> dev edgemesh0",
        CallError::Closed if took < AT_ONCE => {
            "the Service has no Endpoints: check that the cloud worker's Pod is ready (kubectl get endpoints)"
        }
        CallError::Closed => {
            "the cloud worker refuses connections, or its node has no edgemesh-agent: check both"
        }
        CallError::Silent => {
            "EdgeMesh's tunnel is down: list the cloud worker's node in relayNodes, or open TCP 20006 to it"
        }
        CallError::NotHttp | CallError::Other(_) => "check the cloud worker's log",
    }
}

fn on_a_node(error: &CallError) -> &'static str {
    match error {
        CallError::Refused => {
            "nothing listens there: check that the cloud worker runs on its node (kubectl neptune status)"
        }
        CallError::ConnectTimeout | CallError::NoRoute => {
            "check the route and the firewalls between this node and that address"
        }
        CallError::Closed | CallError::Silent | CallError::NotHttp | CallError::Other(_) => {
            "check the cloud worker's log"
        }
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
        let help = "add a default route, or ip route add <service CIDR> dev edgemesh0";
        return Some(Finding::error(CHECK, seen, help));
    }
    Some(match &edge_mesh.dns {
        Ok(()) => Finding::ok(CHECK, "edgemesh0 exists, and 169.254.96.16 answers DNS"),
        Err(why) if uses_dns => Finding::error(
            CHECK,
            format!("the name server 169.254.96.16 does not answer: {why}"),
            "restart edgemesh-agent; it must not be in the node's own /etc/resolv.conf",
        ),
        Err(why) => Finding::ok(CHECK, format!("edgemesh0 exists; its name server: {why}")),
    })
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

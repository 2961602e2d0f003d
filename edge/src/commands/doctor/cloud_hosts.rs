//! Decides which hosts of clouds to check, and how they are called. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use neptune_wire::{Replica, Worker};

use crate::commands::doctor::facts::Protocol;

/// The environment variable with the URL of an edge worker's cloud worker.
const CLOUD_WORKER: &str = "BIG_MODEL_URL";

/// The host of a cloud worker, of the cloud of a gateway, or of `--resolve`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloudHost {
    pub host: String,
    /// The object or flag that uses it.
    pub used_by: String,
    pub port: Option<u16>,
    pub protocol: Protocol,
    /// The address of the host in the host entries of the edge worker.
    pub entry: Option<IpAddr>,
    /// The file with its certificate authorities, in the directory of secrets.
    pub ca_file: Option<String>,
}

/// The hosts of the stored workers and gateways, and the given ones.
pub fn hosts(replica: Option<&Replica>, resolve: &[String]) -> BTreeSet<CloudHost> {
    let objects = replica.into_iter().flat_map(Replica::objects);
    let mut hosts: BTreeSet<CloudHost> = objects
        .flat_map(|(key, stored)| {
            let workers = stored.content.workers.iter();
            workers.flat_map(move |worker| cloud_hosts(worker, &key.to_string()))
        })
        .collect();
    let entry = |host: &String| hosts.iter().find(|it| it.host == *host).and_then(|it| it.entry);
    let given = resolve.iter().filter(|host| !host.is_empty()).map(|host| CloudHost {
        host: host.clone(),
        used_by: "--resolve".to_owned(),
        port: None,
        protocol: Protocol::Http,
        entry: entry(host),
        ca_file: None,
    });
    let given: Vec<_> = given.collect();
    hosts.extend(given);
    hosts
}

/// The hosts that a worker calls: its cloud worker, or the addresses of a gateway's cloud.
fn cloud_hosts(worker: &Worker, used_by: &str) -> Vec<CloudHost> {
    let mut entries = worker.hosts.clone();
    let mut urls = Vec::new();
    let mut ca_file = None;
    if let Some(gateway) = &worker.gateway {
        entries.extend(gateway.config.cloud_addresses());
        urls.extend(gateway.config.cloud_url().map(|url| (url, false)));
        urls.extend(gateway.config.cloud_grpc_url().map(|url| (url, true)));
        ca_file.clone_from(&gateway.ca_file);
    } else {
        urls.extend(worker.program.env.get(CLOUD_WORKER).map(|url| (url.as_str(), false)));
    }
    let host = |(url, is_grpc)| {
        let (host, port, protocol) = parts(url, is_grpc)?;
        Some(CloudHost {
            host: host.to_owned(),
            used_by: used_by.to_owned(),
            port,
            protocol,
            entry: entries.get(host).copied(),
            ca_file: ca_file.clone(),
        })
    };
    urls.into_iter().filter_map(host).collect()
}

/// Host and port of `http://host:port/path`, an IPv6 address without its brackets.
fn parts(url: &str, is_grpc: bool) -> Option<(&str, Option<u16>, Protocol)> {
    let (scheme, rest) = url.split_once("://")?;
    let (protocol, usual) = match (scheme, is_grpc) {
        ("https", false) => (Protocol::Https, 443),
        ("https", true) => (Protocol::GrpcTls, 443),
        (_, false) => (Protocol::Http, 80),
        (_, true) => (Protocol::Grpc, 80),
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = port.strip_prefix(':').map_or(Some(usual), |port| port.parse().ok());
    Some((host, port, protocol)).filter(|(host, ..)| !host.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn host_is_parsed_from_url_of_cloud_worker() {
        for (url, host) in [
            (
                "http://digits-cloud-1a2b.default.svc:5000",
                Some(("digits-cloud-1a2b.default.svc", 5000)),
            ),
            ("http://192.0.2.7:20007", Some(("192.0.2.7", 20_007))),
            ("http://[2001:db8::7]:20007", Some(("2001:db8::7", 20_007))),
            ("http://host", Some(("host", 80))),
            ("http://host/path:1", Some(("host", 80))),
            ("https://user@host/v1", Some(("host", 443))),
            ("http://", None),
            ("host:5000", None),
        ] {
            let parsed = parts(url, false).map(|(host, port, _)| (host, port));
            assert_eq!(parsed, host.map(|(host, port)| (host, Some(port))), "{url}");
        }
    }

    #[test]
    fn gateway_calls_rest_and_grpc_at_its_addresses() {
        let worker = |hosts: Value, addresses: Value| -> Worker {
            serde_json::from_value(json!({
                "name": "w", "role": "edge", "image": "i", "hosts": hosts,
                "gateway": {"server": "m", "caFile": "ca", "config": {"cloud": {
                    "url": "http://c.ns.svc.cluster.local:8000/v2",
                    "grpcUrl": "https://c.ns.svc.cluster.local:8001",
                    "addresses": addresses,
                }}},
            }))
            .unwrap()
        };
        let entry = json!({"c.ns.svc.cluster.local": "10.96.0.7"});
        for worker in [worker(entry.clone(), json!(null)), worker(json!({}), entry)] {
            let [rest, grpc] = &cloud_hosts(&worker, "s")[..] else { unreachable!("two URLs") };
            assert_eq!((rest.port, rest.protocol), (Some(8000), Protocol::Http));
            assert_eq!((grpc.port, grpc.protocol), (Some(8001), Protocol::GrpcTls));
            assert_eq!(rest.entry, Some([10, 96, 0, 7].into()));
            assert_eq!((grpc.entry, grpc.ca_file.as_deref()), (rest.entry, Some("ca")));
        }
    }
}

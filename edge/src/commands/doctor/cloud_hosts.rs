//! Decides which hosts of cloud workers to check. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use neptune_wire::Replica;

/// The environment variable with the URL of an edge worker's cloud worker.
const CLOUD_WORKER: &str = "BIG_MODEL_URL";

/// The host of a cloud worker, or of `--resolve`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloudHost {
    pub host: String,
    /// The object or flag that uses it.
    pub used_by: String,
    pub port: Option<u16>,
    /// Its address in the host entries of the edge worker.
    pub entry: Option<IpAddr>,
}

/// The hosts of the stored cloud workers, and the given ones.
pub fn hosts(replica: Option<&Replica>, resolve: &[String]) -> BTreeSet<CloudHost> {
    let given = resolve.iter().filter(|host| !host.is_empty()).map(|host| CloudHost {
        host: host.clone(),
        used_by: "--resolve".to_owned(),
        port: None,
        entry: None,
    });
    let objects = replica.into_iter().flat_map(Replica::objects);
    let workers = objects.flat_map(|(key, stored)| {
        let workers = stored.content.workers.iter();
        workers.filter_map(|worker| cloud_host(&worker.env, &worker.hosts, key.to_string()))
    });
    workers.chain(given).collect()
}

fn cloud_host(
    env: &BTreeMap<String, String>,
    entries: &BTreeMap<String, IpAddr>,
    used_by: String,
) -> Option<CloudHost> {
    let (host, port) = host_of(env.get(CLOUD_WORKER)?)?;
    let (host, entry) = (host.to_owned(), entries.get(host).copied());
    Some(CloudHost { host, used_by, port, entry })
}

/// Host and port of `http://host:port/path`, an IPv6 address without its brackets.
fn host_of(url: &str) -> Option<(&str, Option<u16>)> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = port.strip_prefix(':').map_or(Some(80), |port| port.parse().ok());
    Some((host, port)).filter(|(host, _)| !host.is_empty())
}

#[cfg(test)]
mod tests {
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
            ("http://", None),
            ("host:5000", None),
        ] {
            let host = host.map(|(host, port)| (host, Some(port)));
            assert_eq!(host_of(url), host, "{url}");
        }
    }
}

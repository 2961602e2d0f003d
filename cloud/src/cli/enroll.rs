//! The flags of `enroll`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use neptune_cloud_kinds::join::token_entry::TTL;
use neptune_wire::NodeName;

use super::ClusterFlags;

/// The flags of `enroll`.
#[derive(Debug, Args)]
pub struct Enroll {
    /// Names of the nodes.
    #[arg(value_name = "NODE", required_unless_present = "file")]
    pub nodes: Vec<NodeName>,
    /// File with the names of further nodes, one per line; - is the standard input. Lines that begin
    /// with # are ignored.
    #[arg(short, long, value_name = "FILE", env = "NEPTUNE_FILE")]
    pub file: Option<PathBuf>,
    /// How long each token is valid: 1 minute to 90 days, such as 30m, 24h or 90d.
    #[arg(long, value_name = "DURATION", env = "NEPTUNE_TTL", default_value = "1h", value_parser = ttl)]
    pub ttl: SignedDuration,
    /// Label of the EdgeNodes, for the selectors of services. May be repeated; the variable is a
    /// comma-separated list.
    #[arg(
        long,
        value_name = "KEY=VALUE",
        env = "NEPTUNE_LABEL",
        value_delimiter = ',',
        value_parser = label
    )]
    pub label: Vec<(String, String)>,
    /// Permit nodes to join that have another trusted key or are revoked. The join replaces both,
    /// and earlier certificates are refused from then on.
    #[arg(long, env = "NEPTUNE_REPLACE")]
    pub replace: bool,
    /// URL at which nodes reach the join server: `https://host:port`. Default: by the Service
    /// neptune-join and the addresses of the cluster's nodes.
    #[arg(long, value_name = "URL", env = "NEPTUNE_URL", value_parser = url)]
    pub url: Option<String>,
    /// Namespace of the controller.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NAMESPACE", default_value = "neptune-system")]
    pub namespace: String,
    /// Output format of the tokens.
    #[arg(short, long, value_name = "FORMAT", env = "NEPTUNE_OUTPUT", default_value = "text")]
    pub output: EnrollFormat,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The output formats of `enroll`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EnrollFormat {
    /// The command for each node.
    Text,
    /// A line per node, with the columns node, url, token and expires.
    Csv,
}

fn ttl(text: &str) -> Result<SignedDuration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok());
    let days = days.filter(|days| (0..=10_000).contains(days));
    let parsed = match days {
        Some(days) => Some(SignedDuration::from_hours(days * 24)),
        None => text.parse().ok(),
    };
    let valid = parsed.filter(|ttl| TTL.contains(ttl));
    valid.ok_or_else(|| "must be 1m to 90d, such as 30m, 24h or 90d".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, such as site=west")?;
    if key.is_empty() {
        return Err("the key is empty; use KEY=VALUE, such as site=west".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    let is_host = |host: &&str| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']);
    let host = host.filter(is_host);
    let host = host.ok_or("must be https://host:port, such as https://192.0.2.1:30884")?;
    Ok(format!("https://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_limits() {
        assert_eq!(ttl("90d"), Ok(SignedDuration::from_hours(2160)));
        assert_eq!(ttl("30m"), Ok(SignedDuration::from_mins(30)));
        for text in ["", "59s", "91d", "2161h", "-1d", "99999999999999999999d", "d"] {
            assert!(ttl(text).is_err(), "{text}");
        }
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("a").is_err() && label("=b").is_err());
        assert_eq!(url("https://[::1]:443/"), Ok("https://[::1]:443".to_owned()));
        for text in ["http://a", "https://", "https://a/b", "https://u@a"] {
            assert!(url(text).is_err(), "{text}");
        }
    }
}

//! What `enroll` reads and prints. No I/O.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use neptune_cloud_kinds::join::token_entry::TokenEntry;
use neptune_join::JoinToken;
use neptune_wire::NodeName;

/// A token with its secret, and what the cluster has of it.
#[derive(Debug)]
pub struct Invitation {
    /// The token for the node.
    pub token: JoinToken,
    /// The token for the cluster.
    pub entry: TokenEntry,
}

/// The names in a file, one per line; lines that begin with `#` and empty lines are ignored.
pub fn node_names(text: &str) -> Result<Vec<NodeName>, String> {
    let mut names = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name = line.parse().map_err(|why| format!("line {}: {line:?}: {why}", number + 1))?;
        names.push(name);
    }
    Ok(names)
}

/// The command for each node.
pub fn page(invitations: &[Invitation], url: &str, is_guessed: bool, now: Timestamp) -> String {
    let mut page = String::new();
    for Invitation { token, entry } in invitations {
        let until = until(entry.expires, now);
        let text = token.to_text();
        let _ = writeln!(
            page,
            "Node {} may join until {until} UTC, once. On the node, as root:\n  neptune-edge join {url} {}",
            token.node, *text
        );
    }
    if is_guessed {
        let _ = writeln!(
            page,
            "{url} has the address of a node of the cluster. If nodes reach the cluster at another one, install with join.address or add --url."
        );
    }
    page
}

/// A time of the next day as hours and minutes, a later one with its date.
fn until(expires: Timestamp, now: Timestamp) -> String {
    let is_soon = expires.duration_since(now) < SignedDuration::from_hours(12);
    let format = if is_soon { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    expires.to_zoned(TimeZone::UTC).strftime(format).to_string()
}

/// A table with the columns node, url, token and expires. No value has a comma or a quote.
pub fn csv(invitations: &[Invitation], url: &str) -> String {
    let mut table = String::from("node,url,token,expires\n");
    for Invitation { token, entry } in invitations {
        let _ = writeln!(table, "{},{url},{},{}", token.node, *token.to_text(), entry.expires);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::KeyPin;

    use super::*;

    fn invitation(node: &str) -> Invitation {
        let pin = KeyPin(format!("sha256:{}", "00".repeat(32)));
        let token = JoinToken::new(node.parse().unwrap(), &pin, [7; 21]).unwrap();
        let expires = "2026-11-29T14:05:10Z".parse().unwrap();
        let entry = TokenEntry::new(token.node.clone(), &token.secret, expires, false);
        Invitation { token, entry }
    }

    #[test]
    fn page_has_the_command_of_each_node_with_its_token() {
        let (invitations, url) = ([invitation("edge0")], "https://b:30884");
        let at = |text: &str| text.parse().unwrap();
        let token = invitations[0].token.to_text();
        let soon = page(&invitations, url, false, at("2026-11-29T13:05:10Z"));
        assert_eq!(
            soon,
            format!(
                "Node edge0 may join until 14:05 UTC, once. On the node, as root:\n  neptune-edge join https://b:30884 {}\n",
                *token
            )
        );
        let later = page(&invitations, url, true, at("2026-09-29T13:05:10Z"));
        assert!(
            later.contains("until 2026-11-29 14:05 UTC") && later.contains("add --url"),
            "{later}"
        );
    }

    #[test]
    fn table_has_a_line_per_node() {
        let table = csv(&[invitation("edge0"), invitation("edge1")], "https://b:30884");
        let lines: Vec<_> = table.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "node,url,token,expires"));
        assert!(lines[2].starts_with("edge1,https://b:30884,npt1:edge1:"), "{table}");
        assert!(lines[2].ends_with(",2026-11-29T14:05:10Z"), "{table}");
    }

    #[test]
    fn file_has_a_name_per_line() {
        let names = node_names("# shops\nedge0\n\n  edge1 \r\n").unwrap();
        assert_eq!(names.iter().map(NodeName::as_str).collect::<Vec<_>>(), ["edge0", "edge1"]);
        assert!(node_names("edge0\nEdge 1").unwrap_err().starts_with("line 2: \"Edge 1\": "));
    }
}

//! The `trust` and `revoke` commands: write what a person decides about a node to its `EdgeNode`.

use std::io::Write as _;

use neptune_api::{EdgeNode, EdgeNodeSpec};
use neptune_cloud_kinds::nodes::keys::KeyRecord;
use neptune_cloud_runtime::kubernetes::edge_node_writes::{create, get, patch_spec};
use neptune_wire::{KeyPin, NodeName};
use serde_json::{Value, json};

use crate::{
    cli::{ClusterFlags, Revoke, Trust},
    commands::connect::connect,
    error::Error,
};

/// Trusts the key of one node.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, or no key that could be trusted.
pub async fn trust(flags: Trust) -> Result<(), Error> {
    let (node, pin) = (flags.node, flags.pin);
    change(&flags.cluster, &node, |object| {
        let record = object.map(KeyRecord::from_edge_node).unwrap_or_default();
        let trusted = match &pin {
            Some(pin) => pin,
            None => record.to_trust(&node).map_err(Error::Trust)?,
        };
        Ok((json!({"trustedKey": trusted}), trust_text(&node, &record, trusted)))
    })
    .await
}

/// Excludes one node.
///
/// # Errors
/// No usable kubeconfig, or no answer from the API server.
pub async fn revoke(flags: Revoke) -> Result<(), Error> {
    let node = flags.node;
    let text = format!(
        "node {node} is revoked; to use it again: kubectl patch edgenode {node} --type merge -p '{{\"spec\":{{\"revoked\":false}}}}'\n"
    );
    change(&flags.cluster, &node, |_| Ok((json!({"revoked": true}), text))).await
}

/// Changes the fields of the spec that `decide` returns, and prints its text. Without an `EdgeNode`
/// one is created that does not make the name a node.
async fn change(
    cluster: &ClusterFlags,
    node: &NodeName,
    decide: impl FnOnce(Option<&EdgeNode>) -> Result<(Value, String), Error>,
) -> Result<(), Error> {
    let (client, _) = connect(cluster).await?;
    let object = get(&client, node).await?;
    let (fields, text) = decide(object.as_ref())?;
    if let Some(object) = object {
        patch_spec(&client, node, object.metadata.resource_version, fields).await?;
    } else {
        create(&client, node, absent_node(&fields)).await?;
    }
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The spec of a name that has no `EdgeNode`, with these fields.
fn absent_node(fields: &Value) -> EdgeNodeSpec {
    let trusted_key = fields["trustedKey"].as_str().map(str::to_owned);
    let revoked = fields["revoked"] == true;
    EdgeNodeSpec { trusted_key, revoked, requires_node: true, ..EdgeNodeSpec::default() }
}

fn trust_text(node: &NodeName, before: &KeyRecord, trusted: &KeyPin) -> String {
    match before.trusted.as_ref().or(before.seen.as_ref()).filter(|before| *before != trusted) {
        Some(before) => format!("node {node}: {} replaces {}\n", trusted.0, before.0),
        None => format!("node {node}: {} is trusted\n", trusted.0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pin(digit: char) -> KeyPin {
        KeyPin(format!("sha256:{}", digit.to_string().repeat(64)))
    }

    #[test]
    fn text_names_the_key_that_is_replaced() {
        let node: NodeName = "edge0".parse().unwrap();
        let text = |trusted: Option<KeyPin>, seen: Option<KeyPin>| {
            trust_text(&node, &KeyRecord { trusted, seen, ..KeyRecord::default() }, &pin('b'))
        };
        let replaces = format!("node edge0: {} replaces {}\n", pin('b').0, pin('a').0);
        assert_eq!(text(Some(pin('a')), None), replaces);
        assert_eq!(text(None, Some(pin('a'))), replaces);
        let is_trusted = format!("node edge0: {} is trusted\n", pin('b').0);
        assert_eq!(text(None, Some(pin('b'))), is_trusted);
        assert_eq!(text(None, None), is_trusted);
    }

    #[test]
    fn edge_node_of_an_unknown_name_does_not_make_it_a_node() {
        let spec = EdgeNodeSpec { requires_node: true, ..EdgeNodeSpec::default() };
        let trusted = absent_node(&json!({"trustedKey": pin('a')}));
        assert_eq!(trusted, EdgeNodeSpec { trusted_key: Some(pin('a').0), ..spec.clone() });
        let revoked = absent_node(&json!({"revoked": true}));
        assert_eq!(revoked, EdgeNodeSpec { revoked: true, ..spec });
    }
}

//! The `trust` command: records the key of a node that the controller shall use.

use std::io::Write as _;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use neptune_cloud_kinds::kubernetes::node_keys::{KeyRecord, NODE_KEYS, parse};
use neptune_cloud_runtime::kubernetes::save_node_keys::save;
use neptune_wire::{KeyPin, NodeName};

use crate::{cli::Trust, commands::connect::connect, error::Error};

/// Records the key of one node.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, or no key that waits.
pub async fn trust(flags: Trust) -> Result<(), Error> {
    let (client, _) = connect(&flags.cluster).await?;
    let (namespace, node) = (&*flags.namespace, flags.node);
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let step = format!("get ConfigMap {namespace}/{NODE_KEYS}");
    let held = api.get_opt(NODE_KEYS).await.map_err(Error::api(step))?;
    let mut entries = parse(held.as_ref());
    let before = entries.records.remove(&node);
    let before = match entries.invalid.remove(node.as_str()) {
        Some(why) => Err(why),
        None => Ok(before),
    };
    let record = decide(&node, before.as_ref(), flags.pin).map_err(Error::Trust)?;
    let before = before.ok().flatten();
    let text = match before.filter(|before| before.trusted != record.trusted) {
        Some(before) => {
            format!("node {node}: {} replaces {}\n", record.trusted.0, before.trusted.0)
        }
        None => format!("node {node}: {} is trusted\n", record.trusted.0),
    };
    let version = held.and_then(|held| held.resource_version());
    save(&client, namespace, version.as_deref(), &[(node, record)].into()).await?;
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The next record of a node. `before` is what is wrong with an invalid entry.
fn decide(
    node: &NodeName,
    before: Result<&Option<KeyRecord>, &String>,
    pin: Option<KeyPin>,
) -> Result<KeyRecord, String> {
    if let Some(trusted) = pin {
        return Ok(KeyRecord { trusted, waiting: None });
    }
    let before = before.map_err(|why| {
        format!(
            "the entry of node {node} in ConfigMap {NODE_KEYS} is invalid: {why}; to replace it, add --pin"
        )
    })?;
    let Some(before) = before else {
        return Err(format!(
            "no key of node {node} is recorded: the controller records it when the node connects; to record it before, add --pin"
        ));
    };
    match &before.waiting {
        Some(waiting) => Ok(KeyRecord { trusted: waiting.clone(), waiting: None }),
        None => Err(format!(
            "no key of node {node} waits: {} is trusted; to trust another key, add --pin",
            before.trusted.0
        )),
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
    fn waiting_key_or_the_given_one_is_trusted() {
        let node: NodeName = "edge0".parse().unwrap();
        let waiting = Some(KeyRecord { trusted: pin('a'), waiting: Some(pin('b')) });
        let trusted = |digit| KeyRecord { trusted: pin(digit), waiting: None };
        assert_eq!(decide(&node, Ok(&waiting), None), Ok(trusted('b')));
        assert_eq!(decide(&node, Ok(&waiting), Some(pin('c'))), Ok(trusted('c')));
        assert_eq!(decide(&node, Ok(&None), Some(pin('c'))), Ok(trusted('c')));
        let error = decide(&node, Ok(&None), None).unwrap_err();
        assert!(error.starts_with("no key of node edge0 is recorded"), "{error}");
        let error = decide(&node, Ok(&Some(trusted('a'))), None).unwrap_err();
        assert!(error.starts_with("no key of node edge0 waits"), "{error}");
        let why = "is empty".to_owned();
        let error = decide(&node, Err(&why), None).unwrap_err();
        assert!(error.ends_with("is invalid: is empty; to replace it, add --pin"), "{error}");
        assert_eq!(decide(&node, Err(&why), Some(pin('c'))), Ok(trusted('c')));
    }
}

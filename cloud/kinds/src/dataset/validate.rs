//! Validates a dataset against the cluster. The agent checks what only the node knows, such as
//! supported formats and files on its disk.

use std::sync::Arc;

use neptune_api::Dataset;
use neptune_wire::{AddressError, ArtifactAddress, NodeName, redact};

use super::place::{self, PlacedDataset};
use crate::{
    finding::Finding,
    kubernetes::{identity::identity, node_view::NodeView},
    reason::Reason,
};

/// The inputs of `validate` from the cluster.
#[derive(Debug, Clone)]
pub struct DatasetFacts {
    /// The node of `spec.nodeName`, if it exists.
    pub node: Option<Arc<NodeView>>,
    /// The nodes of `spec.replicas`; `None` for one that does not exist.
    pub replicas: Vec<(String, Option<Arc<NodeView>>)>,
}

/// Validates a dataset. Returns its nodes.
///
/// # Errors
/// All findings, not only the first.
pub fn validate(dataset: &Dataset, facts: &DatasetFacts) -> Result<PlacedDataset, Vec<Finding>> {
    let mut findings = Vec::new();
    let _ = identity(dataset, &mut findings);
    let node = node(&dataset.spec.node_name, facts, &mut findings);
    let problem = match dataset.spec.data_url.parse::<ArtifactAddress>() {
        Ok(ArtifactAddress::Hub(_) | ArtifactAddress::Oci(_)) => {
            Some(AddressError::NoDataset.to_string())
        }
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        let message = format!("spec.dataUrl {:?}: {problem}", redact(&dataset.spec.data_url));
        findings.push(Finding::new(Reason::DataUrlInvalid, message));
    }
    findings.extend(place::check(dataset));
    let node = node.filter(|_| findings.is_empty()).ok_or(findings)?;
    Ok(place::place(node, &facts.replicas))
}

fn node(name: &str, facts: &DatasetFacts, findings: &mut Vec<Finding>) -> Option<NodeName> {
    if name.is_empty() {
        let message = "spec.nodeName is missing; set it to the node that has the data";
        findings.push(Finding::new(Reason::NodeRequired, message));
        return None;
    }
    let parsed = match name.parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            findings.push(Finding::new(Reason::NameInvalid, format!("spec.nodeName: {error}")));
            return None;
        }
    };
    if facts.node.is_none() {
        findings.push(Finding::missing_node(name, "spec.nodeName"));
        return None;
    }
    Some(parsed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dataset::fixtures;

    #[test]
    fn sample_and_every_source_are_valid() {
        let urls =
            ["/code/data", "file:///code/data", "http://h/d.csv", "HTTPS://h/d", "s3://bucket/k"];
        for url in urls {
            let mut dataset = fixtures::dataset();
            url.clone_into(&mut dataset.spec.data_url);
            let placed = validate(&dataset, &fixtures::facts()).unwrap();
            assert_eq!(placed.source.as_str(), "edge0", "{url}");
        }
    }

    #[test]
    fn every_finding_has_its_reason_and_names_its_field() {
        type Case = (fn(&mut Dataset, &mut DatasetFacts), Reason, &'static str);
        let cases: &[Case] = &[
            (|_, f| f.node = None, Reason::NodeNotFound, "node \"edge0\" not found"),
            (|d, _| d.spec.node_name.clear(), Reason::NodeRequired, "spec.nodeName is missing"),
            (|d, _| d.spec.node_name = "Edge_0".into(), Reason::NameInvalid, "spec.nodeName"),
            (
                |d, _| d.spec.data_url.clear(),
                Reason::DataUrlInvalid,
                "spec.dataUrl \"\": the address is empty",
            ),
            (
                |d, _| d.spec.data_url = "data".into(),
                Reason::DataUrlInvalid,
                "neither a URL nor an absolute path",
            ),
            (|d, _| d.spec.data_url = "ftp://h/d".into(), Reason::DataUrlInvalid, "scheme"),
            (|d, _| d.spec.data_url = "http://".into(), Reason::DataUrlInvalid, "a host"),
            (|d, _| d.spec.data_url = "file://h/d".into(), Reason::DataUrlInvalid, "absolute"),
            (|d, _| d.spec.data_url = "/a/../b".into(), Reason::DataUrlInvalid, "\"..\""),
            (|d, _| d.metadata.name = Some("A".into()), Reason::NameInvalid, "metadata"),
            (
                |d, _| d.spec.replicas = fixtures::replicated(&["edge0"]).spec.replicas,
                Reason::ReplicasInvalid,
                "edge0 is the source; name other nodes as replicas",
            ),
        ];
        for (change, reason, text) in cases {
            let (mut dataset, mut facts) = (fixtures::dataset(), fixtures::facts());
            change(&mut dataset, &mut facts);
            let findings = validate(&dataset, &facts).unwrap_err();
            assert_eq!(findings.iter().map(|f| f.reason).collect::<Vec<_>>(), [*reason], "{text}");
            assert!(findings[0].message.contains(text), "{}", findings[0].message);
        }
    }
}

//! Whether a node can be told of a dataset. Pure. What only the node knows, such as its formats and what
//! is on its disk, is its agent's to judge.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use neptune_api::Dataset;
use neptune_wire::NodeName;

use crate::{finding::Finding, kubernetes::identity::identity, reason::Reason};

/// What the cluster has of what a dataset names.
#[derive(Debug, Clone)]
pub struct DatasetFacts {
    /// The node.
    pub node: Option<Arc<Node>>,
}

/// Checks a dataset against the facts. Returns its node.
///
/// # Errors
/// Everything that stands in its way, not only the first.
pub fn validate(dataset: &Dataset, facts: &DatasetFacts) -> Result<NodeName, Vec<Finding>> {
    let mut findings = Vec::new();
    let _ = identity(dataset, &mut findings);
    let node = node(&dataset.spec.node_name, facts, &mut findings);
    if let Some(problem) = problem_of_url(&dataset.spec.data_url) {
        let message = format!(
            "spec.dataUrl {problem}; write /like/this, file:///like/this, http://..., https://... or s3://bucket/key"
        );
        findings.push(Finding::new(Reason::DataUrlInvalid, message));
    }
    node.filter(|_| findings.is_empty()).ok_or(findings)
}

fn node(name: &str, facts: &DatasetFacts, findings: &mut Vec<Finding>) -> Option<NodeName> {
    if name.is_empty() {
        let message = "spec.nodeName is missing; name the node that has the data";
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

fn problem_of_url(url: &str) -> Option<String> {
    if url.is_empty() {
        return Some("is missing".to_owned());
    }
    let path = match url.split_once("://") {
        Some(("http" | "https" | "s3", rest)) if !rest.is_empty() => return None,
        Some(("file", path)) => path,
        Some(_) => return Some(format!("{url:?} has a scheme that is not supported, or no host")),
        None => url,
    };
    if !path.starts_with('/') {
        return Some(format!("{url:?} is no absolute path"));
    }
    path.split('/').any(|part| part == "..").then(|| format!("{url:?} has a part \"..\""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::controllers::dataset::fixtures;

    #[test]
    fn sample_and_every_source_are_valid() {
        for url in ["/code/data", "file:///code/data", "http://h/d.csv", "https://h/d", "s3://b/k"]
        {
            let mut dataset = fixtures::dataset();
            url.clone_into(&mut dataset.spec.data_url);
            assert_eq!(validate(&dataset, &fixtures::facts()).unwrap().as_str(), "edge0", "{url}");
        }
    }

    #[test]
    fn every_finding_has_its_reason_and_names_its_field() {
        type Case = (fn(&mut Dataset, &mut DatasetFacts), Reason, &'static str);
        let cases: &[Case] = &[
            (|_, f| f.node = None, Reason::NodeNotFound, "node \"edge0\" not found"),
            (|d, _| d.spec.node_name.clear(), Reason::NodeRequired, "spec.nodeName is missing"),
            (|d, _| d.spec.node_name = "Edge_0".into(), Reason::NameInvalid, "spec.nodeName"),
            (|d, _| d.spec.data_url.clear(), Reason::DataUrlInvalid, "spec.dataUrl is missing"),
            (|d, _| d.spec.data_url = "data".into(), Reason::DataUrlInvalid, "no absolute path"),
            (|d, _| d.spec.data_url = "ftp://h/d".into(), Reason::DataUrlInvalid, "scheme"),
            (|d, _| d.spec.data_url = "http://".into(), Reason::DataUrlInvalid, "no host"),
            (|d, _| d.spec.data_url = "file://h/d".into(), Reason::DataUrlInvalid, "absolute"),
            (|d, _| d.spec.data_url = "/a/../b".into(), Reason::DataUrlInvalid, "\"..\""),
            (|d, _| d.metadata.name = Some("A".into()), Reason::NameInvalid, "metadata"),
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

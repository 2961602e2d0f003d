//! Decides how a Dataset object is read and counted on this node, or why it cannot be. Watching and
//! counting are left to `artifacts/datasets`.

use std::{collections::BTreeSet, path::PathBuf};

use neptune_sources::{CsvColumn, DatasetFormat, FormatError, FormatOptions};
use neptune_wire::{
    AddressError, ArtifactAddress, ContentHash, DatasetContent, DatasetReason, Namespace, NodeName,
    ObjectContent, ReplicaOf,
};

use crate::{desired::model::NO_CONTENT, domain::artifact::ArtifactSource};

/// A dataset that this node reads and counts, or why it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDataset {
    pub uid: String,
    /// The hash of the object's content, as the cloud computed it.
    pub content: ContentHash,
    /// `spec.format` as written, which workers receive.
    pub format: String,
    /// The nodes that may copy the data.
    pub replicas: BTreeSet<NodeName>,
    /// The location of the data, or why it is invalid.
    pub source: Result<DataSource, DatasetProblem>,
    /// The format and options for counting, or why they are invalid.
    pub counting: Result<(DatasetFormat, FormatOptions), DatasetProblem>,
}

/// The location of a dataset's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A file or archive that the node downloads.
    Remote(ArtifactSource),
    /// An absolute path on the node.
    Local(PathBuf),
    /// A copy of the data of another node.
    Replica(ReplicaOf),
}

/// Why a dataset cannot be counted. The message names the field or path, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetProblem {
    pub reason: DatasetReason,
    pub message: String,
}

impl DatasetProblem {
    pub fn new(reason: DatasetReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Adds the reason and the remedy to a format or option that cannot be used.
    pub fn of_format(error: &FormatError) -> Self {
        let (reason, remedy) = match error {
            FormatError::UnknownFormat { .. } => {
                (DatasetReason::UnknownFormat, "correct spec.format")
            }
            FormatError::InvalidOption { .. } => {
                (DatasetReason::DatasetOptionInvalid, "correct the field in spec")
            }
        };
        Self { reason, message: format!("{error}; {remedy}") }
    }
}

/// Derives the desired state of a Dataset object. An invalid object is kept with the reason.
pub fn wanted_dataset(content: &ObjectContent, hash: &ContentHash) -> WantedDataset {
    let Some(dataset) = content.dataset.as_deref() else {
        let missing = DatasetProblem::new(DatasetReason::DataUrlInvalid, NO_CONTENT);
        return WantedDataset {
            uid: content.metadata.uid.clone(),
            content: hash.clone(),
            format: String::new(),
            replicas: BTreeSet::new(),
            source: Err(missing.clone()),
            counting: Err(missing),
        };
    };
    WantedDataset {
        uid: content.metadata.uid.clone(),
        content: hash.clone(),
        format: dataset.format.trim().to_owned(),
        replicas: dataset.replicas.iter().cloned().collect(),
        source: match &dataset.replica_of {
            Some(replica) => Ok(DataSource::Replica(replica.clone())),
            None => source(&content.metadata.namespace, dataset.url.trim()),
        },
        counting: counting(dataset),
    }
}

fn source(namespace: &Namespace, url: &str) -> Result<DataSource, DatasetProblem> {
    let invalid = |why: String| {
        DatasetProblem::new(DatasetReason::DataUrlInvalid, format!("spec.dataUrl: {why}"))
    };
    match url.parse::<ArtifactAddress>() {
        Ok(ArtifactAddress::Path(path)) => Ok(DataSource::Local(path.into())),
        Ok(ArtifactAddress::Hub(_) | ArtifactAddress::Oci(_)) => {
            Err(invalid(AddressError::NoDataset.to_string()))
        }
        Ok(remote) => {
            let (namespace, url) = (namespace.clone(), remote.to_url());
            let source = ArtifactSource { namespace, url, sha256: None };
            source.check().map_err(invalid)?;
            Ok(DataSource::Remote(source))
        }
        Err(error) => Err(invalid(error.to_string())),
    }
}

fn counting(fields: &DatasetContent) -> Result<(DatasetFormat, FormatOptions), DatasetProblem> {
    let problem = |error: FormatError| DatasetProblem::of_format(&error);
    let invalid = |option, reason: &str| {
        problem(FormatError::InvalidOption { option, reason: reason.to_owned() })
    };
    let format: DatasetFormat = fields.format.trim().parse().map_err(problem)?;
    let mut options = FormatOptions { member: fields.member.clone(), ..FormatOptions::default() };
    options.header = fields.header.unwrap_or(options.header);
    if let Some(delimiter) = &fields.delimiter {
        let mut characters = delimiter.chars();
        options.delimiter = match (characters.next(), characters.next()) {
            (Some(one), None) => one,
            _ => return Err(invalid("delimiter", "must be one character")),
        };
    }
    options.label_column = match &fields.label_column {
        None => None,
        Some(name) if options.header => Some(CsvColumn::Name(name.to_owned())),
        Some(number) => Some(CsvColumn::Index(number.parse().map_err(|_| {
            invalid("labelColumn", "must be a column number (from 0) when header is false")
        })?)),
    };
    options.check(format).map_err(problem)?;
    Ok((format, options))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn wanted_from(dataset: &Value) -> WantedDataset {
        let content: ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "dataset": dataset,
            "metadata": {"namespace": "d", "name": "n", "uid": "u"},
        }))
        .unwrap();
        wanted_dataset(&content, &content.hash())
    }

    #[test]
    fn data_url_is_remote_or_local_or_refused_with_the_field() {
        let source = |url: &str| wanted_from(&json!({"url": url})).source;
        for url in ["/code/data", "file:///code/data"] {
            assert_eq!(source(url), Ok(DataSource::Local("/code/data".into())), "{url}");
        }
        for url in ["http://h/d.csv", "https://h/d.tar.gz", "s3://bucket/d.csv"] {
            let namespace = "d".parse().unwrap();
            let remote = ArtifactSource { namespace, url: url.into(), sha256: None };
            assert_eq!(source(url), Ok(DataSource::Remote(remote)), "{url}");
        }
        for url in ["", "data.csv", "ftp://h/d", "file://h/d", "s3://b/k", "hf://o/r/d.csv"] {
            let problem = source(url).unwrap_err();
            assert_eq!(problem.reason, DatasetReason::DataUrlInvalid, "{url}");
            assert!(problem.message.contains("spec.dataUrl"), "{}", problem.message);
        }
    }

    #[test]
    fn replica_has_its_source_in_place_of_a_path() {
        let wanted = wanted_from(&json!({
            "url": "", "format": "jsonl", "replicaOf": {"node": "edge0", "deletions": "Follow"},
        }));
        let Ok(DataSource::Replica(of_node)) = wanted.source else { unreachable!() };
        assert_eq!(of_node.node.as_str(), "edge0");
        assert!(wanted.counting.is_ok());
        let source = wanted_from(&json!({"url": "/d", "format": "csv", "replicas": ["edge1"]}));
        assert_eq!(source.replicas.len(), 1);
    }

    #[test]
    fn dataset_without_typed_content_is_refused() {
        let wanted = wanted_from(&Value::Null);
        assert_eq!(wanted.source.unwrap_err().message, NO_CONTENT);
        assert_eq!(wanted.counting.unwrap_err().reason, DatasetReason::DataUrlInvalid);
    }

    #[test]
    fn options_come_from_the_spec_or_from_the_format() {
        let counting = |spec: Value| wanted_from(&spec).counting;
        assert_eq!(
            counting(json!({"format": "csv"})),
            Ok((DatasetFormat::Csv, FormatOptions::default()))
        );
        let named = counting(json!({"format": "CSV", "labelColumn": "class", "delimiter": ";"}));
        let (_, named) = named.unwrap();
        assert_eq!(named.label_column, Some(CsvColumn::Name("class".into())));
        assert_eq!((named.header, named.delimiter), (true, ';'));
        let (_, bare) =
            counting(json!({"format": "csv", "header": false, "labelColumn": "3"})).unwrap();
        assert_eq!((bare.header, bare.label_column), (false, Some(CsvColumn::Index(3))));
        let (_, json) = counting(json!({"format": "json", "member": "images"})).unwrap();
        assert_eq!(json.member.as_deref(), Some("images"));
        for (spec, reason, text) in [
            (json!({"format": "parquet"}), DatasetReason::UnknownFormat, "csv, txt, xml, json"),
            (json!({}), DatasetReason::UnknownFormat, "known formats"),
            (
                json!({"format": "csv", "delimiter": "||"}),
                DatasetReason::DatasetOptionInvalid,
                "delimiter",
            ),
            (
                json!({"format": "csv", "header": false, "labelColumn": "class"}),
                DatasetReason::DatasetOptionInvalid,
                "labelColumn",
            ),
        ] {
            let problem = counting(spec.clone()).unwrap_err();
            assert_eq!(problem.reason, reason, "{spec}");
            assert!(problem.message.contains(text), "{}", problem.message);
        }
    }
}

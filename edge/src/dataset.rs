//! Decides what a Dataset object means for this node, and what is said of it. Watching and counting are
//! datasets.rs's.

use std::{cmp::Reverse, path::PathBuf};

use neptune_datasets::{Column, DatasetSpec, Error, Format, Options, Report, Tally, Watching};
use neptune_wire::{
    ContentHash, DatasetCounts, DatasetReason, DatasetReport, DatasetState, ObjectContent,
};
use serde_json::Value;

use crate::desired::Source;

/// A dataset object as this node has to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedDataset {
    pub uid: String,
    /// Of the object, as its author computed it.
    pub content: ContentHash,
    /// As in the spec: what workers are told.
    pub format: String,
    /// Where it is, or why that cannot be.
    pub source: Result<DataSource, Trouble>,
    /// How it is counted, or why that cannot be.
    pub counting: Result<(Format, Options), Trouble>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// To be fetched.
    Remote(Source),
    /// On the node already: an absolute path.
    Local(PathBuf),
}

/// Why a dataset cannot be counted: for a person, naming the field and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub reason: DatasetReason,
    pub message: String,
}

impl Trouble {
    pub fn new(reason: DatasetReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// What keeps it from being counted, and what helps.
    pub fn of(error: &Error, allowed: &[PathBuf]) -> Self {
        use DatasetReason as Reason;
        let (reason, remedy) = match error {
            Error::UnknownFormat { .. } => {
                (Reason::UnknownFormat, "correct spec.format".to_owned())
            }
            Error::BadOption { .. } => {
                (Reason::DatasetOptionInvalid, "correct the field of that name in spec".to_owned())
            }
            Error::NotAbsolute { .. } => {
                (Reason::DataUrlInvalid, "correct spec.dataUrl".to_owned())
            }
            Error::OutsideAllowed { .. } | Error::LinkLeaves { .. } => {
                let allowed: Vec<_> =
                    allowed.iter().map(|root| root.display().to_string()).collect();
                let allowed = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                let remedy = format!(
                    "they are: {allowed}; put it there, or give neptune-edge its directory with --allow-data-dir"
                );
                (Reason::OutsideAllowedDirectories, remedy)
            }
            Error::Missing { .. } => {
                (Reason::PathMissing, "put it there, or correct spec.dataUrl".to_owned())
            }
            Error::Denied { .. } => {
                (Reason::PermissionDenied, "let the user of neptune-edge read it".to_owned())
            }
            Error::WrongKind { .. } => {
                (Reason::WrongKindOfPath, "correct spec.dataUrl or spec.format".to_owned())
            }
            Error::CorruptRecord { .. }
            | Error::Json { .. }
            | Error::NoSuchMember { .. }
            | Error::NoSuchColumn { .. }
            | Error::Annotation { .. } => (
                Reason::DataMalformed,
                "correct the data, or spec.format and its options".to_owned(),
            ),
            Error::Io { .. } | Error::Unstable { .. } | Error::Stopped => {
                (Reason::DatasetUnreadable, "it is tried again".to_owned())
            }
        };
        Self { reason, message: format!("{error}; {remedy}") }
    }
}

/// Reads an object. One that cannot be right is kept with the reason.
pub fn wanted(content: &ObjectContent, hash: &ContentHash) -> WantedDataset {
    let text = |field: &str| content.spec.get(field).and_then(Value::as_str);
    let format = text("format").unwrap_or_default().trim();
    WantedDataset {
        uid: content.metadata.uid.clone(),
        content: hash.clone(),
        format: format.to_owned(),
        source: source(text("dataUrl").unwrap_or_default().trim()),
        counting: counting(format, &content.spec),
    }
}

fn source(url: &str) -> Result<DataSource, Trouble> {
    let invalid = |why: &str| {
        let message = format!(
            "spec.dataUrl: {why}; write /like/this, file:///like/this, http://..., https://... or s3://bucket/key"
        );
        Trouble::new(DatasetReason::DataUrlInvalid, message)
    };
    if let Some(path) = DatasetSpec::local_path(url) {
        return Ok(DataSource::Local(path));
    }
    if !["http://", "https://", "s3://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(invalid(&format!("{url:?} cannot be used on a node")));
    }
    let source = Source { url: url.to_owned(), sha256: None };
    source.want().map_err(|why| invalid(&why))?;
    Ok(DataSource::Remote(source))
}

fn counting(format: &str, spec: &Value) -> Result<(Format, Options), Trouble> {
    let trouble = |error: Error| Trouble::of(&error, &[]);
    let bad =
        |option, reason: &str| trouble(Error::BadOption { option, reason: reason.to_owned() });
    let format: Format = format.parse().map_err(trouble)?;
    let text = |field: &str| spec.get(field).and_then(Value::as_str);
    let mut options = Options { member: text("member").map(str::to_owned), ..Options::default() };
    options.header = spec.get("header").and_then(Value::as_bool).unwrap_or(options.header);
    if let Some(delimiter) = text("delimiter") {
        let mut characters = delimiter.chars();
        options.delimiter = match (characters.next(), characters.next()) {
            (Some(one), None) => one,
            _ => return Err(bad("delimiter", "it is not one character")),
        };
    }
    options.label_column = match text("labelColumn") {
        None => None,
        Some(name) if options.header => Some(Column::Name(name.to_owned())),
        Some(number) => Some(Column::Index(number.parse().map_err(|_| {
            bad("labelColumn", "without a header a column is named by its number, from 0")
        })?)),
    };
    options.check(format).map_err(trouble)?;
    Ok((format, options))
}

/// What is to be said of a dataset that is being watched.
pub fn said(report: &Report, allowed: &[PathBuf]) -> (DatasetState, Option<Trouble>) {
    match (&report.condition, &report.watching) {
        (Some(error), _) => (DatasetState::Failed, Some(Trouble::of(error, allowed))),
        (None, None) => (DatasetState::Counting, None),
        (None, Some(_)) => (DatasetState::Counted, None),
    }
}

/// What a person should know of a count that went well.
pub fn remark(report: &Report) -> String {
    let mut remarks = Vec::new();
    if let Some(tally) = &report.tally {
        if tally.unfinished {
            remarks.push("the last sample is not complete".to_owned());
        }
        if tally.skipped > 0 {
            let example = tally.skipped_example.as_deref().unwrap_or_default();
            remarks.push(format!("{} files are not counted, such as {example}", tally.skipped));
        }
    }
    if let Some(Watching::Polling { reason }) = &report.watching {
        remarks.push(format!("changes are only looked for once a minute: {reason}"));
    }
    remarks.join("; ")
}

/// The status of a dataset.
pub fn status(
    wanted: &WantedDataset,
    (state, trouble): (DatasetState, Option<Trouble>),
    remark: String,
    tally: Option<DatasetCounts>,
    bytes_read: u64,
) -> DatasetReport {
    let (reason, message) = match trouble {
        Some(Trouble { reason, message }) => (Some(reason), message),
        None if state == DatasetState::Counting => (Some(DatasetReason::Counting), String::new()),
        None => (None, remark),
    };
    DatasetReport { content: wanted.content.clone(), state, reason, message, tally, bytes_read }
}

/// A tally as it is told, bounded. The most frequent labels stay.
pub fn told(tally: &Tally, changed_at: &str) -> DatasetCounts {
    let mut labels: Vec<(&String, &u64)> = tally.labels.by_name.iter().collect();
    labels.sort_by_key(|(_, count)| Reverse(**count));
    let rest = labels.split_off(labels.len().min(DatasetCounts::MAX_LABELS));
    DatasetCounts {
        number_of_samples: tally.samples,
        bytes: tally.bytes,
        columns: tally.columns.iter().take(DatasetCounts::MAX_COLUMNS).cloned().collect(),
        labels: labels.into_iter().map(|(label, count)| (label.clone(), *count)).collect(),
        other_labels: tally.labels.other + rest.into_iter().map(|(_, count)| count).sum::<u64>(),
        skipped: tally.skipped,
        changed_at: changed_at.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn of(spec: &Value) -> WantedDataset {
        let content: ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "spec": spec,
            "metadata": {"namespace": "d", "name": "n", "uid": "u"},
        }))
        .unwrap();
        wanted(&content, &content.hash())
    }

    #[test]
    fn data_is_on_the_node_or_fetched_or_refused_with_the_field() {
        let source = |url: &str| of(&json!({"dataUrl": url})).source;
        for url in ["/code/data", "file:///code/data"] {
            assert_eq!(source(url), Ok(DataSource::Local("/code/data".into())), "{url}");
        }
        for url in ["http://h/d.csv", "https://h/d.tar.gz", "s3://bucket/d.csv"] {
            let remote = Source { url: url.into(), sha256: None };
            assert_eq!(source(url), Ok(DataSource::Remote(remote)), "{url}");
        }
        for url in ["", "data.csv", "ftp://h/d", "file://h/d", "s3://b/k"] {
            let trouble = source(url).unwrap_err();
            assert_eq!(trouble.reason, DatasetReason::DataUrlInvalid, "{url}");
            assert!(trouble.message.contains("spec.dataUrl"), "{}", trouble.message);
        }
    }

    #[test]
    fn options_are_those_of_the_spec_and_else_the_formats_own() {
        let counting = |spec: Value| of(&spec).counting;
        assert_eq!(counting(json!({"format": "csv"})), Ok((Format::Csv, Options::default())));
        let named = counting(json!({"format": "CSV", "labelColumn": "class", "delimiter": ";"}));
        let (_, named) = named.unwrap();
        assert_eq!(named.label_column, Some(Column::Name("class".into())));
        assert_eq!((named.header, named.delimiter), (true, ';'));
        let (_, bare) =
            counting(json!({"format": "csv", "header": false, "labelColumn": "3"})).unwrap();
        assert_eq!((bare.header, bare.label_column), (false, Some(Column::Index(3))));
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
            let trouble = counting(spec.clone()).unwrap_err();
            assert_eq!(trouble.reason, reason, "{spec}");
            assert!(trouble.message.contains(text), "{}", trouble.message);
        }
    }

    #[test]
    fn what_is_outside_the_allowed_directories_names_them() {
        let error = Error::OutsideAllowed { path: "/etc/passwd".into() };
        let trouble = Trouble::of(&error, &["/code/data".into(), "/data".into()]);
        assert_eq!(trouble.reason, DatasetReason::OutsideAllowedDirectories);
        for part in ["/etc/passwd", "/code/data, /data", "--allow-data-dir"] {
            assert!(trouble.message.contains(part), "{}", trouble.message);
        }
    }

    #[test]
    fn the_most_frequent_labels_are_told_and_the_others_added_up() {
        let mut tally = Tally { samples: 10, ..Tally::default() };
        for n in 0..100_u64 {
            tally.labels.by_name.insert(format!("{n:03}"), n);
        }
        tally.labels.other = 7;
        tally.columns = (0..500).map(|n| n.to_string()).collect();
        let told = told(&tally, "then");
        assert_eq!(told.labels.len(), DatasetCounts::MAX_LABELS);
        assert!(told.labels.contains_key("099") && !told.labels.contains_key("035"));
        assert_eq!(told.other_labels, 7 + (0..36).sum::<u64>());
        assert_eq!(told.columns.len(), DatasetCounts::MAX_COLUMNS);
    }

    #[test]
    fn a_count_is_under_way_until_the_first_one_ended() {
        let report = Report { tally: Some(Tally::default()), ..Report::default() };
        assert_eq!(said(&report, &[]).0, DatasetState::Counting, "what is stored may be old");
        let watching = Some(Watching::Events);
        let report = Report { watching: watching.clone(), ..report };
        assert_eq!(said(&report, &[]).0, DatasetState::Counted);
        let condition = Some(Error::Missing { path: "/x".into() });
        let (state, trouble) = said(&Report { condition, watching, ..report }, &[]);
        assert_eq!(
            (state, trouble.unwrap().reason),
            (DatasetState::Failed, DatasetReason::PathMissing)
        );
    }
}

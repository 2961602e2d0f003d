//! What a node reports of the file of a model, compared with the spec.

use neptune_api::ModelSpec;
use neptune_wire::{ModelPresenceReport, PresenceState, redact};

use super::{rows::RowState, validate::address_text};

/// The file in the spec of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// The address, with the selected files of a repository.
    pub url: String,
    /// The digest in lower case; `None` if the spec has none.
    pub sha256: Option<String>,
}

impl ModelFile {
    pub fn from_spec(spec: &ModelSpec) -> Self {
        Self { url: address_text(spec), sha256: spec.digest() }
    }

    /// Whether a reported address is that of the file. Agents report addresses without passwords and
    /// queries, older ones complete addresses.
    pub fn has_address(&self, reported: &str) -> bool {
        redact(reported) == redact(&self.url)
    }

    /// Whether a report is about this file, as far as the digest is known.
    pub fn is_subject(&self, report: &ModelPresenceReport) -> bool {
        self.has_address(&report.url)
            && (report.state != PresenceState::Present
                || self.sha256.is_none()
                || self.sha256 == report.sha256)
    }

    /// The state of the row of a node with this report; `None` without a report.
    pub fn row_state(&self, report: Option<&ModelPresenceReport>) -> Option<RowState> {
        let report = report?;
        Some(match report.state {
            _ if !self.is_subject(report) => RowState::Missing,
            PresenceState::Present => RowState::Present,
            PresenceState::Failed => RowState::Failed,
            PresenceState::Downloading => RowState::Missing,
        })
    }
}

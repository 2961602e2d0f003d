//! What a node reports of the file of a model, compared with the spec.

use neptune_api::Model;
use neptune_wire::{ModelPresenceReport, PresenceState, redact};

use super::{rows::RowState, validate::address_text};

/// Whether a report is about the file in the spec, as far as it is known.
pub fn is_current(presence: &ModelPresenceReport, url: &str, sha256: Option<&str>) -> bool {
    is_same_address(&presence.url, url)
        && (presence.state != PresenceState::Present
            || sha256.is_none()
            || sha256 == presence.sha256.as_deref())
}

/// The state of the row of a node with this report; `None` without a report.
pub fn row_state(
    presence: Option<&ModelPresenceReport>,
    url: &str,
    sha256: Option<&str>,
) -> Option<RowState> {
    let presence = presence?;
    Some(match presence.state {
        _ if !is_current(presence, url, sha256) => RowState::Missing,
        PresenceState::Present => RowState::Present,
        PresenceState::Failed => RowState::Failed,
        PresenceState::Downloading => RowState::Missing,
    })
}

/// Whether a report is about the file in the spec of the model.
pub fn is_reported_file(presence: &ModelPresenceReport, model: &Model) -> bool {
    let sum = model.spec.sha256sum.as_ref().map(|sum| sum.trim().to_ascii_lowercase());
    is_same_address(&presence.url, &address_text(&model.spec))
        && (sum.is_none() || sum == presence.sha256)
}

/// Whether two addresses are of the same model. Agents report addresses without passwords and
/// queries, older ones complete addresses.
pub fn is_same_address(reported: &str, spec: &str) -> bool {
    redact(reported) == redact(spec)
}

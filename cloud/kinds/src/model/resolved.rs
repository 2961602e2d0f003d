//! What the address of a model names, as the first node with the file reports it.

use neptune_api::ResolvedModel;
use neptune_wire::ModelPresenceReport;

/// Maximum length of a reported revision: `sha256:` and 64 digits.
const MAX_REVISION: usize = 71;

/// `previous` is the content in the previous status if that is of the same spec, and stays. Else it is
/// what the first of `present` reports, the reports of nodes that have the file in the spec.
pub fn resolved<'a>(
    previous: Option<&ResolvedModel>,
    present: impl IntoIterator<Item = &'a ModelPresenceReport>,
) -> Option<ResolvedModel> {
    if let Some(known) = previous {
        return Some(known.clone());
    }
    let report = present.into_iter().next()?;
    Some(ResolvedModel {
        revision: report.revision.clone().filter(|text| is_revision(text)),
        sha256sum: report.sha256.clone(),
        files: report.files.and_then(|files| i32::try_from(files).ok()),
        bytes: report.bytes.and_then(|bytes| i64::try_from(bytes).ok()),
    })
}

/// Whether the text of a node can be a commit or a digest.
fn is_revision(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    (1..=MAX_REVISION).contains(&text.len())
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use neptune_wire::PresenceState;

    use super::*;

    fn report(revision: &str) -> ModelPresenceReport {
        ModelPresenceReport {
            state: PresenceState::Present,
            url: "hf://org/model".to_owned(),
            sha256: Some("ab".repeat(32)),
            bytes: Some(7),
            files: Some(2),
            revision: Some(revision.to_owned()),
            source: None,
            rejected_peers: Vec::new(),
            progress: None,
            reason: None,
            message: String::new(),
        }
    }

    fn expected(revision: Option<&str>) -> ResolvedModel {
        ResolvedModel {
            revision: revision.map(str::to_owned),
            sha256sum: Some("ab".repeat(32)),
            files: Some(2),
            bytes: Some(7),
        }
    }

    #[test]
    fn first_node_with_the_file_decides_and_later_ones_change_nothing() {
        let (first, second) = ("c0".repeat(20), format!("sha256:{}", "d1".repeat(32)));
        assert_eq!(resolved(None, []), None);
        let known = resolved(None, &[report(&first), report(&second)]);
        assert_eq!(known, Some(expected(Some(&first))));
        let moved = [report(&second)];
        assert_eq!(resolved(known.as_ref(), &moved), known, "the branch moved");
        assert_eq!(resolved(known.as_ref(), []), known, "no node has it any more");
        assert_eq!(resolved(None, &moved), Some(expected(Some(&second))), "another spec");
    }

    #[test]
    fn revision_that_is_no_digest_is_left_out() {
        let long = "a".repeat(MAX_REVISION + 1);
        for text in ["", "sha256:", "main", "0a\n", "<b>", &long] {
            let status = resolved(None, &[report(text)]);
            assert_eq!(status, Some(expected(None)), "{text:?}");
        }
    }
}

//! Decides from an HTTP response whether a partial download is continued, restarted or complete.
//! Pure. Requests are sent in `transfer::http`.

use neptune_transfer::range::{ContentRange, unsatisfied_length};
use serde::{Deserialize, Serialize};

/// Identifies a version of the content, reliably enough to append to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Validator {
    /// Strong entity tag, with its quotes.
    ETag(String),
    /// Value of the `Last-Modified` header of the response.
    LastModified(String),
    /// Inode, length and modification time of a local file.
    File(String),
}

impl Validator {
    /// Returns the value for the conditional header `If-Range` or `If-Match`.
    pub fn value(&self) -> &str {
        match self {
            Self::ETag(value) | Self::LastModified(value) | Self::File(value) => value,
        }
    }
}

/// A request for the bytes from `from` on, on condition that the content is still the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    pub from: u64,
    pub total: Option<u64>,
    pub validator: Validator,
}

/// The status and the relevant headers of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    pub status: u16,
    pub content_length: Option<u64>,
    pub content_range: Option<&'a str>,
    pub etag: Option<&'a str>,
    pub last_modified: Option<&'a str>,
    pub date: Option<&'a str>,
}

/// What to do with the body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseAction {
    /// Append it to the bytes on disk.
    Append { total: Option<u64> },
    /// Replace the bytes on disk: the body is the complete content.
    Replace { total: Option<u64>, validator: Option<Validator> },
    /// Ignore it: the download is already complete.
    Complete,
    /// Ignore it and discard the bytes on disk, for this reason. Request the complete content.
    Restart(&'static str),
    /// Report the error status.
    Fail,
}

/// `requested` is `None` if the complete content was requested.
pub fn decide(requested: Option<&RangeRequest>, response: &ResponseHead<'_>) -> ResponseAction {
    match (response.status, requested) {
        (200, _) => ResponseAction::Replace {
            total: response.content_length,
            validator: validator(response),
        },
        (206, Some(requested)) => decide_partial(requested, response),
        (206, None) => ResponseAction::Restart("server sent a range that was not requested"),
        (412, Some(_)) => ResponseAction::Restart("content changed on the server"),
        (416, Some(requested)) => match response.content_range.and_then(unsatisfied_length) {
            Some(total) if requested.from == total && requested.total == Some(total) => {
                ResponseAction::Complete
            }
            _ => ResponseAction::Restart("content on the server is now shorter"),
        },
        _ => ResponseAction::Fail,
    }
}

fn decide_partial(requested: &RangeRequest, response: &ResponseHead<'_>) -> ResponseAction {
    let Some(range) = response.content_range.and_then(ContentRange::parse) else {
        return ResponseAction::Restart("server sent a range without a valid Content-Range");
    };
    if range.first != requested.from {
        return ResponseAction::Restart("server sent another range than requested");
    }
    if response.content_length.is_some_and(|length| length != range.bytes()) {
        return ResponseAction::Restart("Content-Length and Content-Range of the server differ");
    }
    if range.total.zip(requested.total).is_some_and(|(now, before)| now != before) {
        return ResponseAction::Restart("length of the content changed on the server");
    }
    let is_other = match &requested.validator {
        Validator::ETag(before) => response.etag.is_some_and(|now| now != before),
        Validator::LastModified(before) => response.last_modified.is_some_and(|now| now != before),
        Validator::File(_) => true,
    };
    if is_other {
        return ResponseAction::Restart("content changed on the server");
    }
    ResponseAction::Append { total: range.total.or(requested.total) }
}

/// The validator of a response, if it is strong. A weak entity tag can remain the same when bytes
/// change, and so can a modification time within the same second.
fn validator(response: &ResponseHead<'_>) -> Option<Validator> {
    if let Some(tag) = response.etag {
        return (tag.starts_with('"') && tag.len() > 2 && tag.ends_with('"'))
            .then(|| Validator::ETag(tag.to_owned()));
    }
    let modified = response.last_modified?;
    let is_old = date(response.date?)? - date(modified)? >= 1;
    is_old.then(|| Validator::LastModified(modified.to_owned()))
}

/// Parses a date to seconds since 1970.
fn date(text: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text).ok().map(|date| date.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested() -> RangeRequest {
        RangeRequest { from: 4, total: Some(10), validator: Validator::ETag("\"a\"".into()) }
    }

    fn partial(content_range: &'static str) -> ResponseHead<'static> {
        ResponseHead { status: 206, content_range: Some(content_range), ..ResponseHead::default() }
    }

    #[test]
    fn range_is_appended_only_if_it_was_requested() {
        let good = ResponseAction::Append { total: Some(10) };
        for response in [
            partial("bytes 4-9/10"),
            partial("bytes 4-9/*"),
            partial("bytes 4-7/10"),
            ResponseHead { etag: Some("\"a\""), ..partial("bytes 4-9/10") },
            ResponseHead { content_length: Some(6), ..partial("bytes 4-9/10") },
        ] {
            assert_eq!(decide(Some(&requested()), &response), good, "{response:?}");
        }
        for response in [
            ResponseHead { status: 206, ..ResponseHead::default() },
            partial("bytes 0-9/10"),
            partial("bytes 5-9/10"),
            partial("bytes 4-9/11"),
            partial("bytes 4-3/10"),
            partial("bytes 4-10/10"),
            partial("bytes +4-9/10"),
            partial("bytes 4-9"),
            partial("items 4-9/10"),
            partial("bytes 4-99999999999999999999/10"),
            ResponseHead { content_length: Some(5), ..partial("bytes 4-9/10") },
            ResponseHead { etag: Some("\"b\""), ..partial("bytes 4-9/10") },
        ] {
            let action = decide(Some(&requested()), &response);
            assert!(matches!(action, ResponseAction::Restart(_)), "{response:?}: {action:?}");
        }
    }

    #[test]
    fn complete_response_replaces_and_error_status_fails() {
        let complete =
            ResponseHead { status: 200, content_length: Some(10), ..ResponseHead::default() };
        let replace = ResponseAction::Replace { total: Some(10), validator: None };
        assert_eq!(decide(Some(&requested()), &complete), replace);
        assert_eq!(decide(None, &complete), replace);
        for status in [204, 304, 400, 404, 500, 503] {
            let response = ResponseHead { status, ..ResponseHead::default() };
            assert_eq!(decide(Some(&requested()), &response), ResponseAction::Fail, "{status}");
        }
        let end = |range| ResponseHead {
            status: 416,
            content_range: Some(range),
            ..ResponseHead::default()
        };
        let at_end = RangeRequest { from: 10, ..requested() };
        assert_eq!(decide(Some(&at_end), &end("bytes */10")), ResponseAction::Complete);
        for response in [end("bytes */9"), end("bytes */11"), end("nonsense")] {
            assert!(
                matches!(decide(Some(&at_end), &response), ResponseAction::Restart(_)),
                "{response:?}"
            );
        }
        assert!(matches!(decide(None, &partial("bytes 0-9/10")), ResponseAction::Restart(_)));
    }

    #[test]
    fn only_a_strong_validator_is_used() {
        let (old, now) =
            (Some("Sat, 21 Nov 2026 08:00:00 GMT"), Some("Sat, 21 Nov 2026 08:00:01 GMT"));
        let validator_with = |etag, last_modified, date| {
            validator(&ResponseHead { etag, last_modified, date, ..ResponseHead::default() })
        };
        assert_eq!(validator_with(Some("\"x\""), old, now), Some(Validator::ETag("\"x\"".into())));
        assert_eq!(
            validator_with(None, old, now),
            Some(Validator::LastModified(old.unwrap_or_default().into()))
        );
        for weak in [
            validator_with(Some("W/\"x\""), old, now),
            validator_with(Some("\"\""), None, None),
            validator_with(Some("x"), None, None),
            validator_with(None, now, now),
            validator_with(None, old, None),
            validator_with(None, Some("yesterday"), now),
        ] {
            assert_eq!(weak, None);
        }
    }
}

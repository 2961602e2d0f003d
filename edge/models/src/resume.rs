//! Decides what an HTTP answer means for what is already on disk: append, start over, or whole.
//! Asking is http.rs's.

use serde::{Deserialize, Serialize};

/// What tells one version of a URL's content from another, strong enough to append by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Validator {
    /// With its quotes.
    ETag(String),
    LastModified(String),
    /// Of a local file: its length and time of change.
    File(String),
}

impl Validator {
    /// The header's value.
    pub fn value(&self) -> &str {
        match self {
            Self::ETag(value) | Self::LastModified(value) | Self::File(value) => value,
        }
    }
}

/// What was asked for: the bytes from `from` on, if this is still the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub from: u64,
    pub total: Option<u64>,
    pub validator: Validator,
}

/// The parts of an answer that matter, as they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer<'a> {
    pub status: u16,
    pub content_length: Option<u64>,
    pub content_range: Option<&'a str>,
    pub etag: Option<&'a str>,
    pub last_modified: Option<&'a str>,
    pub date: Option<&'a str>,
}

/// What to do with the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It continues what is there.
    Append { total: Option<u64> },
    /// It is the whole, from the first byte.
    Fresh { total: Option<u64>, validator: Option<Validator> },
    /// Nothing was missing.
    Whole,
    /// It cannot be used, and what is there cannot either: ask again for the whole.
    StartOver(&'static str),
    /// The server says no.
    Refused,
}

/// `asked` is none when the whole was asked for.
pub fn judge(asked: Option<&Asked>, answer: &Answer<'_>) -> Verdict {
    match (answer.status, asked) {
        (200, _) => Verdict::Fresh { total: answer.content_length, validator: validator(answer) },
        (206, Some(asked)) => continued(asked, answer),
        (206, None) => Verdict::StartOver("the server sent a part, unasked"),
        (412, Some(_)) => Verdict::StartOver("what is there has changed"),
        (416, Some(asked)) => {
            let whole = answer.content_range.and_then(|range| range.strip_prefix("bytes */"));
            match whole.and_then(|total| total.parse().ok()) {
                Some(total) if asked.from == total && asked.total == Some(total) => Verdict::Whole,
                _ => Verdict::StartOver("what is there has become shorter"),
            }
        }
        _ => Verdict::Refused,
    }
}

fn continued(asked: &Asked, answer: &Answer<'_>) -> Verdict {
    let Some((first, last, total)) = answer.content_range.and_then(range) else {
        return Verdict::StartOver("the server sent a part and did not say which");
    };
    if first != asked.from || last < first || total.is_some_and(|total| last >= total) {
        return Verdict::StartOver("the server sent another part than asked for");
    }
    if answer.content_length.is_some_and(|length| length != last - first + 1) {
        return Verdict::StartOver("the server contradicts itself about the length of a part");
    }
    if total.zip(asked.total).is_some_and(|(now, before)| now != before) {
        return Verdict::StartOver("what is there has another length now");
    }
    let is_other = match &asked.validator {
        Validator::ETag(before) => answer.etag.is_some_and(|now| now != before),
        Validator::LastModified(before) => answer.last_modified.is_some_and(|now| now != before),
        Validator::File(_) => true,
    };
    if is_other {
        return Verdict::StartOver("what is there has changed");
    }
    Verdict::Append { total: total.or(asked.total) }
}

/// `bytes 0-9/10`; the total may be `*`.
fn range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(number(total)?) };
    Some((number(first)?, number(last)?, total))
}

fn number(text: &str) -> Option<u64> {
    // parse would take a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A weak tag may stay the same while bytes change, and so may a time within its own second.
fn validator(answer: &Answer<'_>) -> Option<Validator> {
    if let Some(tag) = answer.etag {
        return (tag.starts_with('"') && tag.len() > 2 && tag.ends_with('"'))
            .then(|| Validator::ETag(tag.to_owned()));
    }
    let modified = answer.last_modified?;
    let is_old = date(answer.date?)? - date(modified)? >= 1;
    is_old.then(|| Validator::LastModified(modified.to_owned()))
}

/// Seconds since 1970.
fn date(text: &str) -> Option<i64> {
    jiff::fmt::rfc2822::parse(text).ok().map(|date| date.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked { from: 4, total: Some(10), validator: Validator::ETag("\"a\"".into()) }
    }

    fn part(content_range: &'static str) -> Answer<'static> {
        Answer { status: 206, content_range: Some(content_range), ..Answer::default() }
    }

    #[test]
    fn a_part_is_appended_only_if_it_is_the_one_that_was_asked_for() {
        let good = Verdict::Append { total: Some(10) };
        for answer in [
            part("bytes 4-9/10"),
            part("bytes 4-9/*"),
            part("bytes 4-7/10"),
            Answer { etag: Some("\"a\""), ..part("bytes 4-9/10") },
            Answer { content_length: Some(6), ..part("bytes 4-9/10") },
        ] {
            assert_eq!(judge(Some(&asked()), &answer), good, "{answer:?}");
        }
        for answer in [
            Answer { status: 206, ..Answer::default() },
            part("bytes 0-9/10"),
            part("bytes 5-9/10"),
            part("bytes 4-9/11"),
            part("bytes 4-3/10"),
            part("bytes 4-10/10"),
            part("bytes +4-9/10"),
            part("bytes 4-9"),
            part("items 4-9/10"),
            part("bytes 4-99999999999999999999/10"),
            Answer { content_length: Some(5), ..part("bytes 4-9/10") },
            Answer { etag: Some("\"b\""), ..part("bytes 4-9/10") },
        ] {
            let verdict = judge(Some(&asked()), &answer);
            assert!(matches!(verdict, Verdict::StartOver(_)), "{answer:?}: {verdict:?}");
        }
    }

    #[test]
    fn a_whole_answer_starts_over_and_a_refusal_is_one() {
        let whole = Answer { status: 200, content_length: Some(10), ..Answer::default() };
        let fresh = Verdict::Fresh { total: Some(10), validator: None };
        assert_eq!(judge(Some(&asked()), &whole), fresh);
        assert_eq!(judge(None, &whole), fresh);
        for status in [204, 304, 400, 404, 500, 503] {
            let answer = Answer { status, ..Answer::default() };
            assert_eq!(judge(Some(&asked()), &answer), Verdict::Refused, "{status}");
        }
        let end = |range| Answer { status: 416, content_range: Some(range), ..Answer::default() };
        let at_end = Asked { from: 10, ..asked() };
        assert_eq!(judge(Some(&at_end), &end("bytes */10")), Verdict::Whole);
        for answer in [end("bytes */9"), end("bytes */11"), end("nonsense")] {
            assert!(matches!(judge(Some(&at_end), &answer), Verdict::StartOver(_)), "{answer:?}");
        }
        assert!(matches!(judge(None, &part("bytes 0-9/10")), Verdict::StartOver(_)));
    }

    #[test]
    fn only_a_strong_validator_is_remembered() {
        let (old, now) =
            (Some("Sat, 21 Nov 2026 08:00:00 GMT"), Some("Sat, 21 Nov 2026 08:00:01 GMT"));
        let of = |etag, last_modified, date| {
            validator(&Answer { etag, last_modified, date, ..Answer::default() })
        };
        assert_eq!(of(Some("\"x\""), old, now), Some(Validator::ETag("\"x\"".into())));
        assert_eq!(
            of(None, old, now),
            Some(Validator::LastModified(old.unwrap_or_default().into()))
        );
        for weak in [
            of(Some("W/\"x\""), old, now),
            of(Some("\"\""), None, None),
            of(Some("x"), None, None),
            of(None, now, now),
            of(None, old, None),
            of(None, Some("yesterday"), now),
        ] {
            assert_eq!(weak, None);
        }
    }
}

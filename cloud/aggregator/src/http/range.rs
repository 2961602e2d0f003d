//! Byte ranges of RFC 9110, section 14: one range, which may be open at one end. Pure.

/// What part of a content a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// All of it: there is no range, or one that the server may ignore.
    All,
    /// From the first to the last byte, both included.
    Part(u64, u64),
    /// No byte of the content is in the range.
    Unsatisfiable,
}

/// Reads `Range`. `if_range` must be the entity tag for the range to count.
pub fn requested(range: Option<&str>, if_range: Option<&str>, tag: &str, length: u64) -> Requested {
    if if_range.is_some_and(|it| it.trim() != tag) {
        return Requested::All;
    }
    let set = range.and_then(|it| it.trim().strip_prefix("bytes="));
    let Some((first, last)) = set.and_then(|it| it.trim().split_once('-')) else {
        return Requested::All;
    };
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), _) if first >= length && (last.is_empty() || number(last).is_some()) => {
            Requested::Unsatisfiable
        }
        (Some(first), Some(last)) if first <= last => Requested::Part(first, last.min(length - 1)),
        (Some(first), None) if last.is_empty() => Requested::Part(first, length - 1),
        (None, Some(0)) if first.is_empty() => Requested::Unsatisfiable,
        (None, Some(_)) if first.is_empty() && length == 0 => Requested::Unsatisfiable,
        (None, Some(suffix)) if first.is_empty() => {
            Requested::Part(length.saturating_sub(suffix), length - 1)
        }
        _ => Requested::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "\"aa\"";

    #[test]
    fn each_form_of_a_range_is_read() {
        for (range, length, expected) in [
            ("bytes=0-9", 100, Requested::Part(0, 9)),
            ("bytes=90-200", 100, Requested::Part(90, 99)),
            ("bytes=99-", 100, Requested::Part(99, 99)),
            ("bytes=-10", 100, Requested::Part(90, 99)),
            ("bytes=-200", 100, Requested::Part(0, 99)),
            ("bytes=100-", 100, Requested::Unsatisfiable),
            ("bytes=100-200", 100, Requested::Unsatisfiable),
            ("bytes=-0", 100, Requested::Unsatisfiable),
            ("bytes=0-", 0, Requested::Unsatisfiable),
            ("bytes=-5", 0, Requested::Unsatisfiable),
            ("bytes=99999999999999999999999-", 100, Requested::Unsatisfiable),
            ("bytes=5-99999999999999999999999", 100, Requested::Part(5, 99)),
            ("bytes=9-0", 100, Requested::All),
            ("bytes=0-1,5-6", 100, Requested::All),
            ("bytes=a-b", 100, Requested::All),
            ("bytes=-", 100, Requested::All),
            ("lines=0-1", 100, Requested::All),
            ("", 100, Requested::All),
        ] {
            assert_eq!(requested(Some(range), None, TAG, length), expected, "{range} of {length}");
        }
        assert_eq!(requested(None, None, TAG, 10), Requested::All);
    }

    #[test]
    fn range_of_another_content_is_ignored() {
        let range = Some("bytes=5-");
        assert_eq!(requested(range, Some(TAG), TAG, 10), Requested::Part(5, 9));
        assert_eq!(requested(range, Some("\"bb\""), TAG, 10), Requested::All);
        assert_eq!(requested(range, Some("W/\"aa\""), TAG, 10), Requested::All);
    }
}

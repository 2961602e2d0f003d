//! Topic names and topic filters of MQTT 3.1.1, section 4.7.

/// Returns whether the text is a topic name: not empty, without wildcards and NUL.
pub fn is_topic(text: &str) -> bool {
    !text.is_empty() && !text.contains(['+', '#', '\0'])
}

/// Returns whether the text is a topic filter: wildcards fill whole levels, and `#` is the last one.
pub fn is_topic_filter(text: &str) -> bool {
    let last = text.split('/').count() - 1;
    let is_level = |(index, level): (usize, &str)| match level {
        "+" => true,
        "#" => index == last,
        level => !level.contains(['+', '#', '\0']),
    };
    !text.is_empty() && text.split('/').enumerate().all(is_level)
}

/// Returns whether a topic matches a topic filter. A wildcard at the first level does not match a
/// topic that begins with `$`.
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for pattern in filter.split('/') {
        match (pattern, levels.next()) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (pattern, Some(level)) if pattern == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_as_in_the_specification() {
        for (filter, topic, expected) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b/c", "a/b", false),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("#", "a/b", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("a/+/c", "a/b/c", true),
            ("a/+", "a", false),
            ("a/+", "a/", true),
            ("+/+", "/x", true),
            ("+", "/x", false),
            ("A", "a", false),
        ] {
            assert_eq!(filter_matches(filter, topic), expected, "{filter} {topic}");
        }
    }

    #[test]
    fn wildcards_fill_whole_levels() {
        for valid in ["a", "#", "+", "a/+/b", "a/#", "/", "$share/g/a"] {
            assert!(is_topic_filter(valid), "{valid}");
        }
        for invalid in ["", "a#", "a/#/b", "a+", "a/+b", "##", "a\0"] {
            assert!(!is_topic_filter(invalid), "{invalid:?}");
        }
        assert!(is_topic("a/b"));
        for invalid in ["", "a/+", "#", "a\0b"] {
            assert!(!is_topic(invalid), "{invalid:?}");
        }
    }
}

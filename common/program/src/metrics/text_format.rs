//! Converts a page of `OpenMetrics` to the text format of Prometheus. Pure.

use std::fmt::Write as _;

/// Returns the page in the text format of Prometheus, version 0.0.4: the family of a counter has the
/// name of its samples, and there are neither units nor an end.
pub fn text_format(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    // A family's help comes before or after its type.
    let mut comments: Vec<(&str, &str, &str)> = Vec::new();
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            if let (Some(word @ ("HELP" | "TYPE")), Some(name), rest) =
                (words.next(), words.next(), words.next())
            {
                if comments.first().is_some_and(|(_, other, _)| *other != name) {
                    write_comments(&mut text, &mut comments);
                }
                comments.push((word, name, rest.unwrap_or_default()));
            }
        } else if !line.is_empty() {
            write_comments(&mut text, &mut comments);
            text.push_str(line);
            text.push('\n');
        }
    }
    write_comments(&mut text, &mut comments);
    text
}

fn write_comments(text: &mut String, comments: &mut Vec<(&str, &str, &str)>) {
    let is_counter = comments.iter().any(|(word, _, rest)| *word == "TYPE" && *rest == "counter");
    let suffix = if is_counter { "_total" } else { "" };
    for (word, name, rest) in comments.drain(..) {
        let rest = if rest == "unknown" && word == "TYPE" { "untyped" } else { rest };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# {word} {name}{suffix} {rest}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_name_of_their_samples() {
        let page = "# HELP a_bytes Bytes of a.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
            a_bytes_total{x=\"# EOF\"} 1\n# HELP b Level of b.\n# TYPE b gauge\nb 0.5\n\
            # TYPE c_seconds histogram\nc_seconds_bucket{le=\"+Inf\"} 1\n# TYPE d unknown\nd 1\n\
            # EOF\n";
        let expected = "# HELP a_bytes_total Bytes of a.\n# TYPE a_bytes_total counter\n\
            a_bytes_total{x=\"# EOF\"} 1\n# HELP b Level of b.\n# TYPE b gauge\nb 0.5\n\
            # TYPE c_seconds histogram\nc_seconds_bucket{le=\"+Inf\"} 1\n# TYPE d untyped\nd 1\n";
        assert_eq!(text_format(page), expected);
    }

    #[test]
    fn families_without_samples_are_kept_apart() {
        let page = "# HELP a A.\n# TYPE a counter\n# HELP b B.\n# TYPE b gauge\n";
        let expected = "# HELP a_total A.\n# TYPE a_total counter\n# HELP b B.\n# TYPE b gauge\n";
        assert_eq!(text_format(page), expected);
    }
}

//! The nodes that the status of an object on many nodes lists: those that need attention most.

use std::cmp::Reverse;

/// Nodes that a status lists.
pub const MAX_LISTED: usize = 32;

/// The maximum length of the message of a node, in characters.
pub const MAX_MESSAGE_CHARS: usize = 256;

/// The same, if the object is on more nodes than the status lists.
pub const MAX_SHORT_MESSAGE_CHARS: usize = 96;

/// The text with at most this many characters. What is too long ends after a word, with an ellipsis.
pub fn shortened(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    let is_whole_word = text[kept.len()..].starts_with(' ');
    let end = if is_whole_word { kept.len() } else { kept.rfind(' ').unwrap_or(kept.len()) };
    format!("{}…", kept[..end].trim_end_matches([' ', ',', ';', ':']))
}

/// How much a node needs attention, the most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Concern {
    /// The object failed on the node.
    Failed,
    /// The object is starting, or waits for something.
    Pending,
    /// The object runs, and not as it should.
    Degraded,
    /// The node is offline or has not reported.
    Unknown,
    /// The object is as it should be on the node.
    Nothing,
}

/// Chooses the nodes to list: all of at most [`MAX_LISTED`], in their order. Of more, those with a
/// concern: the greatest first, in a concern those that are listed already, then by name. `describe`
/// returns the concern and the name of a node.
pub fn listed<'a, T>(
    nodes: &'a [T],
    describe: impl Fn(&'a T) -> (Concern, &'a str),
    was_listed: impl Fn(&str) -> bool,
) -> Vec<&'a T> {
    if nodes.len() <= MAX_LISTED {
        return nodes.iter().collect();
    }
    let with_key = |node: &'a T| {
        let (concern, name) = describe(node);
        ((concern, Reverse(was_listed(name)), name), node)
    };
    let mut all: Vec<_> = nodes.iter().map(with_key).collect();
    all.retain(|((concern, ..), _)| *concern != Concern::Nothing);
    if all.len() > MAX_LISTED {
        all.select_nth_unstable_by_key(MAX_LISTED, |(key, _)| *key);
        all.truncate(MAX_LISTED);
    }
    all.sort_unstable_by_key(|(key, _)| *key);
    all.into_iter().map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(nodes: &[(Concern, String)], was_listed: &[&str]) -> Vec<String> {
        let describe = |node: &'_ (Concern, String)| (node.0, node.1.clone());
        let described: Vec<_> = nodes.iter().map(describe).collect();
        let chosen =
            listed(&described, |it| (it.0, it.1.as_str()), |name| was_listed.contains(&name));
        chosen.into_iter().map(|(_, name)| name.clone()).collect()
    }

    fn nodes(concern: Concern, prefix: &str, count: usize) -> Vec<(Concern, String)> {
        (0..count).map(|at| (concern, format!("{prefix}{at:04}"))).collect()
    }

    #[test]
    fn long_texts_end_after_a_word() {
        for (text, max, expected) in [
            ("check its camera", 16, "check its camera"),
            ("check its camera or other input", 17, "check its camera…"),
            ("check its camera or other input", 18, "check its camera…"),
            ("no sample; check its camera", 12, "no sample…"),
            ("größer", 4, "grö…"),
            ("größer", 6, "größer"),
        ] {
            assert_eq!(shortened(text, max), expected, "{text} {max}");
        }
    }

    #[test]
    fn all_of_few_nodes_are_listed_in_their_order() {
        let mut few = nodes(Concern::Nothing, "a", 31);
        few.push((Concern::Failed, "z".to_owned()));
        assert_eq!(names(&few, &[]).last().map(String::as_str), Some("z"));
        assert_eq!(names(&few, &[]).len(), 32);
    }

    #[test]
    fn of_many_nodes_the_greatest_concerns_are_listed_and_stay() {
        let mut many = nodes(Concern::Nothing, "a", 2000);
        many.extend(nodes(Concern::Unknown, "u", 500));
        assert_eq!(names(&many, &["u0400"])[..2], ["u0400", "u0000"]);
        many.extend(nodes(Concern::Degraded, "d", 3));
        many.extend(nodes(Concern::Pending, "p", 20));
        many.extend(nodes(Concern::Failed, "f", 5));
        let chosen = names(&many, &["u0400", "p0019"]);
        assert_eq!(chosen.len(), MAX_LISTED);
        assert_eq!((&*chosen[0], &*chosen[5], &*chosen[6]), ("f0000", "p0019", "p0000"));
        assert_eq!(chosen[25..], ["d0000", "d0001", "d0002", "u0400", "u0000", "u0001", "u0002"]);
        assert!(names(&nodes(Concern::Nothing, "a", 33), &["a0001"]).is_empty());
    }
}

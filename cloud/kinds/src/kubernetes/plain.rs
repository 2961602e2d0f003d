//! Texts that are valid wherever a name may be needed.

/// The maximum length of the value of a label in characters.
pub const MAX_PLAIN: usize = 63;

/// Whether a text is valid as value of a label, name of a resource, directory name and part of an
/// argument.
pub fn is_plain(text: &str) -> bool {
    let is_alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_PLAIN
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        && is_alphanumeric(text.chars().next())
        && is_alphanumeric(text.chars().next_back())
}

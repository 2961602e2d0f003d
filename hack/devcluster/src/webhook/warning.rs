//! The `Warning` headers of a response. Pure.

use std::collections::BTreeSet;

/// The header values for these texts, each text once.
pub fn headers(texts: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    texts
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty() && !text.contains(char::is_control) && seen.insert(*text))
        .map(header)
        .collect()
}

fn header(text: &str) -> String {
    let mut quoted = String::from("299 - \"");
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_sent_once_and_quoted() {
        let headers_of = |texts: &[&str]| {
            headers(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            headers_of(&["no \"a\\b\"", "é", "é", ""]),
            [r#"299 - "no \"a\\b\"""#, "299 - \"é\""]
        );
        assert_eq!(headers_of(&["two\nlines"]), [""; 0]);
    }
}

//! The `Warning` headers of an answer: each text once, and no more of them than an API server sends. Pure.

use std::collections::BTreeSet;

/// Of all texts together, as in API servers.
const TOTAL: usize = 4 * 1024;
/// Of one text, once the total would be exceeded.
const ITEM: usize = 256;

/// The values of the headers for these texts.
pub fn headers(texts: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let texts: Vec<&str> = texts
        .iter()
        .map(String::as_str)
        .filter(|text| !text.is_empty() && !text.contains(char::is_control) && seen.insert(*text))
        .collect();
    let length = |text: &str| text.chars().count();
    if texts.iter().map(|text| length(text)).sum::<usize>() <= TOTAL {
        return texts.into_iter().map(header).collect();
    }
    let mut written = 0;
    let mut headers = Vec::new();
    for text in texts {
        if written >= TOTAL {
            break;
        }
        let text: String = text.chars().take(ITEM).collect();
        written += length(&text);
        headers.push(header(&text));
    }
    headers
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

    fn of(texts: &[&str]) -> Vec<String> {
        headers(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn each_text_is_said_once_and_quoted() {
        assert_eq!(of(&["no \"a\\b\"", "é", "é", ""]), [r#"299 - "no \"a\\b\"""#, "299 - \"é\""]);
        assert_eq!(of(&["two\nlines"]), [""; 0]);
    }

    #[test]
    fn long_texts_are_cut_only_when_there_are_too_many() {
        let one = "x".repeat(4096);
        assert_eq!(of(&[&one])[0].len(), 4096 + "299 - \"\"".len());
        let many: Vec<String> = (0..40).map(|n| format!("{n:02}{}", "y".repeat(500))).collect();
        let cut = headers(&many);
        assert_eq!(cut.len(), 16);
        assert!(cut.iter().all(|header| header.len() == 256 + "299 - \"\"".len()));
    }
}

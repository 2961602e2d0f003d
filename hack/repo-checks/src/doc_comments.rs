//! Finds documentation comments that are too short to tell more than a name.
//!
//! A block is what consecutive `///` or `//!` lines form; an attribute or code between them ends it.
//! Words have a letter or a digit. Lines of headings (`# Errors`) and of code blocks do not count,
//! but a link is a word: a block with a link alone does not tell where it leads. Documentation in
//! `#[doc]` attributes and `/** */` comments is not read; this repository has none that is written
//! by hand.

use crate::{
    TextFile,
    source::{Kind, Source},
};

/// Words above which a block is accepted.
pub const MAX_SHORT_WORDS: usize = 3;

/// A block of documentation comments.
struct Block<'a> {
    /// Number of the first line, from 1.
    line: usize,
    marker: &'a str,
    lines: Vec<&'a str>,
}

/// The short blocks of a file, as `path:line: text`.
pub fn short_blocks(file: &TextFile) -> Vec<String> {
    let short = blocks(&file.text).into_iter().filter(|block| block.words() <= MAX_SHORT_WORDS);
    short.map(|block| format!("{}:{}: {}", file.path, block.line, block.lines.join(" "))).collect()
}

impl Block<'_> {
    fn words(&self) -> usize {
        let mut is_code = false;
        let prose = self.lines.iter().filter(|line| {
            let is_fence = line.starts_with("```");
            is_code ^= is_fence;
            !is_fence && !is_code && !line.starts_with('#')
        });
        let words = prose.flat_map(|line| line.split_whitespace());
        words.filter(|word| word.contains(char::is_alphanumeric)).count()
    }
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let kinds = Source::new(text).kinds;
    let mut blocks: Vec<Block<'_>> = Vec::new();
    // Where the line begins, in characters, and whether the last block goes on.
    let (mut begin, mut is_open) = (0, false);
    for (line, number) in text.split('\n').zip(1..) {
        let comment = line.trim_start();
        let at = begin + line.chars().count() - comment.chars().count();
        let documentation = marker(comment).filter(|_| kinds.get(at) == Some(&Kind::Comment));
        if let Some(marker) = documentation {
            let content = comment[marker.len()..].trim();
            match blocks.last_mut() {
                Some(block) if is_open && block.marker == marker => block.lines.push(content),
                _ => blocks.push(Block { line: number, marker, lines: vec![content] }),
            }
        }
        is_open = documentation.is_some();
        begin += line.chars().count() + 1;
    }
    blocks
}

/// The marker of a documentation comment. Four slashes begin an ordinary comment.
fn marker(comment: &str) -> Option<&'static str> {
    let is_ordinary = comment.starts_with("////");
    ["///", "//!"].into_iter().find(|marker| comment.starts_with(marker) && !is_ordinary)
}

#[cfg(test)]
mod tests {
    use super::short_blocks;
    use crate::TextFile;

    fn short(text: &str) -> Vec<String> {
        short_blocks(&TextFile { path: "a.rs".to_owned(), text: text.to_owned() })
    }

    #[test]
    fn blocks_of_three_words_or_fewer_are_short() {
        for (text, expected) in [
            ("/// Its type.\nx: u8,", "a.rs:1: Its type."),
            ("\n    /// Bytes per second.\n    x: u8,", "a.rs:2: Bytes per second."),
            ("//! Tests.\n\nuse a;", "a.rs:1: Tests."),
            ("///\nfn f() {}", "a.rs:1: "),
            ("/// <https://example.com/a>\nfn f() {}", "a.rs:1: <https://example.com/a>"),
            ("/// As [`ask`].\nfn f() {}", "a.rs:1: As [`ask`]."),
            ("/// A - b & c\nfn f() {}", "a.rs:1: A - b & c"),
            (
                "/// # Errors\n/// [`Error::Client`].\nfn f() {}",
                "a.rs:1: # Errors [`Error::Client`].",
            ),
            (
                "/// ```\n/// let a_long = example(of, code);\n/// ```\nfn f() {}",
                "a.rs:1: ``` let a_long = example(of, code); ```",
            ),
        ] {
            assert_eq!(short(text), [expected], "{text}");
        }
    }

    #[test]
    fn longer_blocks_and_other_comments_are_accepted() {
        for text in [
            "/// Number of free bytes.\nx: u8,",
            "/// The rate in\n/// bytes per second.\nx: u8,",
            "/// Returns the rate.\n///\n/// # Errors\n/// The file is missing.\nfn f() {}",
            "/// The rate of it:\n/// ```\n/// f()\n/// ```\nfn f() {}",
            "// Its type.\nx: u8,",
            "//// Its type.\nx: u8,",
            "/* /// Its type. */\nx: u8,",
            "const A: &str = \"\n/// Its type.\n\";",
            "const A: &str = r#\"\n/// Its type.\n\"#;",
            "#[doc = \"Type.\"]\nx: u8,",
            "",
        ] {
            assert_eq!(short(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn attribute_code_and_another_marker_end_a_block() {
        let text = "//! The first file of all.\n/// A type.\nstruct A;\n/// Of two words\n#[derive(A)]\n\
                    /// and three more.\nstruct B;";
        let expected = ["a.rs:2: A type.", "a.rs:4: Of two words", "a.rs:6: and three more."];
        assert_eq!(short(text), expected);
    }
}

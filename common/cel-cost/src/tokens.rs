//! The tokens of an expression in the Common Expression Language, with their places in its text.

/// A token and its place in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A variable, a field, a function or a keyword.
    Name,
    /// A string, bytes or a number.
    Literal,
    /// An opening bracket: `(`, `[` or `{`.
    Open(u8),
    /// A closing bracket: `)`, `]` or `}`.
    Close,
    Comma,
    Dot,
    /// Any other token, such as `+` or `?`.
    Operator,
}

/// Splits an expression. Text that is no expression gives some tokens: the API server and the tests
/// of `hack/devcluster` report what does not compile.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut all: Vec<Token> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let follows_value = all
            .last()
            .is_some_and(|it| matches!(it.kind, Kind::Name | Kind::Literal | Kind::Close));
        let kind = match byte {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = end_of(bytes, at, |it| it != b'\n');
                continue;
            }
            _ if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'"' | b'\'' => {
                at = end_of_string(bytes, at, false);
                Kind::Literal
            }
            b'.' if !follows_value && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                at = end_of_number(bytes, at);
                Kind::Literal
            }
            b'0'..=b'9' => {
                at = end_of_number(bytes, at);
                Kind::Literal
            }
            b'`' => {
                at = (end_of(bytes, at + 1, |it| it != b'`') + 1).min(bytes.len());
                Kind::Name
            }
            _ if is_word(byte) => {
                at = end_of(bytes, at, is_word);
                match bytes.get(at) {
                    Some(b'"' | b'\'') if is_prefix(&bytes[start..at]) => {
                        let is_raw =
                            bytes[start..at].iter().any(|it| it.eq_ignore_ascii_case(&b'r'));
                        at = end_of_string(bytes, at, is_raw);
                        Kind::Literal
                    }
                    _ => Kind::Name,
                }
            }
            _ => {
                at += 1;
                match byte {
                    b'(' | b'[' | b'{' => Kind::Open(byte),
                    b')' | b']' | b'}' => Kind::Close,
                    b',' => Kind::Comma,
                    b'.' => Kind::Dot,
                    _ => Kind::Operator,
                }
            }
        };
        all.push(Token { kind, start, end: at });
    }
    all
}

/// Letters outside ASCII are only in strings and comments of valid expressions.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Whether a word before a quote belongs to the string.
fn is_prefix(word: &[u8]) -> bool {
    word.len() <= 2 && word.iter().all(|it| matches!(it, b'r' | b'R' | b'b' | b'B'))
}

fn end_of(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let length = bytes.iter().skip(from).take_while(|it| belongs(**it)).count();
    from + length
}

fn end_of_number(bytes: &[u8], from: usize) -> usize {
    end_of(bytes, from, |it| it.is_ascii_alphanumeric() || it == b'.')
}

/// The place after a string whose first quote is at `from`.
fn end_of_string(bytes: &[u8], from: usize, is_raw: bool) -> usize {
    let quote = bytes[from];
    let is_triple = bytes[from..].starts_with(&[quote; 3]);
    let end: &[u8] = if is_triple { &[quote; 3] } else { &[quote] };
    let mut at = from + end.len();
    while at < bytes.len() {
        if bytes[at..].starts_with(end) {
            return at + end.len();
        }
        at += if bytes[at] == b'\\' && !is_raw { 2 } else { 1 };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| &text[token.start..token.end]).collect()
    }

    #[test]
    fn strings_and_comments_hide_what_is_in_them() {
        assert_eq!(texts(r"'it\'s' + r'\' + x"), [r"'it\'s'", "+", r"r'\'", "+", "x"]);
        assert_eq!(texts("'''a'b''' // c + d\n+ \"e\""), ["'''a'b'''", "+", "\"e\""]);
        assert_eq!(
            texts("self.a.`b-c`[1.5] == .5"),
            ["self", ".", "a", ".", "`b-c`", "[", "1.5", "]", "=", "=", ".5"]
        );
        for text in ["'", "r\"", "`", "'\\", "ä", "1.", "'''"] {
            assert!(!tokens(text).is_empty(), "{text}");
        }
    }
}

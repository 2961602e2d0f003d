//! A small lexer for Rust: which characters are code, comment or literal, and which lines belong to
//! tests. It accepts every file that the compiler accepts, and does not parse further.

use std::collections::BTreeSet;

/// What a character of a Rust file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Code,
    Comment,
    /// A string or character literal, with its quotes.
    Literal,
}

/// A Rust file, character by character.
#[derive(Debug, Clone)]
pub struct Source {
    pub characters: Vec<char>,
    /// The kind of each character.
    pub kinds: Vec<Kind>,
}

impl Source {
    pub fn new(text: &str) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let mut kinds = vec![Kind::Code; characters.len()];
        let mut at = 0;
        while at < characters.len() {
            let (kind, end) = token(&characters, at);
            kinds[at..end].fill(kind);
            at = end;
        }
        Self { characters, kinds }
    }

    /// The text with everything but code replaced by spaces. Lines stay where they are.
    pub fn code(&self) -> String {
        let both = self.characters.iter().zip(&self.kinds);
        both.map(|(&c, &kind)| if kind == Kind::Code || c == '\n' { c } else { ' ' }).collect()
    }
}

/// The kind of what begins here, and where it ends.
fn token(characters: &[char], at: usize) -> (Kind, usize) {
    let next = |ahead: usize| characters.get(at + ahead).copied();
    let follows_name = at > 0 && is_name(characters[at - 1]);
    match characters[at] {
        '/' if next(1) == Some('/') => (Kind::Comment, find(characters, at, '\n')),
        '/' if next(1) == Some('*') => (Kind::Comment, block_comment(characters, at)),
        '"' => (Kind::Literal, quoted(characters, at, '"')),
        'r' | 'b' | 'c' if !follows_name => match literal_prefix(characters, at) {
            Some(end) => (Kind::Literal, end),
            None => (Kind::Code, at + 1),
        },
        // A lifetime is a quote and a name without a quote after its first character.
        '\'' if next(1) == Some('\\') || next(2) == Some('\'') => {
            (Kind::Literal, quoted(characters, at, '\''))
        }
        _ => (Kind::Code, at + 1),
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn find(characters: &[char], from: usize, wanted: char) -> usize {
    let offset = characters[from..].iter().position(|&c| c == wanted);
    offset.map_or(characters.len(), |offset| from + offset)
}

/// The end of a block comment, which may contain others.
fn block_comment(characters: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at < characters.len() {
        match (characters[at], characters.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The end of a literal with escapes, whose opening quote is at `from`.
fn quoted(characters: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < characters.len() {
        match characters[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    characters.len()
}

/// The end of `b'x'`, `b"..."`, `c"..."`, `r"..."`, `r#"..."#`, `br"..."`, if one begins here.
fn literal_prefix(characters: &[char], from: usize) -> Option<usize> {
    let mut at = from;
    if matches!(characters[at], 'b' | 'c') {
        at += 1;
    }
    let is_raw = characters.get(at) == Some(&'r');
    if !is_raw {
        return match characters.get(at) {
            Some(&quote @ '"') if at > from => Some(quoted(characters, at, quote)),
            Some(&quote @ '\'') if at > from && characters[from] == 'b' => {
                Some(quoted(characters, at, quote))
            }
            _ => None,
        };
    }
    at += 1;
    let hashes = characters[at..].iter().take_while(|&&c| c == '#').count();
    at += hashes;
    if characters.get(at) != Some(&'"') {
        return None;
    }
    at += 1;
    while at < characters.len() {
        let is_end = characters[at] == '"'
            && characters[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
        at += 1;
        if is_end {
            return Some(at + hashes);
        }
    }
    Some(characters.len())
}

/// Code as [`Source::code`] gives it, with the items below `#[cfg(test)]` replaced by spaces; and
/// the names of the modules that are for tests only and are in files of their own.
pub fn without_tests(code: &str) -> (String, Vec<String>) {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let (mut kept, mut modules) = (String::with_capacity(code.len()), Vec::new());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once(ATTRIBUTE) {
        kept.push_str(before);
        let end = item_end(after);
        let item = &after[..end];
        if let Some(name) = item.trim_end().strip_suffix(';').and_then(module_name) {
            modules.push(name);
        }
        let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
        kept.extend(ATTRIBUTE.chars().chain(item.chars()).map(blank));
        rest = &after[end..];
    }
    kept.push_str(rest);
    (kept, modules)
}

/// The names of the functions with the attribute `test` or `tokio::test`, in code as
/// [`Source::code`] gives it.
pub fn test_functions(code: &str) -> BTreeSet<String> {
    let attributes = ["#[test]", "#[tokio::test"];
    let after = attributes.iter().flat_map(|attribute| code.split(attribute).skip(1));
    let names = after.filter_map(|rest| {
        let (_, function) = rest.split_once("fn ")?;
        Some(function.chars().take_while(|&c| is_name(c)).collect::<String>())
    });
    // A macro that makes tests names them by a variable.
    names.filter(|name| !name.is_empty()).collect()
}

/// The name in `mod name`, after attributes and visibility.
fn module_name(declaration: &str) -> Option<String> {
    let (before, name) = declaration.rsplit_once(char::is_whitespace)?;
    before.trim_end().ends_with("mod").then(|| name.to_owned())
}

/// Where the item ends that begins here: at its `;`, or after its braces.
pub(crate) fn item_end(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::{Source, test_functions, without_tests};

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "a /* b /* c */ d */ e // f\n\"g \\\" h\" r#\"i \" j\"# 'k' b\"l\" '\\'' m";
        let code = Source::new(text).code();
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "e", "m"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        let text = "fn f<'a>(r: &'a str, br: u8) -> r#type { bar(\"x\") }";
        let code = Source::new(text).code();
        assert_eq!(code, text.replace("\"x\"", "   "));
    }

    #[test]
    fn test_items_are_removed_and_lines_stay() {
        let text = "use a;\n#[cfg(test)]\nmod tests {\n    fn f() { g(); }\n}\nuse b;\n\
            #[cfg(test)]\n#[path = \"x\"]\npub mod extra;\nuse c;\n";
        let (code, modules) = without_tests(&Source::new(text).code());
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>(),
            ["use", "a;", "use", "b;", "use", "c;"]
        );
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(modules, ["extra"]);
    }

    #[test]
    fn only_functions_with_a_test_attribute_are_tests() {
        let text = "#[test]\nfn a() {}\n#[tokio::test(flavor = \"x\")]\n/// fn no\nasync fn b() {}\n\
            fn c() {}\n// #[test]\nfn d() {}\nproptest! {\n    #[test]\n    #[ignore]\n    \
            fn e(x in 0..2) {}\n}\nmacro_rules! m {() => {#[tokio::test]\nasync fn $test() {}};}\n";
        assert!(test_functions(&Source::new(text).code()).iter().eq(["a", "b", "e"]));
    }
}

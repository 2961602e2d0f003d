//! Finds words of the private vocabulary that the project gave up for the field's terms.
//!
//! Words are compared as whole words without regard to case; identifiers are split at `_` and at
//! capital letters, so that `wakeNeighbours`, `wake_neighbours` and "wake neighbours" are the same.

use crate::{
    TextFile,
    source::{Kind, Source},
};

/// Words that are wrong everywhere.
pub const WORDS: &[&str] = &[
    "anew",
    "depot",
    "depots",
    "desk",
    "desks",
    "dice",
    "edition",
    "editions",
    "fare",
    "fared",
    "fares",
    "farewell",
    "farewells",
    "goodbye",
    "heard",
    "hears",
    "manieth",
    "nudge",
    "nudges",
    "said",
    "says",
    "shelf",
    "speaks",
    "spoke",
    "spoken",
    "spool",
    "spools",
    "tells",
    "told",
    "truth",
    "unheard",
    "unspoken",
    "untold",
    "wakes",
    "whatever",
    "woke",
    "woken",
];

/// Words that are wrong in identifiers. In prose they have ordinary meanings.
pub const IDENTIFIERS: &[&str] = &[
    "bed",
    "beds",
    "blamed",
    "deposed",
    "ears",
    "eyes",
    "forgive",
    "greet",
    "look",
    "looks",
    "say",
    "saying",
    "speak",
    "standing",
    "strangers",
    "tell",
    "wake",
];

/// Whole names of functions, variables and fields in Rust that name nothing.
pub const EMPTY_NAMES: &[&str] = &["found", "of"];

/// Phrases that are wrong everywhere.
pub const PHRASES: &[&str] = &[
    "an agent who",
    "as ever",
    "be had",
    "for ever",
    "goes on",
    "going on",
    "is had",
    "it is for",
    "now and then",
    "stands before",
    "stands there",
    "would have it",
];

/// One use of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// Number of the line, from 1.
    pub line: usize,
    pub word: &'static str,
    /// The text of the line.
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.word, self.text.trim())
    }
}

/// A use that is right: an imitated message, a quoted verb, a key of another program's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// A path; `*` at one of its ends stands for anything.
    pub path: String,
    pub word: String,
    /// What else the line has to contain; empty if any line will do.
    pub text: String,
    pub reason: String,
}

impl Exception {
    /// Parses `path | word | text | reason`; `None` if a part other than the text is missing.
    pub fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(4, " | ").map(|part| part.trim().to_owned());
        let (path, word, text, reason) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_complete = !path.is_empty() && !word.is_empty() && !reason.is_empty();
        is_complete.then_some(Self { path, word, text, reason })
    }

    pub fn covers(&self, finding: &Finding) -> bool {
        let is_path = match (self.path.strip_prefix('*'), self.path.strip_suffix('*')) {
            (Some(end), _) => finding.path.ends_with(end),
            (_, Some(beginning)) => finding.path.starts_with(beginning),
            _ => finding.path == self.path,
        };
        is_path && finding.word == self.word && finding.text.contains(&self.text)
    }
}

/// Whether files of this path are checked: texts that people write and read. Generated files, data
/// and licences are not.
pub fn is_checked(path: &str) -> bool {
    const EXTENSIONS: &[&str] = &[
        "acl", "conf", "env", "go", "md", "preset", "py", "rs", "service", "sh", "toml", "tpl",
        "txt", "yaml", "yml",
    ];
    const NAMES: &[&str] = &["Dockerfile", "Dockerfile.dockerignore", "NOTICE", "run"];
    // This crate lists the words; the CRDs are generated from `common/api`.
    const LEFT_OUT: &[&str] = &["hack/repo-checks", "crds", "build/deploy/crds"];
    let name = path.rsplit('/').next().unwrap_or(path);
    !crate::is_within(path, LEFT_OUT)
        && !path.contains("/golden/")
        && (EXTENSIONS.contains(&crate::extension(path)) || NAMES.contains(&name))
}

/// The words of the vocabulary in a file, by line.
pub fn findings(file: &TextFile) -> Vec<Finding> {
    let characters: Vec<char> = file.text.chars().collect();
    let is_rust = crate::extension(&file.path) == "rs";
    let kinds =
        if is_rust { Source::new(&file.text).kinds } else { vec![Kind::Comment; characters.len()] };
    let (mut findings, mut begin) = (Vec::new(), 0);
    for (index, line) in file.text.split('\n').enumerate() {
        let end = begin + line.chars().count();
        let words = words(&characters[begin..end], &kinds[begin..end]);
        let mut add = |word| {
            let text = line.to_owned();
            findings.push(Finding { path: file.path.clone(), line: index + 1, word, text });
        };
        for word in WORDS {
            if words.iter().any(|(text, _)| text == word) {
                add(word);
            }
        }
        for word in IDENTIFIERS {
            if words.iter().any(|(text, kind)| text == word && *kind == Kind::Code) {
                add(word);
            }
        }
        for name in EMPTY_NAMES {
            if is_rust && has_name(&characters[begin..end], &kinds[begin..end], name) {
                add(name);
            }
        }
        for phrase in PHRASES {
            let parts: Vec<&str> = phrase.split(' ').collect();
            if words.windows(parts.len()).any(|texts| texts.iter().map(|(text, _)| text).eq(&parts))
            {
                add(phrase);
            }
        }
        begin = end + 1;
    }
    findings
}

/// Whether a line of Rust has the whole identifier `name`. `option::of` is a strategy of proptest.
fn has_name(characters: &[char], kinds: &[Kind], name: &str) -> bool {
    let code: String = (characters.iter().zip(kinds))
        .map(|(&c, &kind)| if kind == Kind::Code { c } else { ' ' })
        .collect();
    let code = code.replace("option::of", "");
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|identifier| identifier == name)
}

/// The words of a line in lower case, with what each belongs to.
fn words(characters: &[char], kinds: &[Kind]) -> Vec<(String, Kind)> {
    let mut words: Vec<(String, Kind)> = Vec::new();
    let mut previous: Option<char> = None;
    for (at, &c) in characters.iter().enumerate() {
        let continues = previous.is_some_and(|previous| {
            let is_hump = c.is_uppercase()
                && (previous.is_lowercase()
                    || characters.get(at + 1).is_some_and(|next| next.is_lowercase()));
            previous.is_alphabetic() && !is_hump
        });
        previous = Some(c);
        if !c.is_alphabetic() {
            continue;
        }
        match words.last_mut() {
            Some((word, _)) if continues => word.extend(c.to_lowercase()),
            _ => words.push((c.to_lowercase().collect(), kinds[at])),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{Exception, Finding, findings};
    use crate::TextFile;

    fn words(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let file = TextFile { path: path.to_owned(), text: text.to_owned() };
        findings(&file).into_iter().map(|finding| (finding.line, finding.word)).collect()
    }

    #[test]
    fn identifiers_are_split_into_words() {
        let text =
            "fn f(unheardOf: SAID, x: WasTold) {\n    wake_neighbours(embedded, \"bed\");\n}";
        let expected = [(1, "said"), (1, "told"), (1, "unheard"), (2, "wake")];
        assert_eq!(words("a.rs", text), expected);
    }

    #[test]
    fn prose_may_use_words_that_identifiers_may_not() {
        assert_eq!(
            words("a.rs", "// a test bed; look it up\nlet bed = look;"),
            [(2, "bed"), (2, "look")]
        );
        assert_eq!(words("a.md", "say it, look it up, and wait for ever"), [(1, "for ever")]);
    }

    #[test]
    fn whole_names_that_name_nothing_are_listed() {
        assert_eq!(
            words(
                "a.rs",
                "let found = Label::of(\"of\"); // found one of two\nlet s = option::of(a);"
            ),
            [(1, "found"), (1, "of")]
        );
        assert_eq!(words("a.rs", "let found_at = url_of(is_found);"), []);
        assert_eq!(words("a.sh", "found=$(first of two)"), []);
    }

    #[test]
    fn words_within_other_words_are_not_found() {
        assert_eq!(words("a.md", "welfare, unsaid, retold, tooltips, foretells, bookshelf"), []);
    }

    #[test]
    fn exception_covers_only_its_path_word_and_text() {
        let exception = Exception::parse("a/* | said | \"said\" | a quote");
        let exception = exception.expect("the entry is complete");
        let finding = |path: &str, text: &str| Finding {
            path: path.to_owned(),
            line: 1,
            word: "said",
            text: text.to_owned(),
        };
        assert!(exception.covers(&finding("a/b.md", "\"said\"")));
        assert!(!exception.covers(&finding("b/a.md", "\"said\"")));
        assert!(!exception.covers(&finding("a/b.md", "said")));
        assert_eq!(Exception::parse("a | said | text |"), None);
    }
}

//! Reads the paths to other modules in a Rust file: `use` declarations, and paths in code that
//! begin with `crate`, `super` or `self`.

use std::collections::{BTreeMap, BTreeSet};

/// The names from the crate's root to a module, or to an item in one.
pub type Path = Vec<String>;

/// A use of one module by another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// The module in which the path is written.
    pub from: Path,
    /// The module or item that the path names.
    pub to: Path,
}

pub fn join(parent: &[String], name: &str) -> Path {
    parent.iter().cloned().chain([name.to_owned()]).collect()
}

/// Reads the paths in one file.
pub struct Scan<'a> {
    tokens: Vec<(usize, &'a str)>,
    file: &'a str,
    modules: &'a BTreeSet<Path>,
    /// The module at the present token: `mod name { ... }` nests.
    module: Path,
    pub references: Vec<Reference>,
    /// What `use` makes of a name in a module.
    pub names: BTreeMap<(Path, String), Path>,
}

impl<'a> Scan<'a> {
    pub fn new(
        code: &'a str,
        file: &'a str,
        module: &[String],
        modules: &'a BTreeSet<Path>,
    ) -> Self {
        let (references, names) = (Vec::new(), BTreeMap::new());
        Self { tokens: tokens(code), file, modules, module: module.to_vec(), references, names }
    }

    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |&(_, text)| text)
    }

    pub fn run(&mut self) {
        let (mut depth, mut nested) = (0_usize, Vec::new());
        let mut at = 0;
        while at < self.tokens.len() {
            match self.text(at) {
                "mod" if self.text(at + 2) == "{" => {
                    nested.push(depth);
                    self.module.push(self.text(at + 1).to_owned());
                    depth += 1;
                    at += 2;
                }
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if nested.last() == Some(&depth) {
                        nested.pop();
                        self.module.pop();
                    }
                }
                "use" => at = self.tree(at + 1, None, true).saturating_sub(1),
                "crate" | "super" | "self"
                    if self.text(at + 1) == "::" && (at == 0 || self.text(at - 1) != "::") =>
                {
                    at = self.tree(at, None, false).saturating_sub(1);
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads `a::b`, and with `use` also `a::{b, c as d}`; returns the token behind it. Before the
    /// first name the prefix is `None`.
    fn tree(&mut self, mut at: usize, prefix: Option<Path>, is_use: bool) -> usize {
        let mut path = prefix;
        let mut last = String::new();
        loop {
            let text = self.text(at);
            if text == "{" && is_use {
                at += 1;
                while !matches!(self.text(at), "}" | "") {
                    let next = self.tree(at, path.clone(), true);
                    at = if self.text(next) == "," || next == at { next + 1 } else { next };
                }
                return at + 1;
            }
            match (text, &mut path) {
                ("crate", None) => path = Some(Path::new()),
                ("self", None) => path = Some(self.module.clone()),
                ("super", None) => {
                    let above = self.module.len().saturating_sub(1);
                    path = Some(self.module[..above].to_vec());
                }
                ("super", Some(path)) => {
                    path.pop();
                }
                ("self", Some(path)) => last = path.last().cloned().unwrap_or_default(),
                ("*", Some(_)) => {}
                (name, path) if is_name(name) => {
                    match path {
                        Some(path) => path.push(name.to_owned()),
                        // Another crate, or a module below this one.
                        None if self.modules.contains(&join(&self.module, name)) => {
                            *path = Some(join(&self.module, name));
                        }
                        None => return self.skip_tree(at, is_use),
                    }
                    name.clone_into(&mut last);
                }
                _ => break,
            }
            at += 1;
            if self.text(at) != "::" {
                break;
            }
            at += 1;
        }
        let line = self.tokens.get(at.saturating_sub(1)).map_or(0, |&(line, _)| line);
        if is_use && self.text(at) == "as" {
            self.text(at + 1).clone_into(&mut last);
            at += 2;
        }
        if let Some(to) = path {
            if is_use && !last.is_empty() {
                self.names.insert((self.module.clone(), last), to.clone());
            }
            let (file, from) = (self.file.to_owned(), self.module.clone());
            self.references.push(Reference { file, line, from, to });
        }
        at
    }

    /// The token behind a path into another crate.
    fn skip_tree(&self, mut at: usize, is_use: bool) -> usize {
        let mut depth = 0_usize;
        loop {
            match self.text(at) {
                "{" if is_use => depth += 1,
                "}" if depth > 0 => depth -= 1,
                "," if depth > 0 => {}
                "" | "," | ";" | "}" => return at,
                _ if !is_use => return at + 1,
                _ => {}
            }
            at += 1;
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and other characters one by one, with their lines from 1.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let (mut tokens, mut line, mut rest) = (Vec::new(), 1, code);
    while let Some(c) = rest.chars().next() {
        let length = if c.is_alphanumeric() || c == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if c == '\n' {
            line += 1;
        } else if !c.is_whitespace() {
            tokens.push((line, token));
        }
        rest = after;
    }
    tokens
}

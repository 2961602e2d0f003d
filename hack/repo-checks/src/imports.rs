//! Finds modules of a crate that depend on each other in a cycle.
//!
//! At each depth, the modules directly below one module are checked against each other: a file is
//! one, and a folder with all that is in it. What a module uses through a re-export counts as a use
//! of the module that has it. Code that only tests compile is left out.
//!
//! The module above them (`lib.rs`, `main.rs`, `mod.rs`) composes them and is no part of their graph:
//! it may use all of them, and they may use what it defines, such as a type whose methods they have.
//! A glob import of it would hide what is used, and clippy refuses it (`wildcard_imports`).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    TextFile,
    paths::{Path, Reference, Scan, join},
    source::{Source, without_tests},
};

/// Modules that depend on each other, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The module above them, such as `crate::controllers`.
    pub parent: String,
    /// The modules of the cycle, sorted.
    pub members: Vec<String>,
    /// `a -> b: file:line: path`, a few per pair.
    pub edges: Vec<String>,
}

impl std::fmt::Display for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cycle in {}: {}", self.parent, self.members.join(", "))?;
        self.edges.iter().try_for_each(|edge| write!(f, "\n  {edge}"))
    }
}

/// The cycles in a crate, given its source files; `folder` is the one that has `lib.rs` or `main.rs`.
pub fn cycles(folder: &str, files: &[TextFile]) -> Vec<Cycle> {
    let krate = Crate::read(folder, files);
    let parents: BTreeSet<&[String]> =
        krate.modules.iter().filter_map(|path| Some(path.split_last()?.1)).collect();
    parents.into_iter().flat_map(|parent| krate.cycles_below(parent)).collect()
}

struct Crate {
    modules: BTreeSet<Path>,
    references: Vec<Reference>,
    /// What `use` makes of a name in a module.
    names: BTreeMap<(Path, String), Path>,
}

impl Crate {
    fn read(folder: &str, files: &[TextFile]) -> Self {
        let folder = format!("{}/", folder.trim_end_matches('/'));
        let mut sources = Vec::new();
        let mut tests: BTreeSet<Path> = BTreeSet::new();
        for file in files {
            let Some(path) = file.path.strip_prefix(&folder) else { continue };
            let Some(module) = module_path(path) else { continue };
            let (code, for_tests) = without_tests(&Source::new(&file.text).code());
            tests.extend(for_tests.into_iter().map(|name| join(&module, &name)));
            sources.push((file.path.clone(), module, code));
        }
        sources.retain(|(_, module, _)| !tests.iter().any(|test| module.starts_with(test)));
        let modules: BTreeSet<Path> = sources.iter().map(|(_, module, _)| module.clone()).collect();
        let (mut references, mut names) = (Vec::new(), BTreeMap::new());
        for (file, module, code) in sources {
            let mut scan = Scan::new(&code, &file, &module, &modules);
            scan.run();
            references.append(&mut scan.references);
            names.append(&mut scan.names);
        }
        Self { modules, references, names }
    }

    /// The module that a path leads to, through `use` in the modules on its way.
    fn module_of(&self, path: &[String]) -> Path {
        let mut path = path.to_vec();
        // Names that `use` brings in may be such names again; a loop of them ends here.
        for _ in 0..8 {
            let known =
                (0..=path.len()).rev().find(|&length| self.modules.contains(&path[..length]));
            let (module, rest) = path.split_at(known.unwrap_or(0));
            let Some(name) = rest.first() else { break };
            let Some(target) = self.names.get(&(module.to_vec(), name.clone())) else {
                return module.to_vec();
            };
            if *target == path {
                return module.to_vec();
            }
            path = target.iter().chain(&rest[1..]).cloned().collect();
        }
        path
    }

    /// The cycles among the modules directly below one.
    fn cycles_below(&self, parent: &[String]) -> Vec<Cycle> {
        let depth = parent.len();
        let mut edges: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
        for reference in &self.references {
            let to = self.module_of(&reference.to);
            let is_inside = |path: &[String]| path.len() > depth && path.starts_with(parent);
            if !is_inside(&reference.from) || !is_inside(&to) || reference.from[depth] == to[depth]
            {
                continue;
            }
            let Reference { file, line, .. } = reference;
            let place = format!("{file}:{line}: crate::{}", reference.to.join("::"));
            edges.entry((&reference.from[depth], to[depth].clone())).or_default().push(place);
        }
        let pairs: BTreeSet<(&str, &str)> = edges.keys().map(|(from, to)| (*from, &**to)).collect();
        let mut cycles = Vec::new();
        for members in groups(&pairs) {
            let inside = edges
                .iter()
                .filter(|((from, to), _)| members.contains(*from) && members.contains(to.as_str()));
            let shown = inside.flat_map(|((from, to), places)| {
                places.iter().take(3).map(move |place| format!("{from} -> {to}: {place}"))
            });
            cycles.push(Cycle {
                parent: std::iter::once("crate")
                    .chain(parent.iter().map(|n| &**n))
                    .collect::<Vec<_>>()
                    .join("::"),
                edges: shown.collect(),
                members: members.into_iter().map(str::to_owned).collect(),
            });
        }
        cycles
    }
}

/// The module of a file below the source folder; `None` for another program of the crate.
fn module_path(file: &str) -> Option<Path> {
    let mut parts: Path = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts[0] == "bin" {
        return None;
    }
    if parts.last().is_some_and(|name| name == "mod") || parts == ["lib"] || parts == ["main"] {
        parts.pop();
    }
    Some(parts)
}

/// The sets of more than one node in which each reaches each.
fn groups<'a>(edges: &BTreeSet<(&'a str, &'a str)>) -> Vec<BTreeSet<&'a str>> {
    let reachable = |start: &'a str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(node) = left.pop() {
            let next = edges.iter().filter(|(from, _)| *from == node).map(|&(_, to)| to);
            left.extend(next.filter(|to| seen.insert(*to)));
        }
        seen
    };
    let nodes: BTreeSet<&str> = edges.iter().map(|&(from, _)| from).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        nodes.iter().map(|&node| (node, reachable(node))).collect();
    let mut groups: Vec<BTreeSet<&str>> = Vec::new();
    for (&node, reached_by_node) in &reached {
        let back = |other: &&str| reached.get(other).is_some_and(|set| set.contains(node));
        let group: BTreeSet<&str> = reached_by_node.iter().copied().filter(back).collect();
        if group.len() > 1 && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::cycles;
    use crate::TextFile;

    fn cycles_in(files: &[(&str, &str)]) -> Vec<String> {
        let file = |&(path, text): &(&str, &str)| TextFile {
            path: format!("x/src/{path}"),
            text: text.to_owned(),
        };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        cycles("x/src", &files).iter().map(ToString::to_string).collect()
    }

    /// A case, the files of a crate, and the module above each cycle with the cycle's members.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

    const CASES: &[Case] = &[
        (
            "one way",
            &[("lib.rs", "use a::X; use b::Y;"), ("a.rs", "use crate::b::Y;"), ("b.rs", "")],
            &[],
        ),
        (
            "comments and tests",
            &[
                ("lib.rs", "mod a; mod b; #[cfg(test)] mod c;"),
                ("a.rs", "use crate::b::Y;"),
                ("b.rs", "// crate::a::X\n#[cfg(test)]\nmod tests { use crate::a::X; }"),
                ("c.rs", "use crate::a::X;"),
            ],
            &[],
        ),
        (
            "files of the root",
            &[("lib.rs", ""), ("a.rs", "use crate::b::Y;"), ("b.rs", "fn f(x: crate::a::X) {}")],
            &["crate: a, b"],
        ),
        (
            "files of a program",
            &[
                ("main.rs", "mod a; mod b;"),
                ("a.rs", "use super::b::Y;"),
                ("b.rs", "use super::a;"),
            ],
            &["crate: a, b"],
        ),
        (
            "another program of the crate",
            &[("lib.rs", ""), ("a.rs", "use crate::bin::b;"), ("bin/b.rs", "use crate::a;")],
            &[],
        ),
        (
            "files of a folder",
            &[
                ("lib.rs", ""),
                ("k/mod.rs", ""),
                ("k/a.rs", "use super::b;"),
                ("k/b.rs", "use super::a;"),
            ],
            &["crate::k: a, b"],
        ),
        (
            "three files at the third depth",
            &[
                ("lib.rs", ""),
                ("k/mod.rs", ""),
                ("k/l/mod.rs", ""),
                ("k/l/a.rs", "use super::b::X;"),
                ("k/l/b.rs", "use crate::k::l::c::Y;"),
                ("k/l/c.rs", "fn f() { super::a::f(); }"),
                ("k/l/d.rs", "use super::a::X;"),
            ],
            &["crate::k::l: a, b, c"],
        ),
        (
            "a file and a folder, through the folder's files",
            &[
                ("lib.rs", ""),
                ("k/a.rs", "use super::b::c::X;"),
                ("k/b/c.rs", "use super::super::a::Y;"),
            ],
            &["crate::k: a, b"],
        ),
        (
            "a folder whose children use it",
            &[
                ("lib.rs", ""),
                ("k/mod.rs", "mod a; use a::X; pub struct K;"),
                ("k/a.rs", "use super::K; use crate::k::K as L;"),
            ],
            &[],
        ),
        (
            "an inline module is a part of its file",
            &[
                ("lib.rs", ""),
                ("a.rs", "mod inner { use super::X; use crate::b::Y; }\nuse self::inner::Z;"),
                ("b.rs", ""),
            ],
            &[],
        ),
        (
            "two cycles",
            &[
                ("lib.rs", ""),
                ("k/a.rs", "use super::b;"),
                ("k/b.rs", "use super::a; use crate::l;"),
                ("l.rs", "use crate::k::a;"),
            ],
            &["crate: k, l", "crate::k: a, b"],
        ),
    ];

    #[test]
    fn cycles_are_found_at_every_depth() {
        for (case, files, expected) in CASES {
            let heads = cycles_in(files).into_iter().map(|cycle| {
                let head = cycle.lines().next().unwrap_or_default();
                head.trim_start_matches("cycle in ").to_owned()
            });
            assert_eq!(heads.collect::<Vec<_>>(), *expected, "{case}");
        }
    }

    #[test]
    fn cycle_names_its_members_and_the_places_of_their_uses() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod deep;"),
            ("a/deep.rs", "use std::fmt;\nuse crate::{b::{self, inner::X as Y}, c};"),
            ("b.rs", "pub mod inner;"),
            ("b/inner.rs", "fn f() -> super::super::a::deep::T { todo!() }"),
            ("c.rs", ""),
        ];
        let expected = "cycle in crate: a, b\n  \
            a -> b: x/src/a/deep.rs:2: crate::b\n  \
            a -> b: x/src/a/deep.rs:2: crate::b::inner::X\n  \
            b -> a: x/src/b/inner.rs:1: crate::a::deep::T";
        assert_eq!(cycles_in(&files), [expected]);
    }

    #[test]
    fn cycle_through_a_reexport_is_found() {
        let files = [
            ("lib.rs", ""),
            ("k/mod.rs", "mod a; mod b;\npub use self::a::X;\npub use b::Y;"),
            ("k/a.rs", "use super::Y;"),
            ("k/b/mod.rs", "mod c;"),
            ("k/b/c.rs", "use crate::k::X;"),
        ];
        let cycles = cycles_in(&files);
        assert_eq!(cycles.len(), 1, "{cycles:?}");
        assert!(cycles[0].starts_with("cycle in crate::k: a, b\n"), "{}", cycles[0]);
    }
}

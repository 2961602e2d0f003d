//! Decides which names in an archive are taken: none that leaves the tree, and none that another
//! name, letter case aside, has taken. Making them is tree.rs's.

use std::{collections::HashMap, path::PathBuf, str};

use sha2::{Digest as _, Sha256};

/// What file systems take, and more than any model needs.
const LONGEST_PART: usize = 255;
const LONGEST: usize = 1024;
const DEEPEST: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
}

/// The names of one archive. Holds 40 bytes or so for each, however long they are.
#[derive(Debug, Default)]
pub struct Names {
    /// By the name in lower case.
    seen: HashMap<Short, (Short, Kind)>,
}

/// The first half of a sha256: names that share it do not exist.
type Short = [u8; 16];

impl Names {
    /// Where the entry goes below the tree; none for the tree itself.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn admit(&mut self, name: &[u8], kind: Kind) -> Result<Option<PathBuf>, String> {
        let name = str::from_utf8(name).map_err(|_| "its name is not UTF-8")?;
        let parts = parts(name, kind)?;
        let Some(last) = parts.len().checked_sub(1) else {
            return if kind == Kind::Dir { Ok(None) } else { Err("it has no name".to_owned()) };
        };
        for depth in 0..=last {
            let kind = if depth == last { kind } else { Kind::Dir };
            self.take(&parts[..=depth].join("/"), kind, depth == last)?;
        }
        Ok(Some(parts.iter().collect()))
    }

    fn take(&mut self, path: &str, kind: Kind, is_entry: bool) -> Result<(), String> {
        let exact = short(path);
        let folded = short(&path.to_lowercase());
        match self.seen.get(&folded) {
            None => {
                self.seen.insert(folded, (exact, kind));
                Ok(())
            }
            Some((other, _)) if *other != exact => {
                Err(format!("`{path}` differs from another name in letter case only"))
            }
            Some((_, Kind::Dir)) if kind == Kind::Dir => Ok(()),
            Some((_, Kind::File)) if kind == Kind::File && is_entry => {
                Err("its name comes twice".to_owned())
            }
            Some(_) => Err(format!("`{path}` is both a file and a directory")),
        }
    }
}

fn short(text: &str) -> Short {
    let mut short = [0; 16];
    short.copy_from_slice(&Sha256::digest(text)[..16]);
    short
}

fn parts(name: &str, kind: Kind) -> Result<Vec<&str>, &'static str> {
    if name.starts_with('/') {
        return Err("its path is absolute");
    }
    if name.contains('\\') {
        return Err("its name holds a backslash");
    }
    if name.chars().any(char::is_control) {
        return Err("its name holds control characters");
    }
    if name.len() > LONGEST {
        return Err("its path is longer than 1024 bytes");
    }
    if kind == Kind::File && name.ends_with('/') {
        return Err("it is a file with the name of a directory");
    }
    let parts: Vec<&str> =
        name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("its path holds `..`");
    }
    if parts.iter().any(|part| part.len() > LONGEST_PART) {
        return Err("a part of its path is longer than 255 bytes");
    }
    if parts.len() > DEEPEST {
        return Err("its path is more than 32 directories deep");
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(names: &[(&str, Kind)]) -> Result<Option<PathBuf>, String> {
        let mut seen = Names::default();
        names
            .iter()
            .map(|(name, kind)| seen.admit(name.as_bytes(), *kind))
            .last()
            .unwrap_or(Ok(None))
    }

    #[test]
    fn plain_names_are_taken_once() {
        use Kind::{Dir, File};
        assert_eq!(admit(&[("./", Dir)]), Ok(None));
        assert_eq!(admit(&[("./a//b/./c", File)]), Ok(Some("a/b/c".into())));
        assert_eq!(admit(&[("a", Dir), ("a/", Dir), ("a/b", File)]), Ok(Some("a/b".into())));
        assert_eq!(admit(&[("a/b", File), ("a/..b", File)]), Ok(Some("a/..b".into())));
    }

    #[test]
    fn other_names_are_refused_with_their_reason() {
        use Kind::{Dir, File};
        let long = "x".repeat(256);
        let longer = format!("{}y", "x/".repeat(600));
        let deep = format!("{}y", "x/".repeat(32));
        let cases: [(&[(&str, Kind)], &str); 15] = [
            (&[("/etc/passwd", File)], "absolute"),
            (&[("../x", File)], "`..`"),
            (&[("a/../../x", File)], "`..`"),
            (&[("a/..", Dir)], "`..`"),
            (&[("..\\x", File)], "backslash"),
            (&[("a\nb", File)], "control"),
            (&[("", File)], "no name"),
            (&[("a/", File)], "name of a directory"),
            (&[("a", File), ("./a", File)], "twice"),
            (&[("Model", File), ("model", File)], "letter case"),
            (&[("A/x", File), ("a/y", File)], "letter case"),
            (&[("a", File), ("a/b", File)], "both"),
            (&[(&long, File)], "255"),
            (&[(&longer, File)], "1024"),
            (&[(&deep, File)], "deep"),
        ];
        for (names, why) in cases {
            let error = admit(names).expect_err(why);
            assert!(error.contains(why), "{names:?}: {error}");
        }
        assert!(Names::default().admit(b"a\xff", File).is_err_and(|error| error.contains("UTF-8")));
    }
}

//! The repositories of the hub: commits with files, and the branches and tags that name them.

use std::{collections::BTreeMap, fmt::Write as _};

use ring::digest::{Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// A repository with its commits.
#[derive(Debug, Clone, Default)]
pub struct Repository {
    pub(crate) id: String,
    /// The files by path, and whether they are large, by commit.
    pub(crate) commits: BTreeMap<String, BTreeMap<String, (Vec<u8>, bool)>>,
    /// The commits of branches.
    pub(crate) branches: BTreeMap<String, String>,
    /// The token that a request needs to see the repository.
    pub(crate) private: Option<String>,
    /// The token that a request needs to read files.
    pub(crate) gated: Option<String>,
    /// The former name, from which the hub redirects.
    pub(crate) former_id: Option<String>,
}

impl Repository {
    /// A repository without commits, such as `org/model`.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), ..Self::default() }
    }

    /// Adds a commit, to which the branch refers from now on. Files are large if their path ends with
    /// `.bin`.
    #[must_use]
    pub fn commit(mut self, branch: &str, files: &[(&str, &[u8])]) -> Self {
        let files: BTreeMap<_, _> = files
            .iter()
            .map(|(path, content)| {
                let is_large = path.rsplit('.').next() == Some("bin");
                ((*path).to_owned(), (content.to_vec(), is_large))
            })
            .collect();
        let text = format!("{} {files:?} {}", self.id, self.commits.len());
        let commit = hex(&SHA1_FOR_LEGACY_USE_ONLY, &[text.as_bytes()]);
        self.branches.insert(branch.to_owned(), commit.clone());
        self.commits.insert(commit, files);
        self
    }

    /// Hides the repository from requests without this token.
    #[must_use]
    pub fn private(self, token: &str) -> Self {
        Self { private: Some(token.to_owned()), ..self }
    }

    /// Refuses files to requests without this token.
    #[must_use]
    pub fn gated(self, token: &str) -> Self {
        Self { gated: Some(token.to_owned()), ..self }
    }

    /// Redirects from a former name.
    #[must_use]
    pub fn renamed_from(self, id: &str) -> Self {
        Self { former_id: Some(id.to_owned()), ..self }
    }

    /// The commit of a branch or of itself.
    pub fn resolve(&self, revision: &str) -> Option<&str> {
        let known = self.branches.get(revision).map(String::as_str);
        known.or_else(|| self.commits.get_key_value(revision).map(|(commit, _)| commit.as_str()))
    }

    pub(crate) fn large_contents(&self) -> Vec<&[u8]> {
        let files = self.commits.values().flat_map(BTreeMap::values);
        files.filter(|(_, is_large)| *is_large).map(|(content, _)| content.as_slice()).collect()
    }
}

/// The SHA-256 of a content, as 64 hexadecimal digits.
pub fn sha256(content: &[u8]) -> String {
    hex(&SHA256, &[content])
}

/// The Git object ID of a content, as 40 hexadecimal digits.
pub fn git_id(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    hex(&SHA1_FOR_LEGACY_USE_ONLY, &[head.as_bytes(), content])
}

fn hex(algorithm: &'static Algorithm, parts: &[&[u8]]) -> String {
    let mut hash = Context::new(algorithm);
    for part in parts {
        hash.update(part);
    }
    hash.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

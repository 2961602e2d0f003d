//! Reads the headers with which a hub describes one file. Pure.

use neptune_transfer::Digest;

/// What a hub states about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The commit to which the revision of the address refers.
    pub commit: String,
    /// Size of the content in bytes.
    pub size: Option<u64>,
    /// How the content is checked.
    pub check: FileCheck,
}

/// How the content of a file is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileCheck {
    /// The SHA-256 of the content.
    Sha256(Digest),
    /// The Git object ID of the content, 40 lower-case hexadecimal digits: the SHA-1 of
    /// `blob <length>\0` and the content.
    GitBlob(String),
    /// The hub states no hash.
    Unknown,
}

/// The headers of a response that describe a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileHead<'a> {
    pub commit: Option<&'a str>,
    pub linked_etag: Option<&'a str>,
    pub linked_size: Option<&'a str>,
    pub etag: Option<&'a str>,
    /// Length of the content; `None` for a redirect.
    pub length: Option<u64>,
}

impl FileHead<'_> {
    /// What the headers state.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn file(&self) -> Result<HubFile, String> {
        let commit = self.commit.filter(|text| is_hex(text, 40));
        let commit = commit.ok_or("X-Repo-Commit is missing, or is not a commit")?.to_owned();
        let tag = self.linked_etag.or(self.etag).map(bare_tag);
        let check = match tag {
            Some(tag) if is_hex(tag, 64) => {
                tag.parse().map_or(FileCheck::Unknown, FileCheck::Sha256)
            }
            Some(tag) if is_hex(tag, 40) => FileCheck::GitBlob(tag.to_ascii_lowercase()),
            _ => FileCheck::Unknown,
        };
        let linked = self.linked_size.and_then(|text| text.trim().parse().ok());
        Ok(HubFile { commit, size: linked.or(self.length), check })
    }
}

/// An entity tag without the mark of a weak one and without quotes.
fn bare_tag(tag: &str) -> &str {
    let tag = tag.trim();
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Whether a text has exactly this number of hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn large_file_has_a_sha256_and_a_small_one_its_git_id() {
        let (commit, sha256, blob) = ("c".repeat(40), "AB".repeat(32), "d".repeat(40));
        let commit = Some(commit.as_str());
        let quoted = format!("\"{sha256}\"");
        let large = FileHead {
            commit,
            linked_etag: Some(&quoted),
            linked_size: Some("5000000000"),
            etag: Some("\"other\""),
            length: None,
        };
        let file = large.file().unwrap();
        assert_eq!(file.check, FileCheck::Sha256(sha256.parse().unwrap()));
        assert_eq!(file.size, Some(5_000_000_000));
        let quoted = format!("W/\"{blob}\"");
        let small =
            FileHead { commit, etag: Some(&quoted), length: Some(7), ..FileHead::default() };
        let file = small.file().unwrap();
        assert_eq!((file.check, file.size), (FileCheck::GitBlob(blob), Some(7)));
        let unknown = FileHead { etag: Some("\"1\""), ..small };
        assert_eq!(unknown.file().unwrap().check, FileCheck::Unknown);
    }

    #[test]
    fn answer_without_a_commit_is_not_of_a_hub() {
        for commit in [None, Some("main"), Some("")] {
            let reason = FileHead { commit, ..FileHead::default() }.file().unwrap_err();
            assert!(reason.contains("X-Repo-Commit"), "{reason}");
        }
    }
}

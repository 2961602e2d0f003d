//! Reads the pages with which a hub lists the files of a repository. Pure.

use neptune_transfer::Digest;
use serde::Deserialize;

use crate::head::{FileCheck, is_hex};

/// The files of a repository at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryListing {
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// The files, in the order of the hub.
    pub files: Vec<ListedFile>,
}

/// One file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Path in the repository, as the hub states it.
    pub path: String,
    /// Size of the content in bytes.
    pub size: u64,
    /// How the content is checked.
    pub check: FileCheck,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    #[serde(default)]
    size: Option<u64>,
}

#[derive(Deserialize)]
struct Refs {
    #[serde(default)]
    branches: Vec<Ref>,
    #[serde(default)]
    tags: Vec<Ref>,
}

#[derive(Deserialize)]
struct Ref {
    name: String,
}

/// The commit in the description of a revision.
pub(crate) fn commit(body: &[u8]) -> Result<String, String> {
    let revision: Revision = serde_json::from_slice(body)
        .map_err(|error| format!("description of the revision: {error}"))?;
    if is_hex(&revision.sha, 40) {
        Ok(revision.sha.to_ascii_lowercase())
    } else {
        Err("description of the revision: sha is not a commit".to_owned())
    }
}

/// The files of one page. Directories and unknown kinds of entries are left out.
pub(crate) fn files(body: &[u8]) -> Result<Vec<ListedFile>, String> {
    let entries: Vec<Entry> =
        serde_json::from_slice(body).map_err(|error| format!("list of files: {error}"))?;
    Ok(entries.into_iter().filter(|entry| entry.kind == "file").map(listed).collect())
}

fn listed(entry: Entry) -> ListedFile {
    let Entry { path, oid, size, lfs, .. } = entry;
    let digest = |oid: &str| oid.strip_prefix("sha256:").unwrap_or(oid).parse::<Digest>().ok();
    let check = match &lfs {
        // The object ID is that of a pointer then.
        Some(lfs) => digest(&lfs.oid).map_or(FileCheck::Unknown, FileCheck::Sha256),
        None if is_hex(&oid, 40) => FileCheck::GitBlob(oid.to_ascii_lowercase()),
        None => FileCheck::Unknown,
    };
    ListedFile { path, size: lfs.and_then(|lfs| lfs.size).unwrap_or(size), check }
}

/// The branches and tags of a repository.
pub(crate) fn revisions(body: &[u8]) -> Vec<String> {
    let refs: Option<Refs> = serde_json::from_slice(body).ok();
    refs.map(|refs| refs.branches.into_iter().chain(refs.tags).map(|it| it.name).collect())
        .unwrap_or_default()
}

/// Up to three of `names` that are similar to `wanted`, the most similar first.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: Vec<(f64, &str)> =
        names.map(|name| (strsim::jaro_winkler(wanted, name), name)).collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let similar = scored.into_iter().filter(|(score, _)| *score > 0.6).take(3);
    // A name comes from the hub, so it is escaped and truncated.
    similar.map(|(_, name)| name.escape_debug().take(100).collect()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn page_has_files_with_their_hash_and_no_directories() {
        let (sha256, blob) = ("ab".repeat(32), "c".repeat(40));
        let page = format!(
            r#"[{{"type":"directory","oid":"{blob}","size":0,"path":"onnx"}},
               {{"type":"file","oid":"{blob}","size":570,"path":"config.json"}},
               {{"type":"file","oid":"{blob}","size":134,"path":"onnx/m.onnx","xetHash":"x",
                 "lfs":{{"oid":"{sha256}","size":90000,"pointerSize":134}}}},
               {{"type":"new","path":"x"}}]"#
        );
        let read = files(page.as_bytes()).unwrap();
        let small =
            ListedFile { path: "config.json".into(), size: 570, check: FileCheck::GitBlob(blob) };
        let large = ListedFile {
            path: "onnx/m.onnx".into(),
            size: 90_000,
            check: FileCheck::Sha256(sha256.parse().unwrap()),
        };
        assert_eq!(read, [small, large]);
        for bad in ["", "{}", "[1]", r#"[{"type":"file"}]"#] {
            assert!(files(bad.as_bytes()).unwrap_err().starts_with("list of files"), "{bad}");
        }
    }

    #[test]
    fn revision_names_its_commit() {
        let commit_of =
            |sha: &str| commit(format!(r#"{{"sha":"{sha}","siblings":[]}}"#).as_bytes());
        assert_eq!(commit_of(&"AB".repeat(20)), Ok("ab".repeat(20)));
        assert!(commit_of("main").is_err() && commit(b"[]").is_err());
        let refs =
            br#"{"branches":[{"name":"main","ref":"refs/heads/main"}],"tags":[{"name":"v1"}]}"#;
        assert_eq!(revisions(refs), ["main", "v1"]);
        assert!(revisions(b"x").is_empty());
    }

    #[test]
    fn similar_names_are_named_once_and_escaped() {
        let names = ["model.gguf", "model.Q4_K_M.gguf", "config.json", "mod\u{1b}el.gguf"];
        let similar = nearest("model.Q4_K.gguf", names.into_iter());
        assert_eq!(similar[0], "model.Q4_K_M.gguf");
        assert!(
            similar.len() <= 3 && similar.iter().all(|name| !name.contains('\u{1b}')),
            "{similar:?}"
        );
        assert!(nearest("zzz", ["config.json"].into_iter()).is_empty());
    }
}

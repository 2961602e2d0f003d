//! Git object IDs, with which a hub states the content of small files. Pure.

use data_encoding::HEXLOWER;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

/// Computes the Git object ID of a content: the SHA-1 of `blob <length>\0` and the content. Git
/// defines it; it is no protection against a hub that lies.
#[derive(Clone)]
pub struct GitBlobHash(Context);

impl GitBlobHash {
    /// Begins a content of `length` bytes.
    pub fn new(length: u64) -> Self {
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(format!("blob {length}\0").as_bytes());
        Self(hash)
    }

    /// Adds a part of the content.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The object ID, as 40 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        HEXLOWER.encode(self.0.finish().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_equals_that_of_git_hash_object() {
        // printf CONTENT | git hash-object --stdin
        for (content, id) in [
            ("", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
            ("hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
        ] {
            let mut hash = GitBlobHash::new(content.len() as u64);
            content.as_bytes().chunks(2).for_each(|part| hash.update(part));
            assert_eq!(hash.finish(), id, "{content:?}");
        }
    }
}

//! The seal key of a node. Reads and writes its file.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use hpke::{Deserializable as _, Kem as _, Serializable as _};
use neptune_transfer::durable::{self, Access, Survives};
use neptune_wire::{SealPublicKey, SealScope, SecretValues};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::sealing::{self, Kem, OpenError, PrivateKey};

/// Length of a private key in bytes.
const LENGTH: usize = 32;
/// Separates the key of fingerprints from the seal key.
const FINGERPRINT: &[u8] = b"neptune/secret-fingerprint/v1";

/// Why there is no seal key.
#[derive(Debug, thiserror::Error)]
pub enum SealKeyError {
    /// The file cannot be read or written.
    #[error("seal key {}: {source}", path.display())]
    File {
        /// Path of the key file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file is not a key.
    #[error(
        "seal key {} is damaged; restore the file, or remove it: the agent makes another key, and the controller seals the secrets of this node again",
        path.display()
    )]
    Damaged {
        /// Path of the key file.
        path: PathBuf,
    },
}

/// The private key of a node, to which the controller seals secrets.
#[derive(Clone)]
pub struct SealKey {
    private: PrivateKey,
    public: SealPublicKey,
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey").field("public", &self.public).finish_non_exhaustive()
    }
}

impl SealKey {
    /// Makes a key.
    ///
    /// # Panics
    /// The system has no random numbers.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(Kem::gen_keypair().0)
    }

    /// Reads a key of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a key.
    pub fn load(path: &Path) -> Result<Self, SealKeyError> {
        let error = |source| SealKeyError::File { path: path.to_owned(), source };
        let bytes = Zeroizing::new(fs::read(path).map_err(error)?);
        // A power failure may leave zeros, which would be a key that everybody knows.
        let is_key = bytes.len() == LENGTH && bytes.iter().any(|byte| *byte != 0);
        let key = if is_key { PrivateKey::from_bytes(&bytes).ok() } else { None };
        key.map(Self::new).ok_or_else(|| SealKeyError::Damaged { path: path.to_owned() })
    }

    /// Reads the key of a file, or makes one and writes it there, readable by its owner alone. The
    /// file is complete or absent, also after a power failure.
    ///
    /// # Errors
    /// The file cannot be read or written, or is not a key. Such a file is not replaced: secrets are
    /// sealed to its key.
    pub fn load_or_generate(path: &Path) -> Result<Self, SealKeyError> {
        match Self::load(path) {
            Err(SealKeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let key = Self::generate();
                let bytes = Zeroizing::new(key.private.to_bytes().to_vec());
                durable::replace(path, &bytes, Access::OWNER, Survives::PowerLoss)
                    .map_err(|source| SealKeyError::File { path: path.to_owned(), source })?;
                Ok(key)
            }
            loaded => loaded,
        }
    }

    /// Returns the public key.
    #[must_use]
    pub fn public_key(&self) -> &SealPublicKey {
        &self.public
    }

    /// Opens the values that [`seal`](crate::seal) sealed to this key for a program.
    ///
    /// # Errors
    /// They are sealed to another key or for another program, or are damaged.
    pub fn open(&self, scope: &SealScope<'_>, sealed: &str) -> Result<SecretValues, OpenError> {
        sealing::open(&self.private, scope, sealed)
    }

    /// Returns a text that is equal for equal bytes. Without this key nobody can guess them
    /// from it, also if only few values are possible.
    #[must_use]
    pub fn fingerprint(&self, bytes: &[u8]) -> String {
        let mac = |key: &[u8], bytes: &[u8]| {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
            mac.update(bytes);
            Zeroizing::new(mac.finalize().into_bytes().to_vec())
        };
        let key = mac(&Zeroizing::new(self.private.to_bytes().to_vec()), FINGERPRINT);
        let mut text = String::with_capacity(32);
        for byte in &mac(&key, bytes)[..16] {
            write!(text, "{byte:02x}").expect("a String takes any text");
        }
        text
    }

    fn new(private: PrivateKey) -> Self {
        Self { public: sealing::public_key(&private), private }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_of_a_file_stays_the_same_and_is_readable_by_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seal.key");
        let first = SealKey::load_or_generate(&path).unwrap();
        let again = SealKey::load_or_generate(&path).unwrap();
        assert_eq!(again.public_key(), first.public_key());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap().len(), 32);
        assert!(!format!("{first:?}").contains("private"));
    }

    #[test]
    fn damaged_key_is_refused_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seal.key");
        for content in [vec![], vec![1; 31], vec![1; 33], vec![0; 32]] {
            fs::write(&path, &content).unwrap();
            let error = SealKey::load_or_generate(&path).unwrap_err().to_string();
            assert!(
                error.contains("seal.key is damaged; restore the file, or remove it"),
                "{error}"
            );
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        let error = SealKey::load_or_generate(&directory.path().join("a/seal.key")).unwrap_err();
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn fingerprints_are_equal_for_equal_values_of_one_key() {
        let (key, other) = (SealKey::generate(), SealKey::generate());
        assert_eq!(key.fingerprint(b"a"), key.clone().fingerprint(b"a"));
        assert_ne!(key.fingerprint(b"a"), key.fingerprint(b"b"));
        assert_ne!(key.fingerprint(b"a"), other.fingerprint(b"a"));
        assert_eq!(key.fingerprint(b"a").len(), 32);
    }
}

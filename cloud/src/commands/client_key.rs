//! The `client-key` command: makes the key of a client of a gateway. Only its SHA-256 is kept
//! anywhere.

use std::io::{self, Write as _};

use data_encoding::BASE32_NOPAD;
use neptune_gateway_config::{Client, KEY_PREFIX, Uploads, check_clients, digest_text};
use neptune_program::random;
use sha2::{Digest as _, Sha256};

use crate::{cli::ClientKey, error::Error};

/// Random bytes of a key: 160 bits, of which no hash can be guessed.
const BYTES: usize = 20;

/// Prints a key, and the line of the spec for its client.
///
/// # Errors
/// [`Error::ClientKey`] for a name that is not valid, [`Error::Write`].
pub fn client_key(flags: &ClientKey) -> Result<(), Error> {
    let written = |source| Error::Write { path: "standard output".into(), source };
    let random =
        random::secure().map_err(|source| Error::Write { path: "/dev/urandom".into(), source })?;
    let text = text(&flags.name, random)?;
    io::stdout().write_all(text.as_bytes()).map_err(written)
}

fn text(name: &str, random: [u8; BYTES]) -> Result<String, Error> {
    let key = format!("{KEY_PREFIX}{}", BASE32_NOPAD.encode(&random).to_ascii_lowercase());
    let digest = digest_text(Sha256::digest(&key).into());
    let client = Client {
        name: name.to_owned(),
        key_sha256: vec![digest.clone()],
        requests_per_minute: None,
        uploads: Uploads::Allow,
        models: Vec::new(),
    };
    check_clients(&[client]).map_err(|error| Error::ClientKey(error.to_string()))?;
    Ok(format!("{key}\n- {{name: {name}, keySha256: [{digest}]}}\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn line_has_the_digest_of_the_key_and_is_yaml_of_a_client() {
        let printed = text("camera-hall", [7; BYTES]).unwrap();
        let (key, line) = printed.split_once('\n').unwrap();
        let random = key.strip_prefix("npk_").unwrap();
        assert_eq!(random.len(), 32);
        assert!(random.bytes().all(|byte| b"abcdefghijklmnopqrstuvwxyz234567".contains(&byte)));
        let clients: Vec<Client> = serde_saphyr::from_str(line).unwrap();
        assert_eq!(clients[0].name, "camera-hall");
        let digest: [u8; 32] = Sha256::digest(key).into();
        assert_eq!(clients[0].digests().collect::<Vec<_>>(), [digest]);
        assert!(!line.contains(random));
        assert_ne!(text("camera-hall", [8; BYTES]).unwrap(), printed);
    }

    #[test]
    fn name_that_the_gateway_refuses_gets_no_key() {
        for name in ["", "Hall", "a b", "a: b", "x, keySha256: []"] {
            let error = text(name, [0; BYTES]).unwrap_err().to_string();
            assert!(error.contains("name") && !error.contains("npk_"), "{error}");
        }
    }
}

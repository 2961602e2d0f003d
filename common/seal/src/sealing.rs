//! Sealing and opening. No I/O except random numbers.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hpke::{
    Deserializable as _, Kem as _, OpModeR, OpModeS, Serializable as _, aead::ChaCha20Poly1305,
    kdf::HkdfSha256, kem::X25519HkdfSha256,
};
use neptune_wire::{SealPublicKey, SealScope, SecretValues};
use zeroize::Zeroizing;

use crate::values;

/// The key encapsulation of seal keys.
pub type Kem = X25519HkdfSha256;
/// A private seal key.
pub type PrivateKey = <Kem as hpke::Kem>::PrivateKey;

/// Separates sealed Secrets from other uses of the key.
const INFO: &[u8] = b"neptune/secret/v1";
/// Length of an encapsulated key in bytes.
const ENCAPSULATED: usize = 32;

/// Why a sealed Secret cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The text is not base64, or too short.
    #[error("it is damaged")]
    Malformed,
    /// It is sealed to another key or for another program, or it was changed.
    #[error("it is sealed to another key or for another program")]
    Refused,
    /// What was opened is not the values of the keys that the task names.
    #[error("it lacks keys")]
    Keys,
}

/// Seals values to a key, for one program.
///
/// # Panics
/// The system has no random numbers.
#[must_use]
pub fn seal(key: &SealPublicKey, scope: &SealScope<'_>, values: &SecretValues) -> Option<String> {
    let key = <Kem as hpke::Kem>::PublicKey::from_bytes(key.as_bytes()).ok()?;
    let (encapsulated, ciphertext) = hpke::single_shot_seal::<ChaCha20Poly1305, HkdfSha256, Kem>(
        &OpModeS::Base,
        &key,
        INFO,
        &values::encode(values),
        &scope.associated_data(),
    )
    .ok()?;
    Some(STANDARD.encode([encapsulated.to_bytes().as_slice(), &ciphertext].concat()))
}

/// Opens what [`seal`] returned.
pub fn open(
    key: &PrivateKey,
    scope: &SealScope<'_>,
    sealed: &str,
) -> Result<SecretValues, OpenError> {
    let sealed = STANDARD.decode(sealed).map_err(|_| OpenError::Malformed)?;
    let (encapsulated, ciphertext) =
        sealed.split_at_checked(ENCAPSULATED).ok_or(OpenError::Malformed)?;
    let plain = open_bytes(key, INFO, &scope.associated_data(), encapsulated, ciphertext)?;
    let values = values::decode(&plain).ok_or(OpenError::Keys)?;
    let is_complete = scope.keys().iter().all(|key| values.contains_key(key));
    if is_complete { Ok(values) } else { Err(OpenError::Keys) }
}

fn open_bytes(
    key: &PrivateKey,
    info: &[u8],
    associated_data: &[u8],
    encapsulated: &[u8],
    ciphertext: &[u8],
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let encapsulated = <Kem as hpke::Kem>::EncappedKey::from_bytes(encapsulated)
        .map_err(|_| OpenError::Malformed)?;
    hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
        &OpModeR::Base,
        key,
        &encapsulated,
        info,
        ciphertext,
        associated_data,
    )
    .map(Zeroizing::new)
    .map_err(|_| OpenError::Refused)
}

/// Returns the public key of a private key.
pub fn public_key(key: &PrivateKey) -> SealPublicKey {
    SealPublicKey::new(Kem::sk_to_pk(key).to_bytes().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{ContainerProgram, NodeName, SealedSecret, WorkerName};
    use serde_json::json;

    use super::*;
    use crate::SecretBytes;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// RFC 9180, A.2.1: base mode of DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305.
    #[test]
    fn message_of_rfc_9180_is_opened() {
        let key = bytes("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb");
        let key = PrivateKey::from_bytes(&key).unwrap();
        assert_eq!(
            public_key(&key).as_bytes().to_vec(),
            bytes("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a")
        );
        let plain = open_bytes(
            &key,
            &bytes("4f6465206f6e2061204772656369616e2055726e"),
            &bytes("436f756e742d30"),
            &bytes("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"),
            &bytes(
                "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db
                 21993c62ce81883d2dd1b51a28",
            ),
        );
        assert_eq!(
            plain.unwrap().as_slice(),
            bytes("426561757479206973207472757468 2c20747275746820626561757479")
        );
    }

    struct Task {
        node: NodeName,
        worker: WorkerName,
        program: ContainerProgram,
    }

    impl Task {
        fn new(image: &str) -> Self {
            let program = json!({
                "image": image,
                "secrets": [{
                    "name": "camera", "version": "u/1", "keys": ["url"], "sealKey": "sha256:0",
                }],
            });
            Self {
                node: "edge0".parse().unwrap(),
                worker: "w".parse().unwrap(),
                program: serde_json::from_value(program).unwrap(),
            }
        }

        fn scope(&self) -> SealScope<'_> {
            let secret: &SealedSecret = &self.program.secrets[0];
            SealScope::new(&self.node, "u", &self.worker, &self.program, secret)
        }
    }

    #[test]
    fn values_open_with_their_key_for_their_program_only() {
        let (key, public) = Kem::gen_keypair();
        let public = SealPublicKey::new(public.to_bytes().into());
        assert_eq!(public, public_key(&key));
        let value = SecretBytes::new(vec![0, 1, 255]);
        let values = SecretValues::from([("url".to_owned(), value.clone())]);
        let task = Task::new("a:1");
        let sealed = seal(&public, &task.scope(), &values).unwrap();
        let again = seal(&public, &task.scope(), &values).unwrap();
        assert_ne!(sealed, again);
        for sealed in [&sealed, &again] {
            assert_eq!(open(&key, &task.scope(), sealed), Ok(values.clone()));
        }

        let other = Task::new("a:2");
        assert_eq!(open(&key, &other.scope(), &sealed), Err(OpenError::Refused));
        let (other_key, _) = Kem::gen_keypair();
        assert_eq!(open(&other_key, &task.scope(), &sealed), Err(OpenError::Refused));
        let mut damaged = STANDARD.decode(&sealed).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        let damaged = STANDARD.encode(damaged);
        assert_eq!(open(&key, &task.scope(), &damaged), Err(OpenError::Refused));
        for text in ["", "%", "AAAA"] {
            assert_eq!(open(&key, &task.scope(), text), Err(OpenError::Malformed), "{text}");
        }
        let lacking = SecretValues::from([("user".to_owned(), value)]);
        let lacking = seal(&public, &task.scope(), &lacking).unwrap();
        assert_eq!(open(&key, &task.scope(), &lacking), Err(OpenError::Keys));
        // A key of small order gives no secret.
        assert_eq!(seal(&SealPublicKey::new([0; 32]), &task.scope(), &values), None);
    }
}

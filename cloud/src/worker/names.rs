//! The name of a worker or a model server: its container's, its Deployment's and its Service's. Pure.

use neptune_wire::{Role, WorkerName};
use sha2::{Digest as _, Sha256};

/// What a Kubernetes label and a host name take.
const LONGEST: usize = 63;

/// Hex digits of the hash, the first 32 bits of a SHA-256: enough that two workers of one node do not meet by chance.
const HASH: usize = 8;

/// `<service>-<worker>-<hash>`: readable, and unique through the hash of all that tells workers apart.
/// It begins with a letter, as a Service's name has to.
pub fn worker_name(namespace: &str, service: &str, role: Role, worker: &str) -> WorkerName {
    let role_name = match role {
        Role::Edge => "edge",
        Role::Cloud => "cloud",
    };
    name(&format!("{service}-{worker}"), &format!("{namespace}/{service}/{role_name}/{worker}"))
}

/// `<model>-serving-<hash>`, the same way, of an `InferenceModel`'s server.
pub fn server_name(namespace: &str, model: &str) -> WorkerName {
    // No role is called so: no worker has this hash because of its own parts.
    name(&format!("{model}-serving"), &format!("{namespace}/{model}/inferencemodel"))
}

fn name(readable: &str, unique: &str) -> WorkerName {
    let digest = Sha256::digest(unique);
    let hash = u32::from_be_bytes(digest[..4].try_into().expect("a digest has 32 bytes"));
    let mut readable: String = readable
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    if !readable.starts_with(|c: char| c.is_ascii_lowercase()) {
        readable.insert_str(0, "w-");
    }
    readable.truncate(LONGEST - HASH - 1);
    let name = format!("{}-{hash:08x}", readable.trim_end_matches('-'));
    name.parse().expect("lower case letters, digits and inner '-' of at most 63")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_readable_and_ends_in_a_hash_of_all_its_parts() {
        let name = |service, role, worker| {
            worker_name("default", service, role, worker).as_str().to_owned()
        };
        // printf default/helmet-detection-demo/edge/edgeworker | sha256sum
        assert_eq!(
            name("helmet-detection-demo", Role::Edge, "edgeworker"),
            "helmet-detection-demo-edgeworker-5607ae5e"
        );
        assert_ne!(name("a", Role::Edge, "w"), name("a", Role::Cloud, "w"));
        assert_ne!(name("a-b", Role::Edge, "c"), name("a", Role::Edge, "b-c"));
    }

    #[test]
    fn a_server_is_named_after_its_model() {
        let name = server_name("default", "digits");
        assert!(name.as_str().starts_with("digits-serving-"), "{name}");
        assert_ne!(name, server_name("other", "digits"));
        assert_ne!(name, worker_name("default", "digits", Role::Edge, "serving"));
    }

    #[test]
    fn any_text_makes_a_name_valid_for_kubernetes_and_docker() {
        for (service, worker) in [
            ("0day", "Work.er"),
            ("a", ""),
            ("a", "---"),
            ("a.b.c", "ümläut"),
            (&*"x".repeat(253), "y"),
            (&*format!("{}-", "x".repeat(53)), "y"),
        ] {
            let name = worker_name("ns", service, Role::Edge, worker);
            assert!(name.as_str().len() <= LONGEST);
            assert!(name.as_str().starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        }
        let digit = worker_name("ns", "0day", Role::Edge, "Work.er");
        assert!(digit.as_str().starts_with("w-0day-work-er-"), "{digit}");
    }
}

//! The names of workers and model servers, which their containers, Deployments and Services share.

use neptune_wire::{Role, WorkerName};
use sha2::{Digest as _, Sha256};

/// Maximum length of a Kubernetes label and of a host name.
const MAX_NAME_LENGTH: usize = 63;

/// Hex digits of the hash of a name that has all its parts as they are: 32 bits. Only the namespace
/// and the place where the parts meet are left to the hash.
const SHORT_HASH: usize = 8;

/// Hex digits of the hash if a part is cut or changed: 64 bits. Otherwise the owner of one namespace
/// could choose parts until the name is that of a worker in another one.
const LONG_HASH: usize = 16;

/// `<service>-<worker>-<hash>`: readable, and unique by a hash of namespace, service, role and
/// worker. It begins with a letter, as Service names must. What does not fit is cut.
pub fn worker_name(namespace: &str, service: &str, role: Role, worker: &str) -> WorkerName {
    let role_name = match role {
        Role::Edge => "edge",
        Role::Cloud => "cloud",
    };
    name(&format!("{service}-{worker}"), &format!("{namespace}/{service}/{role_name}/{worker}"))
}

/// Returns `<model>-serving-<hash>`, the name of an `InferenceModel`'s server.
pub fn server_name(namespace: &str, model: &str) -> WorkerName {
    // "inferencemodel" is not a role, so no worker hashes the same text.
    name(&format!("{model}-serving"), &format!("{namespace}/{model}/inferencemodel"))
}

/// Returns `<model>-aggregator-<hash>`, the name of a `TrainingModel`'s aggregator.
pub fn aggregator_name(namespace: &str, model: &str) -> WorkerName {
    name(&format!("{model}-aggregator"), &format!("{namespace}/{model}/trainingmodel/"))
}

/// `<model>-<worker>-<hash>`, the name of the container of a training worker on its node; `worker`
/// is `None` for the one that measures weights.
pub fn training_name(namespace: &str, model: &str, worker: Option<&str>) -> WorkerName {
    match worker {
        // The names of workers are not empty, and have no '/'.
        Some(worker) => name(
            &format!("{model}-{worker}"),
            &format!("{namespace}/{model}/trainingmodel/train/{worker}"),
        ),
        None => {
            name(&format!("{model}-evaluation"), &format!("{namespace}/{model}/trainingmodel/test"))
        }
    }
}

/// `<service>-<worker>`, the name of the `InferenceModel` that a service owns for a worker. With a
/// hash if that is not a valid name, too long, or `is_ambiguous`: the name of both workers.
pub fn owned_model_name(
    namespace: &str,
    service: &str,
    role: Role,
    worker: &str,
    is_ambiguous: bool,
) -> String {
    let plain = format!("{service}-{worker}");
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = plain.len() <= MAX_NAME_LENGTH && plain.chars().all(is_part);
    if fits && !is_ambiguous && !plain.ends_with('-') {
        return plain;
    }
    worker_name(namespace, service, role, worker).to_string()
}

fn name(readable: &str, unique: &str) -> WorkerName {
    let digest = Sha256::digest(unique);
    let hash = u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"));
    let hash = format!("{hash:016x}");
    let mut shown: String = readable
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    if !shown.starts_with(|c: char| c.is_ascii_lowercase()) {
        shown.insert_str(0, "w-");
    }
    shown.truncate(MAX_NAME_LENGTH - SHORT_HASH - 1);
    let is_whole = shown.trim_end_matches('-') == readable;
    let digits = if is_whole { SHORT_HASH } else { LONG_HASH };
    shown.truncate(MAX_NAME_LENGTH - digits - 1);
    let name = format!("{}-{}", shown.trim_end_matches('-'), &hash[..digits]);
    name.parse().expect("lower case letters, digits and inner '-' of at most 63")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_model_has_the_names_of_service_and_worker_if_they_fit() {
        let name = |worker: &str, is_ambiguous| {
            owned_model_name("default", "assistant", Role::Edge, worker, is_ambiguous)
        };
        assert_eq!(name("edge", false), "assistant-edge");
        for (worker, is_ambiguous) in
            [("edge", true), ("Edge", false), ("e-", false), ("e.x", false)]
        {
            let hashed = worker_name("default", "assistant", Role::Edge, worker);
            assert_eq!(name(worker, is_ambiguous), hashed.as_str());
        }
        assert!(name(&"e".repeat(80), false).len() <= MAX_NAME_LENGTH);
    }

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
    fn name_that_lost_something_has_a_hash_of_64_bits() {
        let digits = |service: &str, worker: &str| {
            let name = worker_name("ns", service, Role::Edge, worker).to_string();
            name.rsplit('-').next().map_or(0, str::len)
        };
        // 54 characters fit.
        assert_eq!(digits(&"a".repeat(52), "b"), SHORT_HASH);
        for (service, worker) in
            [(&*"a".repeat(53), "b"), ("a", "edgeWorker"), ("a.b", "c"), ("0a", "b"), ("a", "b-")]
        {
            assert_eq!(digits(service, worker), LONG_HASH, "{service} {worker}");
        }
    }

    #[test]
    fn server_is_named_after_its_model() {
        let name = server_name("default", "digits");
        assert!(name.as_str().starts_with("digits-serving-"), "{name}");
        assert_ne!(name, server_name("other", "digits"));
        assert_ne!(name, worker_name("default", "digits", Role::Edge, "serving"));
    }

    #[test]
    fn programs_of_a_training_model_have_different_names() {
        let names = [
            aggregator_name("default", "digits"),
            training_name("default", "digits", Some("a")),
            training_name("default", "digits", Some("aggregator")),
            training_name("default", "digits", Some("evaluation")),
            training_name("default", "digits", None),
            training_name("other", "digits", None),
            server_name("default", "digits"),
            worker_name("default", "digits", Role::Edge, "a"),
        ];
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert!(names[0].as_str().starts_with("digits-aggregator-"), "{}", names[0]);
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
            assert!(name.as_str().len() <= MAX_NAME_LENGTH);
            assert!(name.as_str().starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        }
        let digit = worker_name("ns", "0day", Role::Edge, "Work.er");
        assert!(digit.as_str().starts_with("w-0day-work-er-"), "{digit}");
    }
}

//! Opens the Secrets of a worker or a model server with the seal key of the node. No I/O.

use std::collections::BTreeMap;

use neptune_agent_core::{
    domain::{node_program::NodeProgram, problem::Problem, served_version::is_plain_name},
    values::{
        files::{VolumeFiles, canonical},
        resolve::{WorkerValues, resolve_values},
    },
};
use neptune_seal::SealKey;
use neptune_wire::{
    ContentHash, NodeName, NodeProblem, SealScope, SealedSecret, SecretValues, WorkerReason,
};

/// What a program gets of its Secrets and `ConfigMap`s. A program with `ConfigMap`s only needs no key.
///
/// # Errors
/// A Secret cannot be opened, or its values cannot be used where the program names them.
pub fn open_values(
    node: &NodeName,
    wanted: NodeProgram<'_>,
    key: Result<&SealKey, &NodeProblem>,
) -> Result<WorkerValues, Problem> {
    // The uid is the name of a directory.
    if !is_plain_name(wanted.uid) {
        let message = format!("the uid {:?} of the object is no name", wanted.uid);
        return Err(Problem { reason: WorkerReason::SecretUnreadable, message });
    }
    let mut opened = BTreeMap::new();
    for secret in &wanted.program.secrets {
        opened.insert(secret.name.as_str(), open(node, wanted, secret, key)?);
    }
    resolve_values(wanted.program, &opened, |variables| {
        key.map(|key| key.fingerprint(&canonical(variables))).unwrap_or_default()
    })
}

fn open(
    node: &NodeName,
    NodeProgram { uid, name, program }: NodeProgram<'_>,
    secret: &SealedSecret,
    key: Result<&SealKey, &NodeProblem>,
) -> Result<SecretValues, Problem> {
    let unreadable = |why: &str| Problem {
        reason: WorkerReason::SecretUnreadable,
        message: format!("Secret {} cannot be opened on node {node}: {why}", secret.name),
    };
    let key = key.map_err(|problem| unreadable(&problem.message))?;
    if secret.seal_key != key.public_key().id() {
        return Err(unreadable(
            "it is sealed to an earlier key of the node; waiting for the controller to seal it again",
        ));
    }
    let scope = SealScope::new(node, uid, name, program, secret);
    key.open(&scope, &secret.sealed)
        .map_err(|why| unreadable(&format!("{why}; waiting for the controller to seal it again")))
}

/// The text that names the files of a volume. Without a key only files of `ConfigMap`s exist, whose
/// digest may be known.
pub fn version(files: &VolumeFiles, key: Option<&SealKey>) -> String {
    let canonical = files.canonical();
    match key {
        Some(key) => key.fingerprint(&canonical),
        None => ContentHash::compute(&canonical).to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::{
        desired::WantedWorker,
        fixtures::{node_context, wanted_worker},
    };
    use neptune_seal::{SecretBytes, seal};
    use serde_json::json;

    use super::*;

    /// What somebody makes of a task.
    type Change = fn(&mut WantedWorker);

    fn wanted(key: &SealKey, value: &str, version: &str) -> WantedWorker {
        let mut wanted = wanted_worker();
        let program = &mut wanted.worker.program;
        program.secret_env =
            serde_json::from_value(json!([{"name": "URL", "secret": "camera", "key": "url"}]))
                .unwrap();
        program.secrets = vec![SealedSecret {
            name: "camera".to_owned(),
            version: version.to_owned(),
            keys: vec!["url".to_owned()],
            seal_key: key.public_key().id(),
            sealed: String::new(),
        }];
        let values = [("url".to_owned(), SecretBytes::new(value.as_bytes().to_vec()))].into();
        let node = node_context().node;
        let scope = SealScope::new(
            &node,
            &wanted.uid,
            &wanted.worker.name,
            &wanted.worker.program,
            &wanted.worker.program.secrets[0],
        );
        let sealed = seal(key.public_key(), &scope, &values).unwrap();
        wanted.worker.program.secrets[0].sealed = sealed;
        wanted
    }

    fn fingerprint(wanted: &WantedWorker, key: &SealKey) -> String {
        let values = open_values(&node_context().node, wanted.node_program(), Ok(key)).unwrap();
        values.env.unwrap().fingerprint
    }

    #[test]
    fn other_version_with_equal_values_is_no_change_of_the_container() {
        let key = SealKey::generate();
        let first = fingerprint(&wanted(&key, "rtsp://h", "u/1"), &key);
        assert_eq!(fingerprint(&wanted(&key, "rtsp://h", "u/2"), &key), first);
        assert_ne!(fingerprint(&wanted(&key, "rtsp://i", "u/1"), &key), first);
        let other = SealKey::generate();
        assert_ne!(fingerprint(&wanted(&other, "rtsp://h", "u/1"), &other), first);
    }

    #[test]
    fn secret_opens_only_with_its_key_in_the_program_for_which_it_is_sealed() {
        let (key, other) = (SealKey::generate(), SealKey::generate());
        let node = node_context().node;
        let refused = |node: &NodeName, wanted: &WantedWorker, key: Result<_, _>| {
            let problem = open_values(node, wanted.node_program(), key).unwrap_err();
            assert_eq!(problem.reason, WorkerReason::SecretUnreadable);
            assert!(problem.message.starts_with("Secret camera cannot be opened on node "));
            problem.message
        };
        let original = wanted(&key, "rtsp://h", "u/1");
        assert!(open_values(&node, original.node_program(), Ok(&key)).is_ok());
        let message = refused(&node, &original, Ok(&other));
        assert!(message.contains("an earlier key of the node"), "{message}");
        let problem = NodeProblem {
            reason: neptune_wire::NodeProblemReason::StorageFailed,
            message: "the key is damaged".to_owned(),
        };
        let message = refused(&node, &original, Err(&problem));
        assert!(message.ends_with("edge0: the key is damaged"), "{message}");

        let changes: [Change; 8] = [
            |it| it.uid = "other".to_owned(),
            |it| it.worker.name = "other".parse().unwrap(),
            |it| it.worker.program.image = "other".to_owned(),
            |it| it.worker.program.command = vec!["sh".to_owned()],
            |it| it.worker.program.args.push("-c".to_owned()),
            |it| drop(it.worker.program.env.insert("BASH_ENV".to_owned(), "$(id)".to_owned())),
            |it| it.worker.program.secret_env[0].name = "OTHER".to_owned(),
            |it| it.worker.program.secrets[0].version = "u/2".to_owned(),
        ];
        for change in changes {
            let mut forged = original.clone();
            change(&mut forged);
            let message = refused(&node, &forged, Ok(&key));
            assert!(message.contains("for another program; waiting for"), "{message}");
        }
        refused(&"edge1".parse().unwrap(), &original, Ok(&key));
        let mut hostile = original.clone();
        hostile.uid = "../u".to_owned();
        let problem = open_values(&node, hostile.node_program(), Ok(&key)).unwrap_err();
        assert!(problem.message.contains("is no name"), "{}", problem.message);
    }

    #[test]
    fn config_maps_need_no_key() {
        let mut wanted = wanted_worker();
        let program = &mut wanted.worker.program;
        program.mounts =
            serde_json::from_value(json!([{"name": "c", "path": "/c", "config": "f"}])).unwrap();
        program.configs =
            serde_json::from_value(json!([{"name": "f", "version": "1", "data": {"a": "b"}}]))
                .unwrap();
        let problem = NodeProblem {
            reason: neptune_wire::NodeProblemReason::StorageFailed,
            message: String::new(),
        };
        let values =
            open_values(&node_context().node, wanted.node_program(), Err(&problem)).unwrap();
        let files = &values.files["c"];
        assert_eq!(files.files.len(), 1);
        let key = SealKey::generate();
        assert_ne!(version(files, None), version(files, Some(&key)));
        assert_eq!(version(files, None), version(files, None));
    }
}

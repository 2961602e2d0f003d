//! The program to which a sealed Secret is bound.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    ConfigContent, ContainerMount, ContainerProgram, ContentHash, MountSource, NodeName,
    SealedSecret, SecretVariable, WorkerName, canonical_json,
};

/// To what a sealed Secret is bound: it can be opened only for this program on this node, so that who
/// can publish tasks cannot take it into a container of their own. Both sides compute it from the
/// task. Its fields are fixed: another one would be another version of sealing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SealScope<'a> {
    node: &'a NodeName,
    uid: &'a str,
    worker: &'a WorkerName,
    image: &'a str,
    command: &'a [String],
    args: &'a [String],
    working_dir: &'a str,
    env: &'a BTreeMap<String, String>,
    secret_env: Vec<[&'a str; 3]>,
    mounts: Vec<ScopeMount<'a>>,
    configs: BTreeMap<&'a str, ContentHash>,
    /// The programs of the startup, liveness and readiness probe: they run in the container.
    probe_commands: [&'a [String]; 3],
    secret: &'a str,
    version: &'a str,
    keys: &'a [String],
}

/// What a scope has of a mount: fields of newer controllers are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScopeMount<'a> {
    path: &'a str,
    source: &'static str,
    name: &'a str,
    items: Option<&'a BTreeMap<String, String>>,
    read_only: bool,
}

impl<'a> SealScope<'a> {
    /// The scope of a Secret of the program of a worker of the object with this UID.
    pub fn new(
        node: &'a NodeName,
        uid: &'a str,
        worker: &'a WorkerName,
        program: &'a ContainerProgram,
        secret: &'a SealedSecret,
    ) -> Self {
        let variable = |it: &'a SecretVariable| [&*it.name, &*it.secret, &*it.key];
        let config =
            |it: &'a ConfigContent| (&*it.name, ContentHash::compute(&(&it.data, &it.binary_data)));
        let probes = &program.probes;
        let probe_commands = [&probes.startup, &probes.liveness, &probes.readiness]
            .map(|probe| probe.as_deref().map_or(&[][..], |probe| &probe.exec));
        Self {
            node,
            uid,
            worker,
            image: &program.image,
            command: &program.command,
            args: &program.args,
            working_dir: program.working_dir.as_deref().unwrap_or_default(),
            env: &program.env,
            secret_env: program.secret_env.iter().map(variable).collect(),
            mounts: program.mounts.iter().map(ScopeMount::new).collect(),
            configs: program.configs.iter().map(config).collect(),
            probe_commands,
            secret: &secret.name,
            version: &secret.version,
            keys: &secret.keys,
        }
    }

    /// Returns the keys that must be sealed.
    pub fn keys(&self) -> &[String] {
        self.keys
    }

    /// Returns the associated data of the sealing.
    pub fn associated_data(&self) -> Vec<u8> {
        canonical_json(self).into_bytes()
    }
}

impl<'a> ScopeMount<'a> {
    fn new(mount: &'a ContainerMount) -> Self {
        let (source, name, items) = match mount.source() {
            Some(MountSource::Disk) => ("emptyDir", &*mount.name, None),
            Some(MountSource::Memory(_)) => ("memory", &*mount.name, None),
            Some(MountSource::Host(path, _)) => ("hostPath", path, None),
            Some(MountSource::Config(name, items)) => ("config", name, items),
            Some(MountSource::Secret(name, items)) => ("secret", name, items),
            None => ("", "", None),
        };
        Self { path: &mount.path, source, name, items, read_only: mount.read_only }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn program() -> Value {
        json!({
            "image": "a:1", "command": ["run"], "args": ["-v"], "workingDir": "/w",
            "env": {"A": "1"},
            "secretEnv": [{"name": "URL", "secret": "camera", "key": "url"}],
            "mounts": [
                {"name": "c", "path": "/etc/c", "config": "files", "items": {"b": "a"}},
                {"name": "s", "path": "/etc/s", "secret": "camera"},
            ],
            "configs": [{"name": "files", "version": "u/1", "data": {"a": "x"}}],
            "probes": {"liveness": {"exec": ["check"]}},
            "secrets": [{
                "name": "camera", "version": "u/2", "keys": ["url"], "sealKey": "sha256:0",
                "sealed": "AAAA",
            }],
        })
    }

    fn data(node: &str, uid: &str, worker: &str, program: &Value) -> Vec<u8> {
        let program: ContainerProgram = serde_json::from_value(program.clone()).unwrap();
        let (node, worker) = (node.parse().unwrap(), worker.parse().unwrap());
        let secret = &program.secrets[0];
        SealScope::new(&node, uid, &worker, &program, secret).associated_data()
    }

    #[test]
    fn scope_has_this_text() {
        let text = String::from_utf8(data("edge0", "u", "w", &program())).unwrap();
        let configs = ContentHash::compute(&json!([{"a": "x"}, {}]));
        let expected = json!({
            "node": "edge0", "uid": "u", "worker": "w", "image": "a:1", "command": ["run"],
            "args": ["-v"], "workingDir": "/w", "env": {"A": "1"},
            "secretEnv": [["URL", "camera", "url"]],
            "mounts": [
                {"path": "/etc/c", "source": "config", "name": "files", "items": {"b": "a"},
                 "readOnly": false},
                {"path": "/etc/s", "source": "secret", "name": "camera", "items": null,
                 "readOnly": false},
            ],
            "configs": {"files": configs.as_str()}, "probeCommands": [[], ["check"], []],
            "secret": "camera", "version": "u/2", "keys": ["url"],
        });
        assert_eq!(text, canonical_json(&expected));
    }

    #[test]
    fn each_field_of_the_scope_counts_and_fields_of_newer_controllers_do_not() {
        let original = data("edge0", "u", "w", &program());
        assert_ne!(data("edge1", "u", "w", &program()), original);
        assert_ne!(data("edge0", "v", "w", &program()), original);
        assert_ne!(data("edge0", "u", "x", &program()), original);
        for (pointer, value) in [
            ("/image", json!("a:2")),
            ("/command/0", json!("sh")),
            ("/args/0", json!("-c")),
            ("/workingDir", json!("/tmp")),
            ("/env/A", json!("2")),
            ("/secretEnv/0/name", json!("OTHER")),
            ("/secretEnv/0/key", json!("user")),
            ("/mounts/0/path", json!("/bin")),
            ("/mounts/0/items", json!({"b": "c"})),
            ("/mounts/1/secret", json!("other")),
            ("/mounts/1/readOnly", json!(true)),
            ("/mounts", json!([])),
            ("/configs/0/data/a", json!("y")),
            ("/probes/liveness/exec/0", json!("sh")),
            ("/secrets/0/name", json!("other")),
            ("/secrets/0/version", json!("u/3")),
            ("/secrets/0/keys", json!(["url", "user"])),
        ] {
            let mut changed = program();
            match changed.pointer_mut(pointer) {
                Some(field) => *field = value,
                None => changed["mounts"][1]["readOnly"] = value,
            }
            assert_ne!(data("edge0", "u", "w", &changed), original, "{pointer}");
        }
        let mut newer = program();
        newer["mounts"][1]["mode"] = json!(384);
        newer["secrets"][0]["sealed"] = json!("BBBB");
        newer["later"] = json!(true);
        assert_eq!(data("edge0", "u", "w", &newer), original);
    }
}

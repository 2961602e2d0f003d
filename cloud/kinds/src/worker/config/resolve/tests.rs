//! Tests of what a worker gets of its Secrets and `ConfigMap`s, and of each finding.
#![allow(clippy::unwrap_used)]
#![allow(clippy::needless_pass_by_value, reason = "json! makes values")]

use std::collections::BTreeMap;

use neptune_api::WorkerSpec;
use neptune_wire::{ContainerProgram, SealKeyId};
use serde_json::{Value, json};

use super::*;
use crate::kubernetes::identity::ControllerIdentity;

fn spec(fields: Value) -> WorkerSpec {
    let mut spec = json!({"frameworkType": "container", "image": "a:1"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn variable(name: &str, source: Value) -> WorkerSpec {
    spec(json!({"env": [{"name": name, "valueFrom": source}]}))
}

fn mounted(volume: Value) -> WorkerSpec {
    let mounts = json!([{"name": "files", "mountPath": "/files"}]);
    let mut named = json!({"name": "files"});
    named.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
    spec(json!({"volumes": [named], "volumeMounts": mounts}))
}

fn url() -> WorkerSpec {
    variable("RTSP_URL", json!({"secretKeyRef": {"name": "camera", "key": "url"}}))
}

fn present(labels: Value, data: &[(&str, &[u8])]) -> ReadObject {
    let data: BTreeMap<_, _> = data.iter().map(|(k, v)| (*k, STANDARD.encode(v))).collect();
    let metadata = json!({"labels": labels, "uid": "u", "resourceVersion": "7"});
    let secret = json!({"metadata": metadata, "data": data});
    ReadObject::Present(ConfigObject::from_secret(serde_json::from_value(secret).unwrap()).into())
}

fn shared(data: &[(&str, &[u8])]) -> ReadObject {
    present(json!({"neptune.io/edge": "allowed"}), data)
}

fn config_map(data: &Value) -> ReadObject {
    let mut object = json!({"metadata": {"uid": "c", "resourceVersion": "3"}});
    object.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
    let object = serde_json::from_value(object).unwrap();
    ReadObject::Present(ConfigObject::from_config_map(object).into())
}

fn objects(read: Vec<(ConfigKind, &str, ReadObject)>) -> ConfigObjects {
    let controller = ControllerIdentity {
        namespace: "neptune-system".to_owned(),
        service_account: "neptune-cloud".to_owned(),
    };
    let named = |(kind, name, object): (ConfigKind, &str, ReadObject)| {
        (ConfigName { kind, name: name.to_owned() }, object)
    };
    ConfigObjects { read: read.into_iter().map(named).collect(), controller }
}

fn camera(object: ReadObject) -> ConfigObjects {
    objects(vec![(ConfigKind::Secret, "camera", object)])
}

fn files(object: ReadObject) -> ConfigObjects {
    objects(vec![(ConfigKind::ConfigMap, "files", object)])
}

fn resolved(spec: &WorkerSpec, objects: &ConfigObjects) -> ResolvedConfig {
    resolve(spec.into(), objects, "default").unwrap().unwrap()
}

/// The message of the finding, with its reason.
fn finding(spec: &WorkerSpec, objects: &ConfigObjects) -> (Reason, String) {
    match resolve(spec.into(), objects, "default").unwrap_err() {
        ConfigObstacle::Finding(finding) => (finding.reason, finding.message),
        ConfigObstacle::Unknown => unreachable!("everything was read"),
    }
}

#[test]
fn each_obstacle_has_its_reason_and_text() {
    let of_map = || variable("A", json!({"configMapKeyRef": {"name": "files", "key": "a"}}));
    let large = "x".repeat(MAX_BYTES);
    for (spec, objects, reason, text) in [
        (url(), camera(ReadObject::Missing), Reason::SecretNotFound, "Secret camera not found"),
        (url(), camera(shared(&[])), Reason::SecretNotFound, "Secret camera has no key url"),
        (
            url(),
            camera(present(json!({}), &[("url", b"a")])),
            Reason::SecretNotShared,
            "Secret camera may not leave the cluster; label it: kubectl label secret camera neptune.io/edge=allowed",
        ),
        (
            url(),
            camera(ReadObject::Forbidden),
            Reason::SecretForbidden,
            "may not read Secret default/camera; kubectl -n default create rolebinding neptune --clusterrole=neptune-config --serviceaccount=neptune-system:neptune-cloud",
        ),
        (
            url(),
            camera(shared(&[("url", b"a\0b")])),
            Reason::SecretNotFound,
            "the value of key url of Secret camera cannot be a variable, because it is no text; mount it as a file",
        ),
        (
            of_map(),
            files(ReadObject::Missing),
            Reason::ConfigMapNotFound,
            "ConfigMap files not found",
        ),
        (
            of_map(),
            files(config_map(&json!({"binaryData": {"a": "AA=="}}))),
            Reason::ConfigMapNotFound,
            "ConfigMap files has no key a",
        ),
        (
            of_map(),
            files(ReadObject::Forbidden),
            Reason::SecretForbidden,
            "may not read ConfigMap default/files; kubectl -n default create rolebinding neptune --clusterrole=neptune-config --serviceaccount=neptune-system:neptune-cloud",
        ),
        (
            mounted(json!({"configMap": {"name": "files"}})),
            files(config_map(&json!({"data": {"a": large}}))),
            Reason::ConfigTooLarge,
            "the Secrets and ConfigMaps of the worker have 257 KiB, more than 256 KiB; select keys with items, or move the rest into a Model",
        ),
        (
            mounted(
                json!({"secret": {"secretName": "camera", "items": [{"key": "b", "path": "b"}]}}),
            ),
            camera(shared(&[("a", b"a")])),
            Reason::SecretNotFound,
            "Secret camera has no key b",
        ),
    ] {
        assert_eq!(finding(&spec, &objects), (reason, text.to_owned()));
    }
}

#[test]
fn object_that_was_not_read_is_no_finding() {
    let unknown = Err(ConfigObstacle::Unknown);
    assert_eq!(resolve((&url()).into(), &ConfigObjects::default(), "default"), unknown);
    assert_eq!(resolve((&url()).into(), &camera(ReadObject::Unknown), "default"), unknown);
    assert_eq!(resolve((&spec(json!({}))).into(), &ConfigObjects::default(), "default"), Ok(None));
}

#[test]
fn optional_objects_and_keys_that_are_missing_count_as_empty() {
    let optional = |key: &str| json!({"name": "camera", "key": key, "optional": true});
    let variable = variable("A", json!({"secretKeyRef": optional("a")}));
    for object in [ReadObject::Missing, shared(&[("b", b"b")])] {
        assert_eq!(resolved(&variable, &camera(object)), ResolvedConfig::default());
    }
    let all = spec(json!({"envFrom": [{"secretRef": {"name": "camera", "optional": true}}]}));
    assert_eq!(resolved(&all, &camera(ReadObject::Missing)), ResolvedConfig::default());
    let volume = mounted(json!({"secret": {"secretName": "camera", "optional": true}}));
    let empty = resolved(&volume, &camera(ReadObject::Missing));
    let [secret] = &empty.secrets[..] else { unreachable!("the mount names it") };
    assert_eq!((&*secret.version, secret.values.len()), (ABSENT, 0));
    // It exists, and its owner did not release it.
    let unshared = finding(&volume, &camera(present(json!({}), &[])));
    assert_eq!(unshared.0, Reason::SecretNotShared);
}

#[test]
fn credentials_of_a_registry_that_are_not_there_are_left_out() {
    let pull = spec(json!({"imagePullSecrets": [{"name": "camera"}]}));
    let credentials: [(&str, &[u8]); 2] = [(CREDENTIALS, b"{}"), ("other", b"o")];
    for object in
        [ReadObject::Missing, ReadObject::Forbidden, present(json!({}), &credentials), shared(&[])]
    {
        assert_eq!(resolved(&pull, &camera(object)), ResolvedConfig::default());
    }
    let unknown = resolve((&pull).into(), &camera(ReadObject::Unknown), "default");
    assert_eq!(unknown, Err(ConfigObstacle::Unknown));
    let program = program(&resolved(&pull, &camera(shared(&credentials))), &[], &[]);
    assert_eq!(program["pullSecrets"], json!(["camera"]));
    assert_eq!(program["secrets"][0]["keys"], json!([CREDENTIALS]));
}

#[test]
fn only_keys_that_are_used_are_sealed() {
    let data: [(&str, &[u8]); 4] =
        [("url", b"rtsp"), ("user", b"u"), ("a-b", b"x"), ("MODEL_URL", b"m")];
    let secret = || camera(shared(&data));
    let keys = |spec: &WorkerSpec| -> Vec<String> {
        resolved(spec, &secret()).secrets[0].values.keys().cloned().collect()
    };
    assert_eq!(keys(&url()), ["url"]);
    let all = |prefix: &str| {
        spec(json!({"envFrom": [{"prefix": prefix, "secretRef": {"name": "camera"}}]}))
    };
    assert_eq!(keys(&all("")), ["url", "user"], "no name of a variable, and one of Neptune");
    assert_eq!(keys(&all("X_")), ["MODEL_URL", "url", "user"]);
    let items = json!([{"key": "user", "path": "name"}]);
    let volume =
        |items: Value| mounted(json!({"secret": {"secretName": "camera", "items": items}}));
    assert_eq!(keys(&volume(items)), ["user"]);
    assert_eq!(keys(&volume(json!([]))).len(), 4);
    let text = format!("{:?}", resolved(&volume(json!([])), &secret()));
    assert!(!text.contains("rtsp") && text.contains("4 bytes"), "{text}");
}

fn program(config: &ResolvedConfig, env: &[(&str, &str)], node_env: &[(&str, &str)]) -> Value {
    let owned = |env: &[(&str, &str)]| -> BTreeMap<String, String> {
        env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let mut program = ContainerProgram { env: owned(env), ..ContainerProgram::default() };
    let node_env = owned(node_env);
    config.add_to(&mut program, Some(&node_env), &SealKeyId("sha256:0".to_owned()));
    program.env.extend(node_env);
    serde_json::to_value(program).unwrap()
}

#[test]
fn variables_have_the_precedence_of_a_pod() {
    let spec = spec(json!({
        "env": [
            {"name": "OWN", "valueFrom": {"configMapKeyRef": {"name": "files", "key": "own"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "key"}}},
        ],
        "envFrom": [
            {"configMapRef": {"name": "files"}},
            {"secretRef": {"name": "camera"}},
        ],
    }));
    let data = json!({"data": {
        "own": "o", "OWN": "from", "BOTH": "map", "PARAMETER": "from", "NODE": "from", "MAP": "m",
        "SERVICE_NAME": "s", "1a": "no variable",
    }});
    let secret: [(&str, &[u8]); 4] = [("key", b"k"), ("KEY", b"f"), ("BOTH", b"b"), ("S", b"s")];
    let objects = objects(vec![
        (ConfigKind::ConfigMap, "files", config_map(&data)),
        (ConfigKind::Secret, "camera", shared(&secret)),
    ]);
    let resolved = resolved(&spec, &objects);
    let given = [("PARAMETER", "p"), ("SERVICE_NAME", "neptune")];
    let program = program(&resolved, &given, &[("NODE", "n")]);
    assert_eq!(
        program["env"],
        json!({"OWN": "o", "own": "o", "PARAMETER": "p", "NODE": "n", "MAP": "m",
               "SERVICE_NAME": "neptune"})
    );
    let from_secret: Vec<_> = program["secretEnv"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["key"].as_str().unwrap()))
        .collect();
    assert_eq!(from_secret, [("BOTH", "BOTH"), ("KEY", "key"), ("S", "S"), ("key", "key")]);
    assert_eq!(
        program["secrets"],
        json!([{"name": "camera", "version": "u/7", "keys": ["BOTH", "KEY", "S", "key"],
                "sealKey": "sha256:0"}])
    );
}

#[test]
fn mounted_config_map_is_in_the_program_with_its_version() {
    let items = json!([{"key": "a.yaml", "path": "b.yaml"}, {"key": "bin", "path": "bin"}]);
    let spec = mounted(json!({"configMap": {"name": "files", "items": items}}));
    let data = json!({"data": {"a.yaml": "x: 1", "other": "o"}, "binaryData": {"bin": "AP8="}});
    let program = program(&resolved(&spec, &files(config_map(&data))), &[], &[]);
    assert_eq!(
        program["configs"],
        json!([{"name": "files", "version": "c/3", "data": {"a.yaml": "x: 1"},
                "binaryData": {"bin": "AP8="}}])
    );
}

//! A Kubernetes API takes every manifest, as strictly as it can look.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio};

use deploy_tests::{OVERLAYS, object, objects, repository};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Namespace, Service, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command, sync::oneshot};

fn read_as<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    whole_numbers(serde_json::to_value(typed).unwrap())
}

/// A definition's bounds are floating-point numbers to its type.
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "it is a whole number")]
            Some(float) if number.is_f64() && float.fract() == 0.0 => (float as i64).into(),
            _ => number.into(),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect()
        }
        other => other,
    }
}

#[test]
fn every_manifest_has_only_fields_that_its_kind_has() {
    for overlay in OVERLAYS {
        for value in objects(overlay) {
            let read = match value["kind"].as_str().unwrap() {
                "ClusterRole" => read_as::<ClusterRole>(&value),
                "ClusterRoleBinding" => read_as::<ClusterRoleBinding>(&value),
                "ConfigMap" => read_as::<ConfigMap>(&value),
                "CustomResourceDefinition" => read_as::<CustomResourceDefinition>(&value),
                "DaemonSet" => read_as::<DaemonSet>(&value),
                "Deployment" => read_as::<Deployment>(&value),
                "Namespace" => read_as::<Namespace>(&value),
                "Role" => read_as::<Role>(&value),
                "RoleBinding" => read_as::<RoleBinding>(&value),
                "Service" => read_as::<Service>(&value),
                "ServiceAccount" => read_as::<ServiceAccount>(&value),
                other => panic!("{overlay}: no type for {other} in this test"),
            };
            // A field that the type does not know would be gone.
            let name = &value["metadata"]["name"];
            assert!(
                read == value,
                "{overlay}: {name} is read as {read:#}\nand written as {value:#}"
            );
        }
    }
}

#[tokio::test]
async fn a_kubernetes_api_takes_every_overlay_and_takes_it_again() {
    for overlay in OVERLAYS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(devcluster::serve(listener, async move {
            let _ = stopped.await;
        }));
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        devcluster::kubeconfig::write(&kubeconfig, address, "deploy").unwrap();
        // devcluster serves no DaemonSets; its Pods are checked as a Deployment's.
        let objects: Vec<_> = objects(overlay).into_iter().map(served).collect();
        for time in ["first", "second"] {
            let (printed, complaints) = apply(&kubeconfig, &objects).await;
            let applied = printed.lines().filter(|line| line.ends_with(" serverside-applied"));
            assert_eq!(
                (applied.count(), complaints.as_str()),
                (objects.len(), ""),
                "{overlay}, the {time} time:\n{printed}"
            );
        }
        serving.abort();
    }
}

fn served(mut object: Value) -> Value {
    if object["kind"] == "DaemonSet" {
        object["kind"] = "Deployment".into();
        let spec = object["spec"].as_object_mut().unwrap();
        spec.remove("updateStrategy");
    }
    object
}

/// What kubectl prints, and what it complains of.
async fn apply(kubeconfig: &Path, objects: &[Value]) -> (String, String) {
    let mut child = Command::new("kubectl")
        .args(["apply", "--server-side", "--validate=strict", "-f", "-"])
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let mut input = child.stdin.take().unwrap();
    input.write_all(list.to_string().as_bytes()).await.unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn every_definition_is_included_as_it_is() {
    let files = |folder: &str| -> BTreeMap<String, String> {
        let entries = fs::read_dir(repository(folder)).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let definitions = entries.filter(|path| name(path) != "kustomization.yaml");
        definitions.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
    };
    let (crds, copies) = (files("crds"), files("build/deploy/crds"));
    assert!(
        crds == copies,
        "run: cp crds/*.yaml build/deploy/crds/ (and see its kustomization.yaml)"
    );
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        for file in crds.keys() {
            object(&objects, "CustomResourceDefinition", file.strip_suffix(".yaml").unwrap());
        }
    }
}

#[test]
fn pods_that_serve_models_fetch_them_with_the_agents_image() {
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        let container = |kind, name| {
            object(&objects, kind, name)["spec"]["template"]["spec"]["containers"][0].clone()
        };
        let agent = container("DaemonSet", "neptune-edge");
        let controller = container("Deployment", "neptune-cloud");
        let env = controller["env"].as_array().unwrap();
        let fetch = env.iter().find(|v| v["name"] == "NEPTUNE_FETCH_IMAGE").unwrap();
        assert_eq!(fetch["value"], agent["image"], "{overlay}");
        assert!(agent["image"].as_str().unwrap().contains(':'), "{overlay}: a version is named");
    }
}

#[test]
fn nothing_but_the_agent_has_more_than_a_pod_needs() {
    for overlay in OVERLAYS {
        for object in objects(overlay) {
            let pod = &object["spec"]["template"]["spec"];
            let Some(containers) = pod["containers"].as_array() else { continue };
            let name = &object["metadata"]["name"];
            for container in containers {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}), "{name}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
            }
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{name}"
            );
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            let on_host = volumes.filter(|volume| volume.get("hostPath").is_some()).count();
            if name == "neptune-edge" {
                assert_eq!((pod["hostNetwork"] == true, on_host), (true, 4));
            } else {
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
                assert_eq!((pod.get("hostNetwork"), on_host), (None, 0), "{name}");
            }
        }
    }
}

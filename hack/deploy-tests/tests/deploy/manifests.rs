//! A Kubernetes API server accepts every manifest with strict validation.

use std::{collections::BTreeMap, fs, path::Path};

use deploy_tests::{OVERLAYS, object, objects, repository, text};
use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::cluster::Installation;

fn read_as<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    whole_numbers(serde_json::to_value(typed).unwrap())
}

/// Turns whole floating-point numbers into integers: the type of a CRD has its bounds as floats.
pub fn whole_numbers(value: Value) -> Value {
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
fn manifests_contain_only_known_fields() {
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
                "NetworkPolicy" => read_as::<NetworkPolicy>(&value),
                "PodDisruptionBudget" => read_as::<PodDisruptionBudget>(&value),
                "Role" => read_as::<Role>(&value),
                "RoleBinding" => read_as::<RoleBinding>(&value),
                "Secret" => read_as::<Secret>(&value),
                "Service" => read_as::<Service>(&value),
                "ServiceAccount" => read_as::<ServiceAccount>(&value),
                "ValidatingWebhookConfiguration" => {
                    read_as::<ValidatingWebhookConfiguration>(&value)
                }
                other => panic!("{overlay}: no type for {other} in this test"),
            };
            // A field that the type does not know would be missing.
            let name = &value["metadata"]["name"];
            assert!(
                read == value,
                "{overlay}: {name} is read as {read:#}\nand written as {value:#}"
            );
        }
    }
}

#[tokio::test]
async fn every_overlay_applies_twice() {
    for overlay in OVERLAYS {
        let cluster = Installation::start().await;
        let folder = repository("build/deploy").join(overlay);
        let folder = folder.to_str().unwrap();
        let count = objects(overlay).len();
        // The namespace was not created by apply; kubectl warns about that once.
        let remark =
            |line: &&str| !line.contains("is missing the kubectl.kubernetes.io/last-applied");
        let dry_run = ["apply", "-k", folder, "--validate=strict", "--dry-run=server"];
        let (printed, stderr) = cluster.kubectl(&dry_run);
        let taken = printed.lines().filter(|line| line.ends_with(" (server dry run)"));
        let stderr: Vec<_> = stderr.lines().filter(remark).collect();
        assert_eq!((taken.count(), stderr), (count, vec![]), "{overlay}:\n{printed}");
        let (made, _) = cluster.kubectl(&["get", "deployments,daemonsets", "-A"]);
        assert_eq!(made, "", "a dry run makes nothing");
        for time in ["first", "second"] {
            let apply = ["apply", "-k", folder, "--validate=strict", "--server-side"];
            let (printed, stderr) = cluster.kubectl(&apply);
            let applied = printed.lines().filter(|line| line.ends_with(" serverside-applied"));
            assert_eq!(
                (applied.count(), stderr.as_str()),
                (count, ""),
                "{overlay}, the {time} time:\n{printed}"
            );
        }
    }
}

#[test]
fn drain_is_never_blocked_and_evicts_one_controller_at_a_time() {
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        let deployment = &object(&objects, "Deployment", "neptune-cloud")["spec"];
        let budget = &object(&objects, "PodDisruptionBudget", "neptune-cloud")["spec"];
        assert_eq!(budget["selector"], deployment["selector"], "{overlay}");
        let budget: PodDisruptionBudgetSpec = serde_json::from_value(budget.clone()).unwrap();
        assert_eq!(budget.unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"));
        // As Kubernetes computes it: the number of Pods that may be evicted while all are healthy.
        let replicas = i32::try_from(deployment["replicas"].as_i64().unwrap()).unwrap();
        let may_go = match (budget.max_unavailable, budget.min_available) {
            (Some(IntOrString::Int(count)), None) => count.min(replicas),
            (None, Some(IntOrString::Int(count))) => replicas - count,
            other => panic!("{overlay}: {other:?}"),
        };
        assert_eq!(may_go, 1, "{overlay}: of {replicas}");
    }
}

/// Secrets and `ConfigMap`s that a Pod mounts and no manifest contains are created by the user.
#[test]
fn objects_that_users_create_are_documented() {
    for (overlay, page) in [("mqtt", "build/acl/README.md"), ("kubeedge", "docs/kubeedge.md")] {
        let objects = objects(overlay);
        let secrets = |object: &Value| -> Vec<String> {
            let pod = &object["spec"]["template"]["spec"];
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            let mounted = volumes.filter_map(|volume| volume["secret"]["secretName"].as_str());
            let containers = pod["containers"].as_array().into_iter().flatten();
            let sources = containers.filter_map(|container| container["envFrom"].as_array());
            let read = sources.flatten().filter_map(|from| from["secretRef"]["name"].as_str());
            mounted.chain(read).map(str::to_owned).collect()
        };
        let page_text = text(page);
        for secret in objects.iter().flat_map(secrets) {
            let command = format!("create secret generic {secret} ");
            let tls = format!("create secret tls {secret} ");
            assert!(
                page_text.contains(&command) || page_text.contains(&tls),
                "{page} does not make {secret}"
            );
        }
    }
}

#[test]
fn every_crd_is_included_unchanged() {
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
fn model_server_pods_and_gateways_use_the_agents_image() {
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        let container = |kind, name| {
            object(&objects, kind, name)["spec"]["template"]["spec"]["containers"][0].clone()
        };
        let agent = container("DaemonSet", "neptune-edge");
        let controller = container("Deployment", "neptune-cloud");
        let env = controller["env"].as_array().unwrap();
        for name in ["NEPTUNE_FETCH_IMAGE", "NEPTUNE_GATEWAY_IMAGE"] {
            let variable = env.iter().find(|v| v["name"] == name).unwrap();
            assert_eq!(variable["value"], agent["image"], "{overlay}: {name}");
        }
        let aggregator = env.iter().find(|v| v["name"] == "NEPTUNE_AGGREGATOR_IMAGE").unwrap();
        assert_eq!(aggregator["value"], controller["image"], "{overlay}");
        for image in [&agent["image"], &controller["image"]] {
            let version = concat!(":", env!("CARGO_PKG_VERSION"));
            assert!(image.as_str().unwrap().ends_with(version), "{overlay}: {image}");
        }
    }
}

#[test]
fn only_the_agent_has_more_privileges_than_a_pod_needs() {
    for overlay in OVERLAYS {
        for object in objects(overlay) {
            let pod = &object["spec"]["template"]["spec"];
            let Some(containers) = pod["containers"].as_array() else { continue };
            let name = &object["metadata"]["name"];
            for container in containers {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                let capabilities = if name == "neptune-edge" {
                    json!({"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE"]})
                } else {
                    json!({"drop": ["ALL"]})
                };
                assert_eq!(context["capabilities"], capabilities, "{name}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
            }
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{name}"
            );
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            let on_host = volumes.filter(|volume| volume.get("hostPath").is_some()).count();
            if name == "neptune-edge" {
                assert_eq!((pod["hostNetwork"] == true, on_host), (true, 6));
            } else {
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
                assert_eq!((pod.get("hostNetwork"), on_host), (None, 0), "{name}");
            }
        }
    }
}

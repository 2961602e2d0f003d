//! The schemas of the built-in kinds: generated from the k8s-openapi types, with the merge keys
//! that these types lack. Pure.

use std::sync::OnceLock;

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    apps::v1::{ControllerRevision, DaemonSet, Deployment},
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service,
        ServiceAccount,
    },
    events::v1::Event as EventsEvent,
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status};
use serde_json::{Map, Value, json};

#[cfg(test)]
use crate::schema::Schema;

/// All definitions by their `OpenAPI` name.
pub fn definitions() -> &'static Map<String, Value> {
    static DEFINITIONS: OnceLock<Map<String, Value>> = OnceLock::new();
    DEFINITIONS.get_or_init(build)
}

/// The schema of a built-in definition.
#[cfg(test)]
pub fn definition(name: &str) -> Option<Schema<'static>> {
    definitions().get(name).and_then(Schema::new)
}

pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn build() -> Map<String, Value> {
    let mut generator = schemars::SchemaGenerator::default();
    macro_rules! roots {
        ($($kind:ty),* $(,)?) => { $( generator.subschema_for::<$kind>(); )* };
    }
    roots!(
        ValidatingWebhookConfiguration,
        ControllerRevision,
        DaemonSet,
        Deployment,
        NetworkPolicy,
        PodDisruptionBudget,
        Lease,
        ConfigMap,
        Endpoints,
        Event,
        Namespace,
        Node,
        PersistentVolumeClaim,
        Pod,
        Secret,
        Service,
        ServiceAccount,
        EventsEvent,
        ClusterRole,
        ClusterRoleBinding,
        Role,
        RoleBinding,
        CustomResourceDefinition,
        DeleteOptions,
        Status,
    );
    let mut definitions: Map<String, Value> =
        generator.take_definitions(true).into_iter().collect();
    free_form(&mut definitions);
    for (owner, field, list) in LISTS {
        annotate(&mut definitions, owner, field, *list);
    }
    for owner in ATOMIC_TYPES {
        if let Some(node) = find(&mut definitions, owner) {
            node["x-kubernetes-map-type"] = "atomic".into();
        }
    }
    for (owner, field) in ATOMIC_FIELDS {
        if let Some(node) = find(&mut definitions, owner) {
            node["properties"][*field]["x-kubernetes-map-type"] = "atomic".into();
        }
    }
    for (owner, field, default) in
        [("core.v1.ContainerPort", "protocol", "TCP"), ("core.v1.ServicePort", "protocol", "TCP")]
    {
        if let Some(node) = find(&mut definitions, owner) {
            node["properties"][field]["default"] = default.into();
        }
    }
    definitions
}

/// Corrects definitions whose Go types accept more than the generated schema.
fn free_form(definitions: &mut Map<String, Value>) {
    let any = json!({"x-kubernetes-preserve-unknown-fields": true});
    for (name, node) in definitions.iter_mut() {
        if name.ends_with(".v1.JSON")
            || name.ends_with("meta.v1.FieldsV1")
            || name.ends_with("runtime.RawExtension")
        {
            node.clone_from(&any);
        }
        if name.ends_with("meta.v1.MicroTime") {
            node["x-devcluster-micro-time"] = true.into();
        }
        if name.ends_with(".resource.Quantity") {
            // A string or a number; `canonical` converts it.
            *node = json!({"x-devcluster-quantity": true});
        }
    }
}

fn find<'a>(definitions: &'a mut Map<String, Value>, suffix: &str) -> Option<&'a mut Value> {
    let suffix = format!(".{suffix}");
    definitions.iter_mut().find(|(name, _)| name.ends_with(&suffix)).map(|(_, node)| node)
}

fn annotate(definitions: &mut Map<String, Value>, owner: &str, field: &str, list: List) {
    let Some(node) = find(definitions, owner) else { return };
    let Some(property) = node["properties"].get_mut(field) else { return };
    match list {
        List::Map { keys, patch_key } => {
            property["x-kubernetes-list-type"] = "map".into();
            property["x-kubernetes-list-map-keys"] = json!(keys);
            property["x-kubernetes-patch-merge-key"] = patch_key.into();
            property["x-kubernetes-patch-strategy"] = "merge".into();
        }
        List::Set => {
            property["x-kubernetes-list-type"] = "set".into();
            property["x-kubernetes-patch-strategy"] = "merge".into();
        }
        List::RetainKeysMap { key } => {
            annotate_map(property, key);
            property["x-kubernetes-patch-strategy"] = "merge,retainKeys".into();
        }
        List::ApplyOnly { keys } => {
            property["x-kubernetes-list-type"] = "map".into();
            property["x-kubernetes-list-map-keys"] = json!(keys);
        }
        List::PatchOnly { key } => {
            property["x-kubernetes-patch-merge-key"] = key.into();
            property["x-kubernetes-patch-strategy"] = "merge".into();
        }
        List::RetainKeysObject => {
            property["x-kubernetes-patch-strategy"] = "retainKeys".into();
        }
    }
}

fn annotate_map(property: &mut Value, key: &str) {
    property["x-kubernetes-list-type"] = "map".into();
    property["x-kubernetes-list-map-keys"] = json!([key]);
    property["x-kubernetes-patch-merge-key"] = key.into();
}

/// How a field is merged by server-side apply and by strategic merge patches.
#[derive(Clone, Copy)]
enum List {
    Map {
        keys: &'static [&'static str],
        patch_key: &'static str,
    },
    Set,
    RetainKeysMap {
        key: &'static str,
    },
    /// Merged by server-side apply only.
    ApplyOnly {
        keys: &'static [&'static str],
    },
    /// Merged by strategic merge patches only.
    PatchOnly {
        key: &'static str,
    },
    RetainKeysObject,
}

const fn by(keys: &'static [&'static str]) -> List {
    List::Map { keys, patch_key: keys[0] }
}

/// From the `patchStrategy`, `patchMergeKey`, `listType` and `listMapKey` markers of the Kubernetes
/// API types.
const LISTS: &[(&str, &str, List)] = &[
    ("core.v1.PodSpec", "containers", by(&["name"])),
    ("core.v1.PodSpec", "initContainers", by(&["name"])),
    ("core.v1.PodSpec", "ephemeralContainers", by(&["name"])),
    ("core.v1.PodSpec", "volumes", List::RetainKeysMap { key: "name" }),
    ("core.v1.PodSpec", "imagePullSecrets", by(&["name"])),
    ("core.v1.PodSpec", "hostAliases", by(&["ip"])),
    ("core.v1.PodSpec", "topologySpreadConstraints", by(&["topologyKey", "whenUnsatisfiable"])),
    ("core.v1.PodSpec", "schedulingGates", by(&["name"])),
    ("core.v1.PodSpec", "resourceClaims", List::RetainKeysMap { key: "name" }),
    ("core.v1.Container", "ports", by(&["containerPort", "protocol"])),
    ("core.v1.Container", "env", by(&["name"])),
    ("core.v1.Container", "volumeMounts", by(&["mountPath"])),
    ("core.v1.Container", "volumeDevices", by(&["devicePath"])),
    ("core.v1.EphemeralContainer", "ports", by(&["containerPort", "protocol"])),
    ("core.v1.EphemeralContainer", "env", by(&["name"])),
    ("core.v1.EphemeralContainer", "volumeMounts", by(&["mountPath"])),
    ("core.v1.EphemeralContainer", "volumeDevices", by(&["devicePath"])),
    ("core.v1.ResourceRequirements", "claims", List::ApplyOnly { keys: &["name"] }),
    ("core.v1.PodStatus", "conditions", by(&["type"])),
    ("core.v1.PodStatus", "podIPs", by(&["ip"])),
    ("core.v1.PodStatus", "hostIPs", List::PatchOnly { key: "ip" }),
    ("core.v1.NodeSpec", "podCIDRs", List::Set),
    ("core.v1.NodeStatus", "conditions", by(&["type"])),
    ("core.v1.NodeStatus", "addresses", by(&["type"])),
    ("core.v1.ServiceSpec", "ports", by(&["port", "protocol"])),
    ("core.v1.ServiceStatus", "conditions", by(&["type"])),
    ("core.v1.ServiceAccount", "secrets", by(&["name"])),
    ("core.v1.NamespaceStatus", "conditions", by(&["type"])),
    ("meta.v1.ObjectMeta", "ownerReferences", by(&["uid"])),
    ("meta.v1.ObjectMeta", "finalizers", List::Set),
    ("apps.v1.DeploymentSpec", "strategy", List::RetainKeysObject),
    ("apps.v1.DeploymentStatus", "conditions", by(&["type"])),
    ("apps.v1.DaemonSetStatus", "conditions", by(&["type"])),
    ("policy.v1.PodDisruptionBudgetStatus", "conditions", by(&["type"])),
    (
        "apiextensions.v1.CustomResourceDefinitionStatus",
        "conditions",
        List::ApplyOnly { keys: &["type"] },
    ),
    ("apiextensions.v1.JSONSchemaProps", "x-kubernetes-validations", by(&["rule"])),
    ("admissionregistration.v1.ValidatingWebhookConfiguration", "webhooks", by(&["name"])),
    ("admissionregistration.v1.ValidatingWebhook", "matchConditions", by(&["name"])),
];

/// Types that server-side apply replaces as a whole.
const ATOMIC_TYPES: &[&str] = &[
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectReference",
    "core.v1.LocalObjectReference",
    "core.v1.TypedLocalObjectReference",
    "core.v1.SecretKeySelector",
    "core.v1.ConfigMapKeySelector",
    "core.v1.ObjectFieldSelector",
    "core.v1.ResourceFieldSelector",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

const ATOMIC_FIELDS: &[(&str, &str)] =
    &[("core.v1.PodSpec", "nodeSelector"), ("core.v1.ServiceSpec", "selector")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ListKind;

    #[test]
    fn every_annotated_field_exists() {
        for (owner, field, _) in LISTS {
            let exists = definitions().iter().any(|(name, node)| {
                name.ends_with(&format!(".{owner}")) && node["properties"].get(*field).is_some()
            });
            assert!(exists, "{owner}.{field}");
        }
        for owner in ATOMIC_TYPES {
            assert!(
                definitions().keys().any(|name| name.ends_with(&format!(".{owner}"))),
                "{owner}"
            );
        }
    }

    #[test]
    fn container_ports_have_port_and_protocol_as_keys() {
        let container = definition("io.k8s.api.core.v1.Container").expect("is built in");
        assert_eq!(
            container.property("ports").map(Schema::list_kind),
            Some(ListKind::Map(vec!["containerPort", "protocol"]))
        );
    }
}

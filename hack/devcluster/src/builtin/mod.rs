//! The built-in kinds: their names, scopes and subresources. Pure data; the schemas are in
//! `definitions`.

pub mod canonical;
pub mod defaults;
pub mod validate;
pub mod webhooks;
mod workload;

use serde_json::json;

use crate::resource::{NameRule, Resource, api_version};
use crate::table;

struct Kind {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    name: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    status: bool,
    generation: bool,
    /// Name of the definition, without `io.k8s.`.
    definition: &'static str,
}

const fn kind(
    group: &'static str,
    plural: &'static str,
    name: &'static str,
    definition: &'static str,
) -> Kind {
    Kind {
        group,
        version: "v1",
        plural,
        name,
        short: &[],
        namespaced: true,
        status: false,
        generation: false,
        definition,
    }
}

const CRD_DEFINITION: &str =
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";

const RBAC: &str = "rbac.authorization.k8s.io";

const KINDS: &[Kind] = &[
    Kind {
        short: &["ns"],
        namespaced: false,
        status: true,
        ..kind("", "namespaces", "Namespace", "api.core.v1.Namespace")
    },
    Kind {
        short: &["no"],
        namespaced: false,
        status: true,
        ..kind("", "nodes", "Node", "api.core.v1.Node")
    },
    Kind { short: &["po"], status: true, ..kind("", "pods", "Pod", "api.core.v1.Pod") },
    Kind {
        short: &["svc"],
        status: true,
        ..kind("", "services", "Service", "api.core.v1.Service")
    },
    Kind { short: &["ep"], ..kind("", "endpoints", "Endpoints", "api.core.v1.Endpoints") },
    Kind { short: &["cm"], ..kind("", "configmaps", "ConfigMap", "api.core.v1.ConfigMap") },
    kind("", "secrets", "Secret", "api.core.v1.Secret"),
    Kind {
        short: &["pvc"],
        status: true,
        ..kind(
            "",
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            "api.core.v1.PersistentVolumeClaim",
        )
    },
    Kind {
        short: &["sa"],
        ..kind("", "serviceaccounts", "ServiceAccount", "api.core.v1.ServiceAccount")
    },
    Kind { short: &["ev"], ..kind("", "events", "Event", "api.core.v1.Event") },
    Kind { short: &["ev"], ..kind("events.k8s.io", "events", "Event", "api.events.v1.Event") },
    Kind {
        short: &["deploy"],
        status: true,
        generation: true,
        ..kind("apps", "deployments", "Deployment", "api.apps.v1.Deployment")
    },
    kind("apps", "controllerrevisions", "ControllerRevision", "api.apps.v1.ControllerRevision"),
    Kind {
        short: &["ds"],
        status: true,
        generation: true,
        ..kind("apps", "daemonsets", "DaemonSet", "api.apps.v1.DaemonSet")
    },
    Kind {
        short: &["netpol"],
        generation: true,
        ..kind(
            "networking.k8s.io",
            "networkpolicies",
            "NetworkPolicy",
            "api.networking.v1.NetworkPolicy",
        )
    },
    Kind {
        short: &["pdb"],
        status: true,
        generation: true,
        ..kind(
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            "api.policy.v1.PodDisruptionBudget",
        )
    },
    kind("coordination.k8s.io", "leases", "Lease", "api.coordination.v1.Lease"),
    Kind {
        short: &["crd", "crds"],
        namespaced: false,
        status: true,
        generation: true,
        ..kind(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            CRD_DEFINITION,
        )
    },
    kind(RBAC, "roles", "Role", "api.rbac.v1.Role"),
    kind(RBAC, "rolebindings", "RoleBinding", "api.rbac.v1.RoleBinding"),
    Kind {
        namespaced: false,
        ..kind(RBAC, "clusterroles", "ClusterRole", "api.rbac.v1.ClusterRole")
    },
    Kind {
        namespaced: false,
        ..kind(RBAC, "clusterrolebindings", "ClusterRoleBinding", "api.rbac.v1.ClusterRoleBinding")
    },
    Kind {
        namespaced: false,
        generation: true,
        ..kind(
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
            "api.admissionregistration.v1.ValidatingWebhookConfiguration",
        )
    },
];

pub fn resources() -> Vec<Resource> {
    KINDS.iter().map(resource).collect()
}

fn resource(kind: &Kind) -> Resource {
    let name_rule = match kind.plural {
        "namespaces" => NameRule::Label,
        "services" => NameRule::ServiceLabel,
        "roles" | "rolebindings" | "clusterroles" | "clusterrolebindings" => NameRule::PathSegment,
        _ => NameRule::Subdomain,
    };
    let storage_group = if kind.plural == "events" { "" } else { kind.group };
    Resource {
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        plural: kind.plural.to_owned(),
        singular: kind.name.to_lowercase(),
        kind: kind.name.to_owned(),
        list_kind: format!("{}List", kind.name),
        namespaced: kind.namespaced,
        short_names: kind.short.iter().map(|name| (*name).to_owned()).collect(),
        categories: match kind.plural {
            "pods" | "services" | "deployments" | "daemonsets" => vec!["all".to_owned()],
            "customresourcedefinitions" | "validatingwebhookconfigurations" => {
                vec!["api-extensions".to_owned()]
            }
            _ => Vec::new(),
        },
        has_status: kind.status,
        scale: None,
        status_on_create: kind.plural == "nodes",
        counts_generation: kind.generation,
        name_rule,
        selectable: crate::selector::fields_of(kind.plural),
        schema: json!({"$ref": format!("#/$defs/io.k8s.{}", kind.definition)}),
        custom: false,
        columns: table::builtin::columns(kind.plural),
        storage: format!("{storage_group}/{}", kind.plural).into(),
        storage_version: api_version(storage_group, kind.version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;

    #[test]
    fn every_kind_has_a_schema() {
        for resource in resources() {
            assert!(Schema::new(&resource.schema).is_some(), "{}", resource.kind);
        }
    }
}

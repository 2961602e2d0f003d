//! The messages that kubectl writes, as tables of their fields. Pure data.

/// How a field's bytes become JSON.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Integer,
    Flag,
    Texts,
    /// map<string, string>
    TextMap,
    /// map<string, bytes>, base64 in JSON.
    BytesMap,
    Message(&'static str),
    Messages(&'static str),
    IntOrString,
    /// Set by the server, whatever the client sends.
    Ignored,
}

use Kind::{
    BytesMap, Flag, Ignored, IntOrString, Integer, Message, Messages, Text, TextMap, Texts,
};

/// Number, name in JSON, and form.
pub type Field = (u64, &'static str, Kind);

/// From the `generated.proto` files of the Kubernetes API.
pub const MESSAGES: &[(&str, &[Field])] = &[
    (
        "Namespace",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("NamespaceSpec")),
            (3, "status", Ignored),
        ],
    ),
    ("NamespaceSpec", &[(1, "finalizers", Texts)]),
    (
        "ConfigMap",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "data", TextMap),
            (3, "binaryData", BytesMap),
            (4, "immutable", Flag),
        ],
    ),
    (
        "Secret",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "data", BytesMap),
            (3, "type", Text),
            (4, "stringData", TextMap),
            (5, "immutable", Flag),
        ],
    ),
    ("ServiceAccount", &[(1, "metadata", Message("ObjectMeta"))]),
    (
        "Service",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("ServiceSpec")),
            (3, "status", Ignored),
        ],
    ),
    (
        "ServiceSpec",
        &[
            (1, "ports", Messages("ServicePort")),
            (2, "selector", TextMap),
            (3, "clusterIP", Text),
            (4, "type", Text),
            (10, "externalName", Text),
        ],
    ),
    (
        "ServicePort",
        &[
            (1, "name", Text),
            (2, "protocol", Text),
            (3, "port", Integer),
            (4, "targetPort", IntOrString),
            (5, "nodePort", Integer),
        ],
    ),
    (
        "Deployment",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "spec", Message("DeploymentSpec")),
            (3, "status", Ignored),
        ],
    ),
    (
        "DeploymentSpec",
        &[
            (1, "replicas", Integer),
            (2, "selector", Message("LabelSelector")),
            (3, "template", Message("PodTemplateSpec")),
            (4, "strategy", Message("DeploymentStrategy")),
        ],
    ),
    ("DeploymentStrategy", &[(1, "type", Text)]),
    ("LabelSelector", &[(1, "matchLabels", TextMap)]),
    ("PodTemplateSpec", &[(1, "metadata", Message("ObjectMeta")), (2, "spec", Message("PodSpec"))]),
    ("PodSpec", &[(2, "containers", Messages("Container"))]),
    (
        "Container",
        &[
            (1, "name", Text),
            (2, "image", Text),
            (3, "command", Texts),
            (4, "args", Texts),
            (6, "ports", Messages("ContainerPort")),
        ],
    ),
    (
        "ContainerPort",
        &[
            (1, "name", Text),
            (2, "hostPort", Integer),
            (3, "containerPort", Integer),
            (4, "protocol", Text),
            (5, "hostIP", Text),
        ],
    ),
    ("Role", &[(1, "metadata", Message("ObjectMeta")), (2, "rules", Messages("PolicyRule"))]),
    (
        "ClusterRole",
        &[(1, "metadata", Message("ObjectMeta")), (2, "rules", Messages("PolicyRule"))],
    ),
    (
        "PolicyRule",
        &[
            (1, "verbs", Texts),
            (2, "apiGroups", Texts),
            (3, "resources", Texts),
            (4, "resourceNames", Texts),
            (5, "nonResourceURLs", Texts),
        ],
    ),
    (
        "RoleBinding",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "subjects", Messages("Subject")),
            (3, "roleRef", Message("RoleRef")),
        ],
    ),
    (
        "ClusterRoleBinding",
        &[
            (1, "metadata", Message("ObjectMeta")),
            (2, "subjects", Messages("Subject")),
            (3, "roleRef", Message("RoleRef")),
        ],
    ),
    (
        "Subject",
        &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)],
    ),
    ("RoleRef", &[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)]),
    (
        "ObjectMeta",
        &[
            (1, "name", Text),
            (2, "generateName", Text),
            (3, "namespace", Text),
            (5, "uid", Text),
            (6, "resourceVersion", Text),
            (8, "creationTimestamp", Ignored),
            (11, "labels", TextMap),
            (12, "annotations", TextMap),
            (14, "finalizers", Texts),
        ],
    ),
    ("DeleteOptions", &[(4, "propagationPolicy", Text), (5, "dryRun", Texts)]),
    ("Unknown", &[(1, "typeMeta", Message("TypeMeta"))]),
    ("TypeMeta", &[(1, "apiVersion", Text), (2, "kind", Text)]),
];

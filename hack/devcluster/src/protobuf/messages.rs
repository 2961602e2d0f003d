//! The messages that are decoded, as tables of their fields. Pure data.

/// The way in which the bytes of a field become JSON.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    Flag,
    Texts,
    /// A map with texts as keys and values.
    TextMap,
    /// A map with texts as keys and bytes as values, which are base64 in JSON.
    BytesMap,
    Message(&'static str),
    /// A list of messages.
    Messages(&'static str),
    /// Set by the server only.
    Ignored,
}

use Kind::{BytesMap, Flag, Ignored, Message, Messages, Text, TextMap, Texts};

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
        "RoleBinding",
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
    // Sent by `helm uninstall` for the release's Secret.
    ("DeleteOptions", &[(4, "propagationPolicy", Text), (5, "dryRun", Texts)]),
    ("TypeMeta", &[(1, "apiVersion", Text), (2, "kind", Text)]),
];

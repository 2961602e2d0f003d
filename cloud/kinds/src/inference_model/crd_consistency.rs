//! Tests that the CRD rejects no `InferenceModel` that the controller accepts.

use std::sync::Arc;

use neptune_api::{Model, ModelSpec};
use serde_json::{Value, json};

use crate::{
    crd_consistency::compare,
    inference_model::{fixtures, target::InferenceModelFacts, validate::validate},
};

/// Variables and volumes of a server, valid and invalid.
fn inputs() -> impl Iterator<Item = Value> {
    let mounts = json!([{"name": "a", "mountPath": "/a"}]);
    let volume = |source: Value| json!({"volumes": [source], "volumeMounts": mounts});
    let secret = json!({"name": "a", "key": "b"});
    [
        volume(json!({"name": "a", "emptyDir": {}})),
        volume(json!({"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})),
        volume(json!({"name": "a", "hostPath": {"path": "/srv"}})),
        volume(json!({"name": "a"})),
        json!({ "volumeMounts": mounts }),
        json!({"env": [{"name": "A", "value": "a"}]}),
        json!({"env": [{"name": "A", "value": "a"}, {"name": "A", "value": "b"}]}),
        json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": secret}}]}),
        json!({"env": [{"name": "A", "valueFrom": {"nodeLabel": "line"}}]}),
        json!({"envFrom": [{"configMapRef": {"name": "a"}}]}),
        json!({"envFrom": [{}]}),
    ]
    .into_iter()
}

/// Valid and invalid changes of the sample, at the limits of each field.
fn changes() -> Vec<Value> {
    let file = |field: &str, value: &str| {
        let mut file = json!({"version": "4", "downloadURL": "http://h/a"});
        file[field] = value.into();
        json!({ "manifest": [file] })
    };
    let mut changes = vec![
        json!({}),
        json!({"nodeName": null}),
        json!({"nodeName": null, "nodeSelector": null}),
        json!({"deployToLayer": "cloud", "nodeName": null, "nodeSelector": null}),
        json!({"placement": null}),
        json!({"placement": "One"}),
        json!({"placement": "All"}),
        json!({"nodeName": null, "placement": "All"}),
        json!({"nodeSelector": {"not a label": "no value of one!"}}),
        json!({"manifest": []}),
        json!({"manifest": null}),
        json!({"manifest": [{"version": "4", "downloadURL": "http://h"}, {"version": "4", "downloadURL": "http://h"}]}),
        json!({"manifest": [{"version": "4"}]}),
        json!({"manifest": [{"downloadURL": "http://h"}, {"version": "4", "downloadURL": "http://h"}]}),
        json!({"targetVersion": null}),
        json!({"model": {"name": "small"}}),
        json!({"model": {"name": "small"}, "manifest": null, "targetVersion": null}),
        json!({"model": {"name": "small"}, "manifest": [], "targetVersion": ""}),
        json!({"model": {"name": "small"}, "manifest": null}),
        json!({"health": {"tcp": true, "httpPath": ""}}),
        json!({"health": {"tcp": true, "httpPath": "/a"}}),
        json!({"health": {"tcp": false, "httpPath": "/a"}}),
        json!({"health": {}}),
        json!({"grpcPort": 8502}),
        json!({"frameworkType": "triton", "grpcPort": 8502}),
        json!({"frameworkType": "triton", "grpcPort": 8501, "servingPort": 8501}),
    ];
    changes.extend(transformers());
    changes.extend(inputs().map(|server| json!({ "server": server })));
    let names = ["", "a", "A", "a_b", "a-b.c", "-a", "a-", "a..b", "9", "workers", "a b", "ä"];
    let long = [63, 64, 253, 254].map(|length| "a".repeat(length));
    for name in names.into_iter().chain(long.iter().map(String::as_str)) {
        changes.push(json!({ "nodeName": name }));
        changes.push(json!({ "modelName": name }));
        // The CRD rejects longer names also where they are not used.
        if name.len() <= 128 {
            changes.push(json!({ "frameworkType": name }));
            let manifest = json!([{"version": name, "downloadURL": "http://h"}]);
            changes.push(json!({ "targetVersion": name, "manifest": manifest }));
        }
    }
    for url in [
        "",
        "/",
        "//",
        "/m",
        "/m/../x",
        "m",
        "file:///m",
        "FILE:///m",
        "file://m",
        "file://",
        "http://h",
        "HTTP://h/m?x#y",
        "http://",
        "http:///m",
        "http://?",
        "https://h/m",
        "s3://b/k",
        "s3://bucket/k",
        "S3://bucket/k",
        "file://localhost/m",
        "s3://b/",
        "s3://b",
        "s3:///k",
        "ftp://h/m",
        "h/m",
    ] {
        changes.push(file("downloadURL", url));
    }
    for digest in [String::new(), "aB".repeat(32), "a".repeat(63), "a".repeat(65), "g".repeat(64)] {
        changes.push(file("sha256sum", &digest));
    }
    changes.extend(mirrors().chain(patterns()));
    for number in [-1, 0, 1, 65_535, 65_536, i32::MAX] {
        changes.push(json!({ "servingPort": number }));
        changes.push(json!({ "frameworkType": "triton", "grpcPort": number }));
        changes.push(json!({ "replicas": number }));
        changes.push(json!({ "health": {"probationSeconds": number} }));
    }
    for number in [-1, 0, 1, 86_400, 86_401] {
        changes.push(json!({ "health": {"periodSeconds": number} }));
        changes.push(json!({ "health": {"timeoutSeconds": number} }));
        changes.push(json!({ "health": {"startWithinSeconds": number} }));
    }
    for text in
        ["", "edge", "cloud", "Edge", "NodePort", "ClusterIP", "LoadBalancer", "ExternalName"]
    {
        changes.push(json!({ "deployToLayer": text }));
        changes.push(json!({ "serviceType": text }));
    }
    for path in ["", "/", "/a/{version}", "a", "/a b", "/a\tb", "/a\u{a0}b", "/ä"] {
        changes.push(json!({ "health": {"httpPath": path} }));
    }
    changes
}

/// Mirrors with and without the digest that they need.
fn mirrors() -> impl Iterator<Item = Value> {
    let digest = "aB".repeat(32);
    let mirrored = |mirror: &str, digest: &str| {
        let file = json!({
            "version": "4", "downloadURL": "http://h/a", "sha256sum": digest, "mirrors": [mirror],
        });
        json!({ "manifest": [file] })
    };
    let with_digest =
        ["HTTP://a/m", "hf://o/r/m", "/m", ""].map(|mirror| mirrored(mirror, &digest));
    with_digest.into_iter().chain([mirrored("http://a/m", "")])
}

/// Patterns of files, beside addresses that have files and others.
fn patterns() -> impl Iterator<Item = Value> {
    let addresses = [
        ("hf://o/r", "*.json"),
        ("oci://h/r", "a/**"),
        ("hf://o/r/m", "*"),
        ("http://h/a", "*"),
        ("hf://o/r", "../a"),
        ("hf://o/r", ""),
    ];
    addresses.into_iter().map(|(url, pattern)| {
        let file = json!({"version": "4", "downloadURL": url, "files": [pattern]});
        json!({ "manifest": [file] })
    })
}

fn transformers() -> Vec<Value> {
    let mut changes = Vec::new();
    for transformer in [
        json!({}),
        json!({"image": ""}),
        json!({"image": "t:1"}),
        json!({"image": "t:1", "style": "KServe"}),
        json!({"image": "t:1", "scriptBootFile": ""}),
        json!({"image": "t:1", "scriptBootFile": "t.py"}),
        json!({"scriptDir": "/t", "scriptBootFile": "t.py"}),
        json!({"scriptDir": "/t", "scriptBootFile": "t.py", "frameworkType": "python"}),
        json!({"scriptDir": "/t", "scriptBootFile": "t.py", "frameworkType": "python", "frameworkVersion": "3"}),
        json!({"image": "t:1", "scriptDir": "/t", "scriptBootFile": "t.py", "frameworkType": "python"}),
        json!({"image": "t:1", "parameters": [{"key": "a", "value": ""}, {"key": "a", "value": ""}]}),
        json!({"image": "t:1", "parameters": [{"key": "", "value": ""}]}),
        json!({"image": "t:1", "env": [{"name": "A"}, {"name": "A"}]}),
        json!({"image": "t:1", "env": [{"name": "1"}]}),
        json!({"image": "t:1", "resources": {"limits": {"cpu": "0"}}}),
    ] {
        changes.push(json!({ "transformer": transformer }));
    }
    for port in [-1, 0, 1, 8501, 65_535, 65_536] {
        changes.push(json!({ "transformer": {"image": "t:1", "port": port} }));
    }
    let transformer = json!({"image": "t:1"});
    changes.push(json!({"frameworkType": "triton", "grpcPort": 8502, "transformer": transformer}));
    changes
}

fn small_model() -> Arc<Model> {
    let sha256sum = Some("ab".repeat(32));
    let spec = ModelSpec { model_url: "http://h/m".into(), sha256sum, ..ModelSpec::default() };
    Arc::new(Model::new("small", spec))
}

#[tokio::test]
async fn crd_accepts_every_valid_inference_model() {
    let mut all = changes();
    // With an image the manifest is not checked.
    all.extend(changes().into_iter().map(|mut change| {
        change["image"] = "registry.test/served:1".into();
        change
    }));
    let counts = compare(&fixtures::model(), &all, |model| {
        let named = model.spec.node_name.as_deref().filter(|name| !name.is_empty());
        let facts = InferenceModelFacts {
            named: named.map(fixtures::edge_node),
            selected: fixtures::selected(vec![fixtures::edge_node("precision-5820")]),
            source: Some(small_model()),
            ..fixtures::facts()
        };
        validate(model, &facts).is_ok()
    })
    .await;
    // Only the controller checks a path with "..", an unknown framework and port 0.
    assert!(
        counts.accepted > 100 && counts.rejected > 80 && counts.rejected_later < 40,
        "{counts:?}"
    );
}

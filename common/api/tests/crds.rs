//! The committed CRDs are equal to the generated ones, and API servers accept them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{collections::BTreeMap, path::Path};

use neptune_api::crdgen;
use neptune_cel_cost::unbounded;
use serde_json::{Value, json};

const REMEDY: &str = "run: cargo run -p neptune-cloud -- crds --output crds";

fn crds() -> Vec<Value> {
    crdgen::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect()
}

fn crd(plural: &str) -> Value {
    crds().into_iter().find(|crd| crd["spec"]["names"]["plural"] == plural).unwrap()
}

#[test]
fn committed_crds_equal_the_generated_ones() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read_to_string(entry.path()).unwrap())
    };
    let committed: BTreeMap<_, _> = std::fs::read_dir(directory).unwrap().map(read).collect();
    let generated: BTreeMap<_, _> = crdgen::files().into_iter().collect();
    for (name, text) in &generated {
        let old = committed.get(name).unwrap_or_else(|| panic!("crds/{name} is missing; {REMEDY}"));
        assert!(old == text, "crds/{name} differs from the types; {REMEDY}");
    }
    for name in committed.keys() {
        assert!(generated.contains_key(name), "crds/{name} does not belong to a type; delete it");
    }
}

#[test]
fn stream_has_every_file_as_a_document() {
    let files = crdgen::files().into_iter().map(|(_, text)| format!("---\n{text}"));
    assert_eq!(crdgen::stream(), files.collect::<String>());
}

#[test]
fn names_are_as_documented() {
    let names: Vec<_> = crds()
        .iter()
        .map(|crd| {
            let spec = &crd["spec"];
            json!([
                crd["metadata"]["name"],
                spec["names"]["kind"],
                spec["scope"],
                spec["versions"][0]["name"],
                spec["names"]["shortNames"]
            ])
        })
        .collect();
    assert_eq!(
        names,
        [
            json!(["datasets.edgeai.io", "Dataset", "Namespaced", "v1alpha1", null]),
            json!(["edgenodes.neptune.io", "EdgeNode", "Cluster", "v1alpha1", ["en"]]),
            json!(["inferencemodels.sedna.io", "InferenceModel", "Namespaced", "v1alpha1", ["im"]]),
            json!([
                "jointinferenceservices.neptune.io",
                "JointInferenceService",
                "Namespaced",
                "v1alpha1",
                ["jointinferenceservice", "jis"]
            ]),
            json!(["logrequests.neptune.io", "LogRequest", "Namespaced", "v1alpha1", null]),
            json!(["models.edgeai.io", "Model", "Namespaced", "v1alpha1", null]),
            json!([
                "nodereportslices.neptune.io",
                "NodeReportSlice",
                "Namespaced",
                "v1alpha1",
                ["nrs"]
            ]),
            json!(["trainingmodels.sedna.io", "TrainingModel", "Namespaced", "v1alpha1", ["tm"]]),
        ]
    );
    for crd in crds() {
        let is_slice = crd["spec"]["names"]["plural"] == "nodereportslices";
        let expected = if is_slice { json!(null) } else { json!({}) };
        assert_eq!(crd["spec"]["versions"][0]["subresources"]["status"], expected, "{crd}");
    }
}

#[test]
fn inference_models_can_be_scaled() {
    let crd = crd("inferencemodels");
    let version = &crd["spec"]["versions"][0];
    let scale = json!({"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"});
    assert_eq!(version["subresources"]["scale"], scale);
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(spec["replicas"]["default"], 1, "a Scale has no number otherwise");
}

fn columns(plural: &str) -> Vec<Value> {
    let crd = crd(plural);
    let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
    columns.iter().map(|c| json!([c["name"], c["type"], c["jsonPath"]])).collect()
}

#[test]
fn printer_columns_are_as_documented() {
    assert_eq!(
        columns("jointinferenceservices"),
        [
            json!(["status", "string", ".status.conditions[-1].type"]),
            json!(["active", "integer", ".status.active"]),
            json!(["failed", "integer", ".status.failed"]),
            json!(["Nodes", "string", ".status.nodeCounts.summary"]),
            json!(["Rollout", "string", ".status.rollout.summary"]),
            json!(["Inference", "string", r#".status.metrics[?(@.key=="inferenceNumber")].value"#]),
            json!([
                "HardExamples",
                "string",
                r#".status.metrics[?(@.key=="hardExampleNumber")].value"#
            ]),
            json!([
                "UploadRatio",
                "string",
                r#".status.metrics[?(@.key=="uploadCloudRatio")].value"#
            ]),
            json!(["Agreement", "string", ".status.gateway.agreement"]),
            json!(["Threshold", "string", ".status.gateway.threshold"]),
            json!(["Cloud", "string", ".status.gateway.cloud"]),
            json!(["URL", "string", ".status.gateway.url"]),
            json!(["ServiceURL", "string", ".status.gateway.serviceUrl"]),
            json!(["Model", "string", ".status.model.name"]),
            json!(["Reason", "string", ".status.conditions[-1].reason"]),
            json!(["Age", "date", ".metadata.creationTimestamp"]),
        ]
    );
    assert_eq!(
        columns("inferencemodels"),
        [
            json!(["Layer", "string", ".spec.deployToLayer"]),
            json!(["Node", "string", ".status.node"]),
            json!(["Target", "string", ".status.targetVersion"]),
            json!(["Serving", "string", ".status.servingVersion"]),
            json!(["Status", "string", ".status.transitionStatus"]),
            json!(["Progress", "string", ".status.progress.summary"]),
            json!(["Rollout", "string", ".status.rollout.summary"]),
            json!(["Ready", "string", r#".status.conditions[?(@.type=="Ready")].status"#]),
            json!(["URL", "string", ".status.url"]),
            json!(["Age", "date", ".metadata.creationTimestamp"]),
        ]
    );
    assert_eq!(crd("inferencemodels")["spec"]["names"]["categories"], json!(["neptune"]));
    assert_eq!(
        columns("trainingmodels"),
        [
            json!(["Phase", "string", ".status.phase"]),
            json!(["Round", "string", ".status.progress"]),
            json!(["Workers", "string", ".status.participants"]),
            json!(["Metric", "string", ".status.metric"]),
            json!(["Loss", "string", r#".status.metrics[?(@.key=="loss")].value"#]),
            json!(["Output", "string", ".status.output.model"]),
            json!(["Run", "integer", ".status.run"]),
            json!(["Reason", "string", r#".status.conditions[?(@.type=="Degraded")].reason"#]),
            json!(["Aggregator", "string", ".status.aggregator.url"]),
            json!(["Age", "date", ".metadata.creationTimestamp"]),
        ]
    );
    assert_eq!(crd("trainingmodels")["spec"]["names"]["categories"], json!(["neptune"]));
    assert_eq!(
        columns("datasets"),
        [
            json!(["NumberOfSamples", "integer", ".status.numberOfSamples"]),
            json!(["Node", "string", ".spec.nodeName"]),
            json!(["spec", "string", ".spec"]),
            json!(["Status", "string", r#".status.conditions[?(@.type=="Ready")].reason"#]),
            json!(["Replicas", "string", ".status.replicasInSync"]),
            json!(["Lag", "string", ".status.lag"]),
            json!(["Age", "date", ".metadata.creationTimestamp"]),
        ]
    );
    assert_eq!(
        columns("edgenodes"),
        [
            json!(["Ready", "string", r#".status.conditions[?(@.type=="Ready")].status"#]),
            json!(["Version", "string", ".status.agentVersion"]),
            json!(["Engine", "string", ".status.engine"]),
            json!(["Devices", "string", ".status.deviceSummary"]),
            json!(["Key", "string", r#".status.conditions[?(@.type=="KeyTrusted")].reason"#]),
            json!(["Age", "date", ".metadata.creationTimestamp"]),
        ]
    );
    assert_eq!(
        columns("models"),
        [
            json!(["updateAGE", "date", ".status.updateTime"]),
            json!(["metrics", "string", ".status.metrics"]),
            json!(["Nodes", "string", ".status.presentOn"]),
            json!(["Placed", "string", ".status.placed"]),
            json!(["UsedBy", "string", ".status.usedBy"]),
            json!(["Task", "string", ".spec.metadata.task"]),
            json!(["Version", "string", ".spec.metadata.version"]),
            json!(["Ready", "string", r#".status.conditions[?(@.type=="Ready")].status"#]),
            json!(["Reason", "string", r#".status.conditions[?(@.type=="Ready")].reason"#]),
        ]
    );
}

#[test]
fn required_fields_are_as_documented() {
    let crd = crd("jointinferenceservices");
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let required = |pointer: &str| {
        let mut names: Vec<_> = spec
            .pointer(pointer)
            .and_then(Value::as_array)
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(required("/required"), "cloudWorker edgeWorker");
    let edge = "/properties/edgeWorker";
    let cloud = "/properties/cloudWorker";
    assert_eq!(required(&format!("{edge}/required")), "hardExampleAlgorithm name");
    assert_eq!(required(&format!("{cloud}/required")), "name");
    assert_eq!(required(&format!("{cloud}/properties/model/required")), "name");
    let selector = format!("{edge}/properties/model/properties/selector/required");
    assert_eq!(required(&selector), "matchLabels", "a rule requires name or selector");
    for worker in [edge, cloud] {
        let worker_spec = format!("{worker}/properties/workerSpec/required");
        assert_eq!(required(&worker_spec), "frameworkType", "rules require the fields of scripts");
    }
}

/// API servers refuse a CRD with a rule whose cost they cannot bound. One such CRD is missing for
/// all its objects.
#[test]
fn cost_of_every_rule_is_bounded() {
    for crd in crds() {
        let findings: Vec<_> = unbounded(&crd).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}: {findings:#?}", crd["metadata"]["name"]);
    }
}

/// API servers refuse schemas that are not structural, and warn about unknown formats.
#[test]
fn schemas_are_structural_and_describe_every_field() {
    fn walk(path: &str, schema: &Value) {
        if schema["x-kubernetes-int-or-string"] == true {
            assert!(schema.get("type").is_none(), "{path} has a type and is a number or a string");
            return;
        }
        let type_ = schema["type"].as_str().unwrap_or_else(|| panic!("{path} has no type"));
        for keyword in ["anyOf", "oneOf", "allOf", "$ref", "const", "default"] {
            // The scale subresource needs a value.
            let is_expected = keyword == "default" && path == "spec.replicas";
            assert!(is_expected || schema.get(keyword).is_none(), "{path} has {keyword}");
        }
        if let Some(format) = schema.get("format") {
            let known = ["int32", "int64", "date-time"];
            assert!(known.contains(&format.as_str().unwrap()), "{path}: format {format}");
        }
        match type_ {
            "array" => walk(&format!("{path}[]"), &schema["items"]),
            "object" => {
                for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                    let described = property["description"].as_str().is_some_and(|d| !d.is_empty());
                    assert!(described, "{path}.{name} has no description");
                    walk(&format!("{path}.{name}"), property);
                }
            }
            _ => {}
        }
    }
    for crd in crds() {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let is_slice = crd["spec"]["names"]["plural"] == "nodereportslices";
        let parts = if is_slice { ["folded", "rows"] } else { ["spec", "status"] };
        for part in parts {
            walk(part, &schema["properties"][part]);
        }
    }
}

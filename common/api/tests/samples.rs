//! Every documented sample is valid for the types and the generated schemas, without unknown
//! fields.
#![allow(clippy::unwrap_used, clippy::panic)]

use kube::{CustomResourceExt, Resource};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model, TrainingModel};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Strict field validation, as in an API server, for the keywords that the schemas use.
fn check(path: &str, schema: &Value, value: &Value, findings: &mut Vec<String>) {
    let is_integer = value.is_i64() || value.is_u64();
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => is_integer,
        Some("boolean") => value.is_boolean(),
        None if schema["x-kubernetes-int-or-string"] == true => is_integer || value.is_string(),
        other => panic!("{path}: this check does not support type {other:?}"),
    };
    if !fits {
        findings.push(format!("{path}: {value} does not fit {schema}"));
        return;
    }
    if let (Some(minimum), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < minimum
    {
        findings.push(format!("{path}: {number} is below {minimum}"));
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        findings.push(format!("{path}: {value} is not one of {allowed:?}"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&format!("{path}[{index}]"), &schema["items"], item, findings);
    }
    let Some(fields) = value.as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(required.as_str().unwrap()) {
            findings.push(format!("{path}: {required} is missing"));
        }
    }
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        let property = schema["properties"].get(name).or(schema.get("additionalProperties"));
        match property {
            Some(property) => check(&path, property, field, findings),
            None => findings.push(format!("{path} is unknown")),
        }
    }
}

fn findings<K: CustomResourceExt>(object: &Value) -> Vec<String> {
    let crd = serde_json::to_value(K::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut findings = Vec::new();
    for (name, value) in object.as_object().unwrap() {
        match name.as_str() {
            "apiVersion" | "kind" | "metadata" => {}
            part => check(part, &schema["properties"][part], value, &mut findings),
        }
    }
    findings
}

fn assert_valid<K>(yaml: &str)
where
    K: CustomResourceExt + Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    let object: Value = serde_saphyr::from_str(yaml).unwrap();
    assert_eq!(object["apiVersion"], K::api_version(&()).as_ref());
    assert_eq!(object["kind"], K::kind(&()).as_ref());
    assert_eq!(findings::<K>(&object), Vec::<String>::new());
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    let mut back = serde_json::to_value(typed).unwrap();
    // A missing status is serialized as null, which API servers treat as missing.
    back.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(back, object, "the type dropped a field");
}

/// Objects of version 0.2, which are never changed: clusters have stored them.
#[test]
fn objects_of_0_2_are_valid() {
    assert_valid::<JointInferenceService>(include_str!("golden/0.2/jointinferenceservice.yaml"));
    assert_valid::<JointInferenceService>(include_str!("golden/0.2/assistant.yaml"));
    assert_valid::<Dataset>(include_str!("golden/0.2/dataset.yaml"));
    assert_valid::<Model>(include_str!("golden/0.2/model.yaml"));
    assert_valid::<InferenceModel>(include_str!("golden/0.2/inferencemodel.yaml"));
    assert_valid::<TrainingModel>(include_str!("golden/0.2/trainingmodel.yaml"));
}

#[test]
fn joint_inference_service_sample_is_valid() {
    assert_valid::<JointInferenceService>(include_str!("samples/jointinferenceservice.yaml"));
}

#[test]
fn dataset_sample_is_valid() {
    assert_valid::<Dataset>(include_str!("samples/dataset.yaml"));
}

#[test]
fn model_sample_is_valid() {
    assert_valid::<Model>(include_str!("samples/model.yaml"));
}

#[test]
fn inference_model_sample_is_valid() {
    assert_valid::<InferenceModel>(include_str!("samples/inferencemodel.yaml"));
}

#[test]
fn example_of_a_selection_is_valid() {
    let example = include_str!("../../../examples/selection/selection.yaml");
    let parts: Vec<_> = example.split("\n---\n").collect();
    let [first, second, service, served] = parts[..] else { panic!("{} objects", parts.len()) };
    assert_valid::<Model>(first);
    assert_valid::<Model>(second);
    assert_valid::<JointInferenceService>(service);
    assert_valid::<InferenceModel>(served);
}

#[test]
fn training_model_sample_is_valid() {
    assert_valid::<TrainingModel>(include_str!("samples/trainingmodel.yaml"));
}

#[test]
fn optional_fields_of_a_training_model_are_valid() {
    let sample = include_str!("samples/trainingmodel.yaml");
    let mut object: Value = serde_saphyr::from_str(sample).unwrap();
    let spec = &mut object["spec"];
    spec["initialWeights"] = serde_json::json!({"model": {"name": "digits-small"}});
    spec["script"] = serde_json::json!({"scriptDir": "/opt/train", "bootFile": "train.py"});
    spec["workerSpec"] = serde_json::json!({
        "image": "train:1", "parameters": [{"key": "lr", "value": "0.1"}], "network": "Bridge",
        "env": [{"name": "LOG", "value": "debug"}],
        "resources": {"limits": {"memory": "2Gi"}}, "securityContext": {"runAsUser": 1000},
    });
    spec["aggregation"] = serde_json::json!({
        "strategy": "TrimmedMean", "rounds": 3, "minWorkers": 2, "roundTimeout": "none",
        "grace": "30s", "maxDeadlines": 2, "onTooFewWorkers": "Wait", "fraction": "0.5", "weights": "Equal", "maxWeight": "0.4",
        "clip": {"maxNormFactor": "2", "refuseNormFactor": "5"}, "trim": "0.2",
        "serverLearningRate": "1", "serverMomentum": "0.9", "maxUpdateBytes": "64Mi", "seed": 7,
        "service": {"type": "LoadBalancer", "address": "training.example:8418"},
        "storageClassName": "fast",
    });
    spec["earlyStop"] = serde_json::json!({"patience": 3, "minDelta": "0.001", "target": "-0.97"});
    spec["schedule"] = serde_json::json!({
        "type": "OnGrowth", "dataset": {"name": "hard"}, "newSamples": 500, "minInterval": "1h",
        "maxRuns": 5,
    });
    (spec["suspend"], spec["backoffLimit"]) = (true.into(), 0.into());
    spec["activeDeadline"] = "12h".into();
    assert_valid::<TrainingModel>(&serde_saphyr::to_string(&object).unwrap());
}

#[test]
fn training_model_with_an_engine_is_valid() {
    let sample = include_str!("samples/trainingmodel.yaml");
    let mut object: Value = serde_saphyr::from_str(sample).unwrap();
    object["spec"]["aggregation"] = serde_json::json!({
        "strategy": "Worker", "rounds": 3,
        "worker": {
            "frameworkType": "flower", "frameworkVersion": "1.41", "image": "flower:1",
            "args": ["--verbose"], "port": 8000, "resources": {"limits": {"memory": "1Gi"}},
            "state": "2Gi",
        },
    });
    assert_valid::<TrainingModel>(&serde_saphyr::to_string(&object).unwrap());
}

#[test]
fn optional_fields_of_a_service_are_valid() {
    let sample = include_str!("samples/jointinferenceservice.yaml");
    let mut object: Value = serde_saphyr::from_str(sample).unwrap();
    let edge = &mut object["spec"]["edgeWorker"];
    edge["hardExampleAlgorithm"]["parameters"] =
        serde_json::json!([{"key": "threshold_img", "value": "0.9"}]);
    edge["dataset"] = serde_json::json!({"name": "frames"});
    edge["workerSpec"]["image"] = "digits:1".into();
    edge["workerSpec"]["env"] = serde_json::json!([{"name": "LOG", "value": "debug"}]);
    edge["workerSpec"]["resources"] =
        serde_json::json!({"limits": {"cpu": 1, "memory": "256Mi", "nvidia.com/gpu": 1}});
    assert_valid::<JointInferenceService>(&serde_saphyr::to_string(&object).unwrap());
}

#[test]
fn service_without_code_is_valid() {
    let sample = include_str!("samples/assistant.yaml");
    assert_valid::<JointInferenceService>(sample);
    let mut object: Value = serde_saphyr::from_str(sample).unwrap();
    let spec = &mut object["spec"];
    spec["gateway"] = serde_json::json!({
        "port": 8081, "grpcPort": 8082, "expose": true, "onCloudFailure": "Error", "onEdgeFailure": "Cloud",
        "timeouts": {"edge": "2m", "cloudConnect": "500ms", "cloudFirstByte": "1s", "cloudTotal": "1h"},
        "streaming": "Prefix", "neverUpload": {"headers": ["x-private: yes"]},
        "maxBodyBytes": "8Mi", "maxInFlight": 16,
    });
    spec["edgeWorker"]["server"] = serde_json::json!({
        "frameworkType": "llamacpp", "image": "llama:1", "args": ["--ctx-size", "2048"],
        "resources": {"limits": {"memory": "2Gi"}}, "protocol": "openai",
        "securityContext": {"runAsUser": 1000},
    });
    spec["edgeWorker"]["hardExampleAlgorithm"]["goal"] =
        serde_json::json!({"agreement": "0.97", "maxUploadRatio": "0.5", "shadowRatio": "0"});
    assert_valid::<JointInferenceService>(&serde_saphyr::to_string(&object).unwrap());
}

#[test]
fn optional_fields_of_a_dataset_are_valid() {
    let mut object: Value = serde_saphyr::from_str(include_str!("samples/dataset.yaml")).unwrap();
    let spec = &mut object["spec"];
    (spec["header"], spec["delimiter"]) = (false.into(), ";".into());
    (spec["labelColumn"], spec["member"]) = ("3".into(), "images".into());
    assert_valid::<Dataset>(&serde_saphyr::to_string(&object).unwrap());
}

#[test]
fn misspelled_and_missing_fields_are_detected() {
    let sample = include_str!("samples/jointinferenceservice.yaml");
    let mut object: Value = serde_saphyr::from_str(sample).unwrap();
    object["spec"]["edgeWorker"]["nodename"] = "edge0".into();
    object["spec"]["cloudWorker"].as_object_mut().unwrap().remove("name");
    assert_eq!(
        findings::<JointInferenceService>(&object),
        ["spec.cloudWorker: \"name\" is missing", "spec.edgeWorker.nodename is unknown"]
    );
}

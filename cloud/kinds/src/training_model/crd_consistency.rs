//! Tests that the CRD rejects no `TrainingModel` that the controller accepts.

use serde_json::{Value, json};

use super::{fixtures, validate::check};
use crate::crd_consistency::compare;

/// Valid and invalid changes of the sample, at the limits of each field.
fn changes() -> Vec<Value> {
    let mut changes = vec![
        json!({}),
        json!({"script": null}),
        json!({"script": null, "workerSpec": {"image": "a:1", "frameworkType": "container"}}),
        json!({"script": {"url": null, "sha256sum": null}}),
        json!({"script": {"url": null, "sha256sum": null, "scriptDir": "/opt/train"}}),
        json!({"script": {"scriptDir": "/opt/train"}}),
        json!({"script": {"sha256sum": null}}),
        json!({"script": {"sha256sum": "A".repeat(64)}}),
        json!({"script": {"sha256sum": "g".repeat(64)}}),
        json!({"trainingWorkers": []}),
        json!({"evaluation": null}),
        json!({"evaluation": null, "earlyStop": {"patience": 1}}),
        json!({"evaluation": {"nodeName": null}}),
        json!({"evaluation": {"nodeName": "edge1"}}),
        json!({"evaluation": {"metric": ""}}),
        json!({"evaluation": {"mode": "Min"}}),
        json!({"earlyStop": {}}),
        json!({"output": null}),
        json!({"initialWeights": {}}),
        json!({"initialWeights": {"url": "https://h/a.npz"}}),
        json!({"initialWeights": {"url": "https://h/a.npz", "sha256sum": "a".repeat(64)}}),
        json!({"initialWeights": {"url": "https:///a.npz", "sha256sum": "a".repeat(64)}}),
        json!({"initialWeights": {"url": "s3://b/a.npz", "sha256sum": "a".repeat(64)}}),
        json!({"initialWeights": {"model": {"name": "digits-small"}}}),
        json!({"initialWeights": {"url": "https://h/a", "model": {"name": "digits-small"}}}),
        json!({"schedule": {}}),
        json!({"schedule": {"type": "OnGrowth"}}),
        json!({"schedule": {"type": "OnGrowth", "dataset": {"name": "digits-a"}, "newSamples": 0}}),
        json!({"schedule": {"type": "OnGrowth", "dataset": {"name": "digits-a"}, "newSamples": 5}}),
        json!({"schedule": {"minInterval": "0s"}}),
        json!({"schedule": {"minInterval": "1h"}}),
        json!({"activeDeadline": "12h"}),
        json!({"activeDeadline": "1d"}),
        json!({"aggregation": {"strategy": "TrimmedMean"}}),
        json!({"aggregation": {"strategy": "TrimmedMean", "trim": "0.5"}}),
        json!({"aggregation": {"strategy": "TrimmedMean", "trim": "0.49"}}),
        json!({"aggregation": {"trim": "0.5"}}),
        json!({"aggregation": {"roundTimeout": "none"}}),
        json!({"aggregation": {"maxUpdateBytes": "0"}}),
        json!({"aggregation": {"maxUpdateBytes": "many"}}),
        json!({"aggregation": {"clip": {}}}),
        json!({"aggregation": {"strategy": "Worker"}}),
        json!({"aggregation": {"worker": {"image": "a", "args": ["b"], "port": 1}}}),
    ];
    changes.extend(engines());
    for number in [-1, 0, 1, 2, 3, 4, 100, 101, 256, 257, 10_000, 10_001] {
        changes.push(json!({"aggregation": {"rounds": number}}));
        changes.push(json!({"aggregation": {"minWorkers": number}}));
        changes.push(json!({"aggregation": {"seed": number}}));
        changes.push(json!({ "backoffLimit": number }));
        changes.push(json!({"evaluation": {"every": number}}));
        changes.push(json!({"earlyStop": {"patience": number}}));
        changes.push(json!({"output": {"keep": number}}));
        changes.push(json!({"schedule": {"maxRuns": number}}));
    }
    for text in ["", "0", "1", "0.5", "00.5", "1.0", "1.1", "-1", ".5", "5.", "1e3", "2", "x"] {
        for field in ["fraction", "maxWeight", "trim", "serverLearningRate", "serverMomentum"] {
            changes.push(json!({"aggregation": {field: text}}));
        }
        changes.push(json!({"aggregation": {"clip": {"maxNormFactor": text}}}));
        changes.push(json!({"earlyStop": {"minDelta": text}}));
        changes.push(json!({"earlyStop": {"target": text}}));
        changes.push(json!({"output": {"minImprovement": text}}));
    }
    for url in
        ["", "/t", "http://h/t.py", "https://h", "https://", "s3://b/k", "s3://b", "ftp://h/t"]
    {
        changes.push(json!({"script": {"url": url}}));
    }
    for file in ["", "train.py", "a/b.py", "/train.py", "../train.py"] {
        changes.push(json!({"script": {"bootFile": file}}));
    }
    for worker in [
        json!({"name": "a", "nodeName": "edge0", "dataset": {"name": "digits-a"}}),
        json!({"name": "a", "nodeName": "edge0", "dataset": {}}),
        json!({"name": "a", "dataset": {"name": "digits-a"}}),
        json!({"name": "a", "nodeName": "edge0", "nodeSelector": {"a": "b"}, "dataset": {"name": "digits-a"}}),
        json!({"name": "a", "nodeSelector": {"site": "west"}, "dataset": {"name": "west-1"}}),
        json!({"name": "a", "nodeSelector": {"site": "west"}, "dataset": {"matchLabels": {"app": "digits"}}}),
        json!({"name": "a", "nodeName": "edge1", "dataset": {"name": "west-1", "matchLabels": {"a": "b"}}}),
    ] {
        changes.push(json!({"trainingWorkers": [worker], "aggregation": {"minWorkers": null}}));
    }
    changes
}

/// Servers of engines, alone and with settings that contradict them.
fn engines() -> Vec<Value> {
    let mut changes = Vec::new();
    for engine in [
        json!({}),
        json!({"image": "a:1", "args": ["python3"], "port": 8000}),
        json!({"frameworkType": "python", "port": 8000}),
        json!({"frameworkType": "none", "port": 8000}),
        json!({"image": "a:1", "args": ["python3"], "port": 0}),
        json!({"image": "a:1", "args": ["python3"], "port": 65536}),
        json!({"image": "a:1", "args": ["python3"], "port": 1, "state": "0"}),
        json!({"image": "a:1", "args": ["python3"], "port": 1, "state": "2Gi"}),
    ] {
        let aggregation = json!({"strategy": "Worker", "worker": engine});
        changes.push(json!({"aggregation": aggregation.clone()}));
        changes.push(json!({"aggregation": aggregation.clone(), "evaluation": null}));
        let mut on_node = aggregation;
        on_node["nodeName"] = json!("edge0");
        changes.push(json!({"aggregation": on_node, "evaluation": null}));
    }
    changes
}

#[tokio::test]
async fn crd_accepts_every_valid_training_model() {
    let facts = fixtures::facts();
    let counts =
        compare(&fixtures::model(), &changes(), |model| check(model, &facts).is_ok()).await;
    assert!(counts.accepted > 60 && counts.rejected > 60, "{counts:?}");
}

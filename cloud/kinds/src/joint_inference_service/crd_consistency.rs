//! Tests that the CRD rejects no service that the controller accepts.

use neptune_api::JointInferenceService;
use neptune_wire::ObjectName;
use serde_json::{Value, json};

use crate::{
    crd_consistency::compare,
    joint_inference_service::{
        crd_changes::{clients, join, limits, probes, references, volumes},
        facts::{CloudService, Selection, ServiceFacts},
        fixtures,
        selection::rules::selection_rules,
        validate::validate,
    },
    kubernetes::node_selector::SelectedNodes,
};

/// Valid and invalid changes of the sample, at the limits of each field.
fn changes() -> Vec<Value> {
    let edge = |change: Value| json!({ "edgeWorker": change });
    let program = |change: Value| json!({"edgeWorker": {"workerSpec": change}});
    let mut changes = vec![
        json!({}),
        edge(json!({"nodeName": null})),
        edge(json!({"nodeSelector": {}})),
        edge(json!({"nodeSelector": {"area": "north"}})),
        edge(json!({"nodeName": null, "nodeSelector": {}})),
        edge(json!({"nodeName": null, "nodeSelector": {"area": "north"}})),
        edge(json!({"nodeName": null, "nodeSelector": {"area": "north"}, "placement": "All"})),
        edge(json!({"placement": "One"})),
        program(
            json!({"frameworkType": "container", "image": "a:1", "scriptDir": "", "scriptBootFile": ""}),
        ),
    ];
    let names =
        ["", "a", "A", "a_b", "a-b.c", "-a", "a-", "a..b", "9", "workers", "a b", "ä", "A.B-9"];
    let long = [63, 253].map(|length| "a".repeat(length));
    for name in names.into_iter().chain(long.iter().map(String::as_str)) {
        changes.push(edge(json!({ "name": name })));
        changes.push(edge(json!({ "nodeName": name })));
        changes.push(edge(json!({"model": { "name": name }})));
        changes.push(edge(json!({"hardExampleAlgorithm": { "name": name }})));
        changes.push(program(json!({ "frameworkType": name })));
        changes.push(program(json!({ "frameworkVersion": name })));
        changes.push(program(json!({"parameters": [{"key": name, "value": name}]})));
        changes.push(program(json!({"env": [{"name": name, "value": name}]})));
        changes.push(edge(
            json!({"hardExampleAlgorithm": {"parameters": [{"key": name, "value": "1"}]}}),
        ));
    }
    for pair in [["a", "a"], ["a", "b"], ["a-b", "a_b"], ["a", "A"]] {
        changes.push(program(
            json!({"parameters": pair.map(|key| json!({"key": key, "value": "1"}))}),
        ));
        changes.push(program(json!({"env": pair.map(|name| json!({ "name": name }))})));
    }
    let labels = json!({"matchLabels": {"app": "digits"}});
    let selects = |more: Value| {
        let mut model = json!({"name": null, "selector": labels, "best": "accuracy"});
        join(&mut model, &more);
        edge(json!({ "model": model }))
    };
    changes.extend([
        selects(json!({})),
        selects(json!({"best": null})),
        selects(json!({"best": ""})),
        selects(json!({"name": "small"})),
        selects(json!({"selector": null})),
        selects(json!({"mode": "Min"})),
        edge(json!({"model": {"name": null}})),
        edge(json!({"model": {"best": "accuracy"}})),
        edge(json!({"model": {"dwellSeconds": 5}})),
        edge(json!({"model": {"name": null, "selector": {"matchLabels": {}}, "best": "a"}})),
    ]);
    for margin in ["", "0", "0.005", "-1", "1e3", ".5", "1."] {
        changes.push(selects(json!({ "margin": margin })));
    }
    for seconds in [0, 59, 60, 86_400, 86_401] {
        changes.push(edge(json!({ "silentAfterSeconds": seconds })));
    }
    for dwell in [-1, 0, 604_800] {
        changes.push(selects(json!({ "dwellSeconds": dwell })));
    }
    for path in
        ["", "/", "/code", "code", "/code/../etc", "/co:de", "main.py", "sub/main.py", "../main.py"]
    {
        changes.push(program(json!({ "scriptDir": path })));
        changes.push(program(json!({ "scriptBootFile": path })));
    }
    for quantity in [
        "", "0", "0m", "1", "500m", "0.5", ".5", "2.", ".", "1.5Gi", "256Mi", "129M", "12E-1",
        "1E", "2e1", "1e", "1 GB", "1gi", "-1", "+1", "00.0", "0.0k", "1..2", "100n", "1e99999",
    ] {
        changes.push(program(json!({"resources": {"limits": {"memory": quantity}}})));
        changes.push(program(json!({"resources": {"limits": {"cpu": quantity}}})));
    }
    changes.extend(limits().map(|limits| program(json!({"resources": {"limits": limits}}))));
    changes.extend(volumes().map(program));
    changes.extend(probes().map(program));
    changes.extend(references().map(program));
    changes.extend(
        ["scriptDir", "scriptBootFile", "frameworkVersion"].map(|field| {
            program(json!({"frameworkType": "container", "image": "a:1", field: null}))
        }),
    );
    changes
}

#[tokio::test]
async fn crd_accepts_every_valid_service() {
    let counts = compare(&fixtures::service(), &changes(), |service| {
        let edge = &service.spec.edge_worker;
        let edge_node = |name| fixtures::node(name, &[("node-role.kubernetes.io/edge", "")]);
        // A Model has a name of RFC 1123.
        let name = edge.model.as_ref().and_then(|model| model.name.as_deref()).unwrap_or_default();
        let selecting = edge.model.as_ref().filter(|model| model.selector.is_some());
        let is_name = name.parse::<ObjectName>().is_ok();
        let facts = ServiceFacts {
            edge_node: edge.node_name.as_deref().map(edge_node),
            edge_selected: SelectedNodes {
                nodes: vec![edge_node("edge0")],
                ..SelectedNodes::default()
            },
            edge_model: is_name.then(|| fixtures::model(name, "/model/small.pb")),
            selection: selecting.map(|model| Selection {
                model: Some(fixtures::model("chosen", "/model/small.pb")),
                finding: selection_rules(model).err(),
                ..Selection::default()
            }),
            ..fixtures::facts()
        };
        validate(service, &facts).is_ok()
    })
    .await;
    // Only the controller checks scripts, which depend on the framework, keys that become one
    // variable, and volumes that only Pods have.
    assert!(
        counts.accepted > 100 && counts.rejected > 50 && counts.rejected_later < 45,
        "{counts:?}"
    );
}

#[tokio::test]
async fn example_of_a_selection_is_accepted() {
    let example = include_str!("../../../../examples/selection/selection.yaml");
    let service = example.split("\n---\n").nth(2).expect("the third object");
    let service: JointInferenceService = serde_saphyr::from_str(service).expect("a service");
    let counts = compare(&service, &[json!({})], |service| {
        let edge_node = fixtures::node("edge0", &[("node-role.kubernetes.io/edge", "")]);
        let model = service.spec.edge_worker.model.as_ref().expect("it has a model");
        let facts = ServiceFacts {
            edge_node: None,
            edge_selected: SelectedNodes { nodes: vec![edge_node], ..SelectedNodes::default() },
            edge_model: Some(fixtures::model("digits-small-v1", "http://h/small.json")),
            selection: Some(Selection {
                model: Some(fixtures::model("digits-small-v1", "http://h/small.json")),
                finding: selection_rules(model).err(),
                ..Selection::default()
            }),
            ..fixtures::facts()
        };
        validate(service, &facts).is_ok()
    })
    .await;
    assert_eq!(counts.accepted, 1, "{counts:?}");
}

/// The change to a service with gRPC, and another one.
fn with_grpc(change: &Value) -> Value {
    let mut grpc = json!({
        "edgeWorker": {
            "server": {"frameworkType": "triton"},
            "hardExampleAlgorithm": {"name": "CrossEntropy"},
        },
        "cloudWorker": {"endpoint": {"grpcUrl": "https://a:1"}},
        "gateway": {"grpcPort": 8082},
    });
    join(&mut grpc, change);
    grpc
}

/// Valid and invalid changes of a service without code.
fn changes_without_code() -> Vec<Value> {
    let edge = |change: Value| json!({ "edgeWorker": change });
    let cloud = |change: Value| json!({ "cloudWorker": change });
    let goal = |change: Value| edge(json!({"hardExampleAlgorithm": {"goal": change}}));
    let gateway = |change: Value| json!({ "gateway": change });
    let worker = json!({"scriptDir": "/code", "scriptBootFile": "a.py", "frameworkType": "python",
        "frameworkVersion": "3"});
    let mut changes = vec![
        json!({}),
        edge(json!({"server": null})),
        edge(json!({"model": null})),
        edge(json!({"inferenceModel": {"name": "digits"}})),
        edge(json!({"server": null, "inferenceModel": {"name": "digits"}})),
        edge(json!({"server": null, "model": null, "inferenceModel": {"name": "digits"}})),
        edge(json!({"server": null, "workerSpec": worker})),
        edge(json!({"dataset": {"name": "frames"}})),
        cloud(json!({"endpoint": null})),
        cloud(json!({"model": {"name": "big"}})),
        cloud(json!({"nodeName": "solar-corona-cloud"})),
        cloud(json!({"server": {"frameworkType": "llamacpp"}})),
        cloud(json!({"endpoint": null, "server": {"frameworkType": "llamacpp"}})),
        cloud(
            json!({"endpoint": null, "server": {"frameworkType": "llamacpp"}, "model": {"name": "big"}}),
        ),
        cloud(json!({"endpoint": null, "workerSpec": worker, "model": {"name": "big"}})),
        cloud(json!({"endpoint": null, "inferenceModel": {"name": "big"}})),
        goal(json!({"agreement": "0.9"})),
        goal(json!({"uploadRatio": null, "agreement": "0.9"})),
        goal(json!({"uploadRatio": null})),
        goal(json!({"totalUploadRatio": "0.1"})),
        goal(json!({"uploadRatio": null, "totalUploadRatio": "0.1"})),
        goal(json!({"maxUploadRatio": "0.1"})),
        goal(json!({"maxUploadRatio": "0.20"})),
        gateway(json!({"neverUpload": {"headers": []}})),
        gateway(json!({"capture": {"dataset": "hard", "pinned": true}})),
        with_grpc(&json!({})),
        with_grpc(&json!({"gateway": {"port": 8082}})),
        with_grpc(&json!({"gateway": {"grpcPort": 8080}})),
        with_grpc(&json!({"gateway": {"grpcPort": 0}})),
        with_grpc(&json!({"gateway": null})),
        with_grpc(&json!({"gateway": {"grpcPort": null}})),
        with_grpc(&json!({"cloudWorker": {"endpoint": {"grpcUrl": null}}})),
        with_grpc(&json!({"cloudWorker": {"endpoint": null, "workerSpec": worker, "nodeName": "n",
            "model": {"name": "big"}}})),
        with_grpc(&json!({"edgeWorker": {"server": {"frameworkType": "llamacpp"}}})),
    ];
    for url in [
        "https://a:1",
        "https://a:1/",
        "https://a",
        "https://a:1/v1",
        "http://a:1",
        "a:1",
        "https://u@a:1",
    ] {
        changes.push(with_grpc(&json!({"cloudWorker": {"endpoint": { "grpcUrl": url }}})));
    }
    for share in ["", "0", "1", "0.2", "0.", ".5", "1.0", "1.01", "00.1", "-0.1", "1e-1", "20%"] {
        for name in ["uploadRatio", "totalUploadRatio", "maxUploadRatio", "shadowRatio"] {
            changes.push(goal(json!({ name: share })));
        }
    }
    for url in [
        "",
        "llm",
        "https://a",
        "https://a/v1?k=1",
        "https://u@a",
        "http://a",
        "http://localhost:1",
        "ftp://a",
        "https://a:99999",
        "https://[::1]/v1",
    ] {
        changes.push(cloud(json!({"endpoint": { "url": url }})));
    }
    for name in ["", "llm", "../llm", "a/b", ".llm", "llm.", "a b"] {
        changes.push(cloud(json!({"endpoint": { "tokenFile": name }})));
        changes.push(cloud(json!({"endpoint": { "caFile": name }})));
        changes.push(gateway(json!({"tls": {"certFile": name, "keyFile": "key"}})));
        changes.push(gateway(json!({"tls": {"certFile": "certificate", "keyFile": name}})));
    }
    for duration in ["", "1s", "0s", "500ms", "1.5s", "1d", "10", "1234567s"] {
        changes.push(gateway(json!({"timeouts": { "edge": duration }})));
    }
    for header in ["", "edge", "x: y", "x y: z", "x-a:b", "x: ä", ": a"] {
        changes.push(gateway(json!({"neverUpload": {"headers": [header]}})));
    }
    for size in ["", "0", "1", "32Mi", "2Gi", "1.5Ki", "a"] {
        changes.push(gateway(json!({ "maxBodyBytes": size })));
    }
    changes.extend(captures().into_iter().map(gateway));
    changes.extend(clients().into_iter().map(gateway));
    for number in [0, 1, 65_535, 65_536, -1] {
        changes.push(gateway(json!({ "port": number })));
        changes.push(gateway(json!({ "maxInFlight": number })));
    }
    changes
}

/// Values of `gateway` with a capture.
fn captures() -> Vec<Value> {
    let mut changes = Vec::new();
    for (name, values) in [
        ("dataset", ["hard", "", "Hard", "a/b"]),
        ("maxBytes", ["1Gi", "1", "0", "a"]),
        ("share", ["0.5", "2", "", "1.0"]),
        ("what", ["Hard", "Uploaded", "All", "Hard"]),
        ("labels", ["Cloud", "None", "None", "None"]),
    ] {
        for value in values {
            let mut capture = json!({"dataset": "hard"});
            capture[name] = value.into();
            changes.push(json!({ "capture": capture }));
        }
    }
    for number in [-1, 0, 1, 65_536] {
        changes.push(json!({"capture": {"dataset": "hard", "maxSamples": number}}));
    }
    changes
}

#[tokio::test]
async fn crd_accepts_every_valid_service_without_code() {
    let big = fixtures::inference_model("big", "llamacpp", "");
    let counts = compare(&fixtures::assistant(), &changes_without_code(), |service| {
        let named = service.spec.edge_worker.inference_model.is_some();
        let mut facts = ServiceFacts {
            cloud_model: Some(fixtures::model("big", "https://models.test/big.gguf")),
            cloud_node: service
                .spec
                .cloud_worker
                .node_name
                .as_deref()
                .map(|n| fixtures::node(n, &[])),
            ..fixtures::assistant_facts()
        };
        let capture = service.spec.gateway.as_ref().and_then(|gateway| gateway.capture.as_ref());
        // A Dataset has a name of RFC 1123.
        facts.gateway.capture_dataset = capture
            .filter(|capture| capture.dataset.parse::<ObjectName>().is_ok())
            .map(|capture| fixtures::captured_dataset(&capture.dataset));
        facts.gateway.edge_server =
            named.then(|| fixtures::inference_model("digits", "llamacpp", "edge0"));
        let names_big = service.spec.cloud_worker.inference_model.is_some();
        facts.gateway.cloud_server = names_big.then(|| big.clone());
        facts.gateway.cloud_server_service = Some(CloudService { cluster_ip: None });
        validate(service, &facts).is_ok()
    })
    .await;
    // Only the controller checks hosts and headers as the gateway does.
    assert!(
        counts.accepted > 30 && counts.rejected > 50 && counts.rejected_later < 20,
        "{counts:?}"
    );
}

#[tokio::test]
async fn settings_of_a_rollout_are_rejected_alike() {
    let setting = |field: &str, value: Value| json!({"rollout": { field: value }});
    let mut changes = vec![json!({"rollout": {}})];
    for value in [json!(1), json!("1%"), json!("10%"), json!("100%")] {
        changes.push(setting("maxUnavailable", value.clone()));
        changes.push(setting("pauseOnFailure", value));
    }
    for value in [json!(0), json!("0%")] {
        changes.push(setting("pauseOnFailure", value));
    }
    for (field, most) in [("minReadySeconds", 86_400), ("progressDeadlineSeconds", 604_800)] {
        changes.extend([1, most].map(|seconds| setting(field, seconds.into())));
    }
    let accepted = changes.len();
    let wrong = ["101%", "5", "%", "+5%", "05%", ""];
    for value in wrong.map(Value::from).into_iter().chain([json!(-1)]) {
        changes.push(setting("maxUnavailable", value.clone()));
        changes.push(setting("pauseOnFailure", value));
    }
    for value in [json!(0), json!("0%")] {
        changes.push(setting("maxUnavailable", value));
    }
    for (field, values) in
        [("minReadySeconds", [-1, 86_401]), ("progressDeadlineSeconds", [0, 604_801])]
    {
        changes.extend(values.map(|seconds| setting(field, seconds.into())));
    }
    let facts = fixtures::facts();
    let is_valid = |service: &JointInferenceService| validate(service, &facts).is_ok();
    let counts = compare(&fixtures::service(), &changes, is_valid).await;
    let rejected = changes.len() - accepted;
    assert_eq!((counts.accepted, counts.rejected, counts.rejected_later), (accepted, rejected, 0));
}

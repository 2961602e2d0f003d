//! Models on nodes before anything needs them, and the choice among several of them.

use digits::samples::held_out;
use neptune_api::{
    JointInferenceServiceStatus, Model, ModelNodeState, ModelStatus, SelectionCause,
};
use neptune_e2e::{Fleet, GATEWAY_IMAGE, ModelServer, Transport, is_running};
use neptune_harness::{docker::require_image, eventually_some, free_port};
use serde_json::json;
use three_resources::{client::Client, source::Source};

use crate::{
    serving::{apply_frameworks, client, models},
    without_code::{Load, running},
};

over_each_transport!(
    placed_model_is_served_without_its_origin,
    best_of_two_models_is_served_and_an_offline_node_keeps_its_own,
);

const SMALL: &str = "cce52187ae315787b511c5f99f03e02c5578660c54b70ac9c45f04014b2e3b0d";
const BIG: &str = "99086bbf0f281f32bbee7678737b21eb84aa568d18b4831c65daf56f83e5598e";

/// A Model with the label `app: digits` that is placed on these nodes.
fn model(name: &str, (url, sha256): (&str, &str), nodes: &[&str]) -> String {
    let model = json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
        "metadata": {"name": name, "labels": {"app": "digits"}},
        "spec": {
            "modelUrl": url, "format": "json", "sha256sum": sha256,
            "placement": {"nodeNames": nodes},
        },
    });
    format!("---\n{model}\n")
}

/// Applies `small` and `big` on these nodes, and waits until all of them have both.
async fn place(fleet: &Fleet, models: &ModelServer, nodes: &[&str]) {
    for (name, sha256) in [("small", SMALL), ("big", BIG)] {
        let url = format!("{}/{name}.json", models.url());
        fleet.apply(&model(name, (&url, sha256), nodes));
    }
    let placed = format!("{0}/{0}", nodes.len());
    for name in ["small", "big"] {
        let is_placed = |status: &ModelStatus| status.placed.as_deref() == Some(&placed);
        let status = fleet.until_status::<Model>(name, &placed, is_placed).await;
        assert!(status.nodes.iter().all(|node| node.state == ModelNodeState::Present));
        assert_eq!(status.used_by, [""; 0], "nothing needs it");
    }
    println!("{}", fleet.kubectl(&["get", "models"]));
}

async fn placed_model_is_served_without_its_origin(transport: Transport) {
    let fleet = Fleet::with_more_nodes(transport, 1).await;
    let models = models(&fleet).await;
    apply_frameworks(&fleet, "watch");
    let other = fleet.other(0).to_owned();
    place(&fleet, &models, &[&fleet.edge, &other]).await;
    drop(models);
    let served = json!({
        "apiVersion": "sedna.io/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "placed"},
        "spec": {
            "modelName": "digits", "deployToLayer": "edge", "nodeName": other,
            "frameworkType": "digits", "model": {"name": "big"}, "servingPort": free_port(),
        },
    });
    fleet.apply(&served.to_string());
    let status = fleet
        .until_model("placed", "serving", |status| {
            status.serving_version.is_some() && status.url.is_some()
        })
        .await;
    let sample = &held_out()[0];
    let answer = client(&status, "digits").infer(&[sample.pixels]).await.unwrap();
    assert_eq!(answer.classifications[0].label, sample.label);
}

/// Sets the metric that decides, as a program that evaluates models does.
fn measure(fleet: &Fleet, name: &str, accuracy: &str) {
    let patch = json!({"status": {"metrics": [{"key": "accuracy", "value": accuracy}]}});
    let patch = patch.to_string();
    fleet.kubectl(&["patch", "model", name, "--subresource=status", "--type=merge", "-p", &patch]);
}

fn service(fleet: &Fleet) -> String {
    let Fleet { edge, cloud, .. } = fleet;
    json!({
        "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
        "metadata": {"name": "best"},
        "spec": {
            "gateway": {"port": free_port()},
            "edgeWorker": {
                "name": "edge", "nodeName": edge, "server": {"frameworkType": "digits"},
                "model": {
                    "selector": {"matchLabels": {"app": "digits"}}, "best": "accuracy",
                    "margin": "0.01", "dwellSeconds": 1,
                },
                "hardExampleAlgorithm": {
                    "name": "CrossEntropy", "parameters": [{"key": "threshold", "value": "0.01"}],
                },
            },
            "cloudWorker": {
                "name": "cloud", "nodeName": cloud, "server": {"frameworkType": "digits"},
                "model": {"name": "big"},
            },
        },
    })
    .to_string()
}

/// The version of the edge's model that answers, if it is not `other`.
async fn version(gateway: &Client, other: &str) -> Option<String> {
    let answer = gateway.infer(&[held_out()[0].pixels]).await.unwrap();
    assert_eq!(answer.sources.as_deref(), Some(&[Source::Edge][..]), "each sample is easy");
    answer.version.filter(|version| version != other)
}

async fn best_of_two_models_is_served_and_an_offline_node_keeps_its_own(transport: Transport) {
    require_image(GATEWAY_IMAGE, "hack/build-gateway-image.sh");
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply_frameworks(&fleet, "watch");
    place(&fleet, &models, &[&fleet.edge]).await;
    measure(&fleet, "small", "0.93");
    measure(&fleet, "big", "0.90");
    fleet.apply(&service(&fleet));
    let chosen = |name: &'static str, cause| {
        move |status: &JointInferenceServiceStatus| {
            let model = status.model.as_deref();
            model.is_some_and(|model| model.name == name && model.cause == cause)
                && is_running(status)
        }
    };
    let first = chosen("small", SelectionCause::First);
    let status = fleet.until("best", "the first choice", first).await;
    let first = status.model.unwrap();
    assert_eq!((first.candidates, first.failed.len()), (2, 0), "{first:?}");
    let (gateway, _) = running(&fleet, "best", "best").await;
    let of_small = version(&gateway, "").await.unwrap();

    // Better by less than the margin, then by more. A switch for the first value had its reason.
    let load = Load::on(gateway.clone());
    measure(&fleet, "big", "0.935");
    measure(&fleet, "big", "0.98");
    let better = chosen("big", SelectionCause::Better);
    let status = fleet.until("best", "the better one", better).await;
    let second = status.model.unwrap();
    let reason = "accuracy 0.98 of big beats 0.93 of small by 0.05 (margin 0.01)";
    assert_eq!((second.reason.as_str(), second.candidates), (reason, 2));
    assert!(second.since > first.since, "{second:?}");
    let of_big = eventually_some("another version", async || version(&gateway, &of_small).await);
    let of_big = of_big.await;
    let (answers, failures) = load.end().await;
    println!("switch of the model under load: {answers:?}");
    assert_eq!(failures, [""; 0]);

    // A node that is offline keeps its model, and switches when it is back.
    fleet.isolate_edge().await;
    measure(&fleet, "small", "0.999");
    let third = |status: &JointInferenceServiceStatus| {
        status.model.as_deref().is_some_and(|model| model.name == "small")
    };
    fleet.until("best", "small again", third).await;
    for _ in 0..20 {
        assert_eq!(version(&gateway, "").await.as_deref(), Some(&*of_big), "it is offline");
    }
    fleet.rejoin_edge().await;
    let back = eventually_some("the first version", async || version(&gateway, &of_big).await);
    assert_eq!(back.await, of_small);
}

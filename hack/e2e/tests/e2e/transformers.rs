//! A transformer without a library, between a gateway and a model server: what it makes of the
//! samples decides what is hard, and another one replaces it under load. And one that is built on
//! the SDK of `KServe`, unchanged.

use std::fs;

use neptune_e2e::{Fleet, GATEWAY_IMAGE, Transport};
use neptune_harness::{docker::require_image, eventually_some, workspace::root};
use serde_json::{Value, json};
use three_resources::protocol::InferRequest;

use crate::{
    serving::{EDGE, apply, client, models, serves},
    without_code::{Load, running, service_manifest},
};

over_each_transport!(transformer_before_a_gateway_is_changed_without_failed_request,);

const PYTHON: &str = "neptune/python:dev";
const KSERVE: &str = "neptune/kserve-transformer:dev";
const NAME: &str = "digits-joint";

/// The change of the edge's model to the example as its transformer, which divides by `divisor`.
fn patch(fleet: &Fleet, divisor: &str) {
    let patch = json!({"spec": {"transformer": {
        "image": PYTHON,
        "scriptDir": fleet.script_dir(),
        "scriptBootFile": "transform.py",
        "frameworkType": "python",
        "parameters": [{"key": "divisor", "value": divisor}],
        "resources": {"limits": {"memory": "128Mi"}},
    }}});
    fleet.kubectl(&["patch", "im", EDGE, "--type=merge", "-p", &patch.to_string()]);
}

async fn transformer_before_a_gateway_is_changed_without_failed_request(transport: Transport) {
    require_image(PYTHON, "hack/build-python-image.sh");
    require_image(GATEWAY_IMAGE, "hack/build-gateway-image.sh");
    let fleet = Fleet::start(transport).await;
    fs::create_dir(fleet.script_dir()).unwrap();
    let script = root().join("examples/transformer/transform.py");
    fs::copy(script, fleet.script_dir().join("transform.py")).unwrap();
    let models = models(&fleet).await;
    apply(&fleet, &models, "3", "watch");
    patch(&fleet, "1");
    fleet.apply(&service_manifest(&fleet, "examples/three-resources/service.yaml"));
    fleet.until_model(EDGE, "serving 3", serves("3")).await;
    let (gateway, first) = running(&fleet, NAME, "digits").await;
    assert_eq!(first.cloud, 0, "the sample is easy");
    let containers = fleet.containers();
    for part in ["-transformer", "-proxy"] {
        assert!(containers.contains(part), "{part}:\n{containers}");
    }

    // A transformer that makes all samples alike: the model is not confident of any.
    let load = Load::on(gateway.clone());
    patch(&fleet, "1000000");
    eventually_some("the cloud's answer to a sample that was easy", async || {
        let answer = gateway.infer(&[digits::samples::held_out()[0].pixels]).await.unwrap();
        let is_hard = answer.sources.as_deref() == Some(&[three_resources::source::Source::Cloud]);
        is_hard.then_some(())
    })
    .await;
    fleet.until_model(EDGE, "serving 3", serves("3")).await;
    let (answers, failures) = load.end().await;
    println!("change of the transformer under load: {answers:?}");
    assert_eq!(failures, [""; 0]);
    assert!(answers.all > answers.cloud && answers.cloud > 0, "{answers:?}");

    fleet.kubectl(&["delete", "jis", NAME]);
    fleet.kubectl(&["delete", "im", "--all"]);
    fleet.no_containers().await;
}

/// It clips pixels to the range that the model knows, and marks its answers.
#[tokio::test(flavor = "multi_thread")]
async fn unchanged_transformer_of_kserve_runs_before_the_model() {
    require_image(KSERVE, "hack/build-python-image.sh --kserve");
    let fleet = Fleet::start(Transport::Mqtt).await;
    let models = models(&fleet).await;
    apply(&fleet, &models, "3", "watch");
    let status = fleet.until_model(EDGE, "serving 3", serves("3")).await;
    let model = client(&status, "digits");
    let sample = digits::samples::held_out()[0].pixels;
    let far = sample.map(|pixel| pixel * 40.0 - 100.0);
    let clipped = far.map(|pixel| pixel.clamp(0.0, 16.0));
    let probabilities = async |pixels| {
        Some(model.infer(&[pixels]).await.ok()?.classifications[0].probabilities.clone())
    };
    let direct = probabilities(clipped).await;
    assert!(direct.is_some() && probabilities(far).await != direct);

    let transformer = json!({"image": KSERVE, "frameworkType": "kserve"});
    // Its packages take seconds to import.
    let health = json!({"startWithinSeconds": 60});
    let patch = json!({"spec": {"transformer": transformer, "health": health}}).to_string();
    fleet.kubectl(&["patch", "im", EDGE, "--type=merge", "-p", &patch]);
    eventually_some("the answer of the transformer", async || {
        (probabilities(far).await == direct).then_some(())
    })
    .await;
    fleet.until_model(EDGE, "serving 3", serves("3")).await;
    let containers = fleet.containers();
    for part in ["-transformer", "-proxy"] {
        assert!(containers.contains(part), "{part}:\n{containers}");
    }

    let url = format!("{}/v2/models/digits/infer", status.url.unwrap());
    let request = reqwest::Client::new().post(url).json(&InferRequest::new(&[far]));
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["parameters"]["clipped"], true, "{answer}");

    fleet.kubectl(&["delete", "im", "--all"]);
    fleet.no_containers().await;
}

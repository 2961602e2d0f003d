//! The example `digits`, with a rate and a number of passes for each test.

use neptune_e2e::{Fleet, ModelServer};
use neptune_harness::{docker::require_image, workspace::root};

pub const NAME: &str = "digits";

/// Serves the example's models over HTTP.
pub async fn models() -> ModelServer {
    require_image("neptune/digits:dev", "hack/build-digits-image.sh");
    ModelServer::start(&root().join("examples/digits/models")).await
}

pub fn models_manifest(fleet: &Fleet, models: &ModelServer) -> String {
    let replace = [("${MODEL_SERVER}", &*models.url()), ("namespace: default", &namespace(fleet))];
    fleet.manifest("examples/digits/models.yaml", &replace)
}

/// The service with this rate in samples per second, and this many passes over 600 samples.
pub fn service_manifest(fleet: &Fleet, rate: u32, passes: u32) -> String {
    let parameter =
        |key: &str, value: &str| format!("key: \"{key}\"\n          value: \"{value}\"");
    let replace = [
        ("namespace: default", &*namespace(fleet)),
        (&parameter("rate", "50"), &parameter("rate", &rate.to_string())),
        (&parameter("passes", "1"), &parameter("passes", &passes.to_string())),
    ];
    fleet.manifest("examples/digits/service.yaml", &replace)
}

fn namespace(fleet: &Fleet) -> String {
    format!("namespace: {}", fleet.namespace)
}

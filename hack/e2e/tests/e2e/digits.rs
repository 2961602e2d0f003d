//! The example that the tests use, at a pace of their own.

use neptune_e2e::{Fleet, ModelServer, need_image, root};

pub const NAME: &str = "digits";

/// Its models, served over HTTP.
pub async fn models() -> ModelServer {
    need_image("neptune/digits:dev", "hack/build-digits-image.sh");
    ModelServer::start(&root().join("examples/digits/models")).await
}

pub fn models_manifest(fleet: &Fleet, models: &ModelServer) -> String {
    let replace = [("${MODEL_SERVER}", &*models.url()), ("namespace: default", &namespace(fleet))];
    fleet.manifest("examples/digits/models.yaml", &replace)
}

/// The service, at so many samples a second and so many passes over 600 samples.
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

//! A service whose workers do nothing, for tools that look at starts and ends of containers only.

use neptune_harness::docker::BusyboxImage;
use serde_json::{Value, json};

use crate::Fleet;

/// The image of its workers. They exit on SIGTERM at once.
pub fn image() -> BusyboxImage {
    BusyboxImage::with_entrypoint("trap exit TERM; sleep 100000 & wait")
}

/// The Model `m` of its workers, a file beside the fleet's other files.
///
/// # Panics
/// If the file cannot be written.
pub fn model(fleet: &Fleet) -> Value {
    let path = fleet.dir().join("model.bin");
    std::fs::write(&path, "weights").unwrap();
    json!({
        "apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "metadata": {"name": "m"},
        "spec": {"modelUrl": path},
    })
}

/// A service with one worker on each node of the fleet, in the image [`image`].
pub fn service(fleet: &Fleet, name: &str, image: &str) -> Value {
    let spec = json!({
        "image": image, "frameworkType": "container", "frameworkVersion": "1", "scriptDir": "/",
        "scriptBootFile": "work",
    });
    workers(fleet, name, "m", [&spec, &spec])
}

/// A service with a model, whose edge and cloud workers have these programs.
pub(crate) fn workers(fleet: &Fleet, name: &str, model: &str, [edge, cloud]: [&Value; 2]) -> Value {
    json!({
        "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
        "metadata": {"name": name},
        "spec": {
            "edgeWorker": {
                "name": "edge", "model": {"name": model}, "nodeName": fleet.edge,
                "hardExampleAlgorithm": {"name": "IBT"}, "workerSpec": edge,
            },
            "cloudWorker": {
                "name": "cloud", "model": {"name": model}, "nodeName": fleet.cloud,
                "workerSpec": cloud,
            },
        },
    })
}

//! A service whose workers are scripts of the shell in an image of busybox.

use std::fs;

use neptune_harness::docker::{BusyboxImage, IDLE};
use serde_json::{Value, json};

use crate::{Fleet, idle::workers};

/// The image, and the fleet's Model that the workers have.
pub struct ShellService {
    image: BusyboxImage,
}

impl ShellService {
    /// Makes the image, and applies a Model that is a file of each node.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn prepare(fleet: &Fleet) -> Self {
        let path = fleet.dir().join("small.bin");
        fs::write(&path, "a model").unwrap();
        let model = json!({
            "apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "metadata": {"name": "small"},
            "spec": {"modelUrl": path, "format": "bin"},
        });
        fleet.apply(&model.to_string());
        Self { image: BusyboxImage::import() }
    }

    /// The name of the image.
    pub fn image(&self) -> &str {
        &self.image.0
    }

    /// A service whose edge worker runs a script and has these fields in its `workerSpec`. The cloud
    /// worker does nothing.
    pub fn manifest(&self, fleet: &Fleet, name: &str, script: &str, fields: &Value) -> String {
        let program = |script: &str| {
            json!({
                "frameworkType": "container", "image": self.image.0,
                "command": ["/bin/sh", "-c"], "args": [script],
                "terminationGracePeriodSeconds": 1,
            })
        };
        let mut edge = program(script);
        let fields = fields.as_object().expect("fields").clone();
        edge.as_object_mut().expect("a workerSpec").extend(fields);
        workers(fleet, name, "small", [&edge, &program(IDLE)]).to_string()
    }
}

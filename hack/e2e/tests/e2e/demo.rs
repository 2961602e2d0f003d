//! The demo exits successfully and prints the summary that the README shows, also while another one
//! runs.

use std::process::Command;

use neptune_harness::{
    docker::require_image,
    workspace::{program, run},
};

#[test]
fn demo_passes_all_checks() {
    let mut command = Command::new(program("neptune-demo"));
    if std::env::var_os("KUBECONFIG").is_some_and(|file| !file.is_empty()) {
        command.arg("--cluster");
    }
    passes(command);
}

/// Always with the built-in API server: a real cluster may have a real `KubeEdge`.
#[test]
fn demo_over_eventbus_passes_all_checks() {
    let mut command = Command::new(program("neptune-demo"));
    command.args(["--transport", "eventbus"]);
    passes(command);
}

fn passes(mut demo: Command) {
    require_image("neptune/digits:dev", "hack/build-digits-image.sh");
    let printed = run(&mut demo);
    for line in [
        "RESULT (600 images)     ACCURACY    UPLOADED",
        "edge model only           ",
        "cloud model only          ",
        "joint inference           ",
        "cloud worker answered                          passed",
        "joint inference beats the edge model alone     passed",
        "a minority of the samples was uploaded         passed",
        "service status matches the worker's counters   passed  inferenceNumber 600 = 600, hardExampleNumber ",
        "model status matches the worker's evaluation   passed  accuracy ",
    ] {
        assert!(printed.contains(line), "no line with {line:?} in:\n{printed}");
    }
}

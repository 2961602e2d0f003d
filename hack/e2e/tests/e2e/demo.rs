//! The demo does what the README says, to its last line.

use std::{fs::File, process::Command};

use neptune_e2e::{need_image, program};

#[test]
fn the_demo_ends_well_and_says_what_it_found() {
    let mut command = Command::new(program("neptune-demo"));
    if std::env::var_os("KUBECONFIG").is_some_and(|file| !file.is_empty()) {
        command.arg("--cluster");
    }
    ends_well(command);
}

/// Always with a cluster of its own: a real one may have a real `KubeEdge`.
#[test]
fn over_eventbus_the_demo_ends_just_as_well() {
    let mut command = Command::new(program("neptune-demo"));
    command.args(["--transport", "eventbus"]);
    ends_well(command);
}

fn ends_well(mut demo: Command) {
    need_image("neptune/digits:dev", "hack/build-digits-image.sh");
    // The cloud workers of two demos would want the same port of this machine.
    let alone = File::create(std::env::temp_dir().join("neptune-demo.lock")).unwrap();
    alone.lock().unwrap();
    let printed = neptune_e2e::run(&mut demo);
    for line in [
        "accuracy, edge only",
        "accuracy, cloud only",
        "accuracy, joint",
        "uploadCloudRatio",
        "joint beats edge only, uploading a minority: yes",
        "the Model's .status.metrics equals what the worker found: yes",
        ".status.metrics equals the workers' totals: yes (inferenceNumber 600 = 600, hardExampleNumber ",
    ] {
        assert!(printed.contains(line), "no line with {line:?} in:\n{printed}");
    }
}

//! The demo does what the README says, to its last line.

use std::process::Command;

use neptune_e2e::{need_image, program};

#[test]
fn the_demo_ends_well_and_says_what_it_found() {
    need_image("neptune/digits:dev", "hack/build-digits-image.sh");
    let mut command = Command::new(program("neptune-demo"));
    if std::env::var_os("KUBECONFIG").is_some_and(|file| !file.is_empty()) {
        command.arg("--cluster");
    }
    let printed = neptune_e2e::run(&mut command);
    for line in [
        "accuracy, edge only",
        "accuracy, cloud only",
        "accuracy, joint",
        "uploadCloudRatio",
        "joint beats edge only, uploading a minority: yes",
        "the Model's .status.metrics equals what the worker found: yes",
        ".status.metrics equals the workers' totals: yes",
    ] {
        assert!(printed.contains(line), "no line with {line:?} in:\n{printed}");
    }
}

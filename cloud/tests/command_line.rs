//! Runs `neptune-cloud` with its flags and subcommands.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn neptune_cloud(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_neptune-cloud"))
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn crds_are_printed_as_one_stream_or_written_to_files() {
    let printed = neptune_cloud(&["crds"]);
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed.matches("kind: CustomResourceDefinition").count(), 8);

    let directory = tempfile::tempdir().unwrap();
    let written = neptune_cloud(&["crds", "--output", directory.path().to_str().unwrap()]);
    assert!(written.status.success(), "{}", error(&written));
    for (name, text) in neptune_api::crdgen::files() {
        assert_eq!(std::fs::read_to_string(directory.path().join(&name)).unwrap(), text);
        assert!(printed.contains(&text), "{name}");
    }
}

#[test]
fn wrong_settings_have_their_exit_code_and_name_the_flag() {
    let run = ["run", "--listen", "127.0.0.1:0", "--mqtt-url"];
    for (more, code, message) in [
        (&["http://broker"][..], 2, "--mqtt-url"),
        (
            &["mqtt://broker", "--kubeconfig", "/nonexistent/kubeconfig"],
            2,
            "--kubeconfig /nonexistent",
        ),
        (&["mqtt://broker"], 2, "--kubeconfig is not set"),
        (&["mqtt://broker", "--topic-prefix", "a/#"], 2, "--topic-prefix"),
        (&["mqtt://broker", "--log-filter", "info,=x=y"], 2, "--log-filter"),
    ] {
        let output = neptune_cloud(&[&run[..3], &["--mqtt-url"], more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {}", error(&output));
        assert!(error(&output).contains(message), "{more:?}: {}", error(&output));
    }
    // The address may appear with its network.
    let output = neptune_cloud(&["run", "--mqtt-url", "mqtt://broker", "--listen", "192.0.2.1:1"]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("--listen 192.0.2.1:1"), "{}", error(&output));
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let without = ["run", "--listen", "127.0.0.1:0", "--kubeconfig", kubeconfig];
    for (more, code, message) in [
        (&[][..], 2, "--mqtt-url is missing: --transport mqtt"),
        (
            &["--transport", "eventbus", "--upstream-listen", "192.0.2.1:1"],
            1,
            "--upstream-listen 192.0.2.1:1",
        ),
        (
            &["--transport", "eventbus", "--upstream-token-file", "/nonexistent"],
            2,
            "--upstream-token-file /nonexistent",
        ),
    ] {
        let output = neptune_cloud(&[&without[..], more].concat());
        assert_eq!(output.status.code(), Some(code), "{more:?}: {}", error(&output));
        assert!(error(&output).contains(message), "{more:?}: {}", error(&output));
    }
    let output =
        neptune_cloud(&[&run[..], &["mqtts://broker", "--kubeconfig", kubeconfig]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("CA file"), "{}", error(&output));
}

const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: test, user: {}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
";

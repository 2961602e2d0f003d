//! The systemd unit is valid and agrees with the agent.

use std::{fs, process::Command};

use deploy_tests::text;

const UNIT: &str = "build/systemd/neptune-edge.service";

/// The messages of `systemd-analyze verify` for a unit; empty for a valid unit.
fn complaints(unit: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("neptune-edge.service");
    // The program is not installed here.
    fs::write(&path, unit.replace("/usr/bin/neptune-edge run", "/bin/true run")).unwrap();
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(&path)
        .output()
        .expect("systemd-analyze is installed (hack/test.sh sees to it)");
    let stderr = String::from_utf8(output.stderr).unwrap();
    if stderr.is_empty() && !output.status.success() { output.status.to_string() } else { stderr }
}

#[test]
fn systemd_accepts_the_unit_and_refuses_a_misspelled_one() {
    let unit = text(UNIT);
    assert_eq!(complaints(&unit), "");
    for (right, wrong) in [
        ("Type=notify", "Type=notifi"),
        ("WatchdogSec=30", "WatchdogSec=often"),
        ("RestartPreventExitStatus=2", "RestartPreventExitStatus=two"),
        ("SystemCallArchitectures=native", "SystemCallArchitecture=native"),
    ] {
        assert!(unit.contains(right), "{right}");
        assert_ne!(complaints(&unit.replace(right, wrong)), "", "{wrong}");
    }
}

#[test]
fn unit_starts_after_docker_without_depending_on_it() {
    let unit = text(UNIT);
    let has = |line: &str| unit.lines().any(|it| it == line);
    assert!(has("Wants=docker.service network-online.target"));
    assert!(has("ExecStart=/usr/bin/neptune-edge run"));
    for directive in ["Requires=", "BindsTo=", "PartOf="] {
        assert!(!unit.contains(directive), "{directive}");
    }
    let deb = text("build/deb.sh");
    assert!(deb.contains("put 0755 \"$BINARY\" usr/bin/neptune-edge"));
}

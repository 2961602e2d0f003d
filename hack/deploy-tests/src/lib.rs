//! Reads what `build/` ships, as users get it. What it has to be is the tests'.

pub mod broker;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The overlays that users apply, below `build/deploy`.
pub const OVERLAYS: [&str; 3] = ["base", "mqtt", "kubeedge"];

/// A file or folder of this repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A text file of this repository.
///
/// # Panics
/// If it is not there.
pub fn text(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| fail(path, &error.to_string()))
}

/// The objects that `kubectl apply -k` makes of an overlay.
///
/// # Panics
/// If kubectl is missing or refuses the overlay.
pub fn objects(overlay: &str) -> Vec<Value> {
    let folder = repository("build/deploy").join(overlay);
    let output = Command::new("kubectl")
        .arg("kustomize")
        .arg(folder)
        .output()
        .expect("kubectl is installed (hack/test.sh sees to it)");
    if !output.status.success() {
        fail(overlay, &String::from_utf8_lossy(&output.stderr));
    }
    parse(overlay, output.stdout)
}

/// helm, which `hack/test.sh` puts beside what is built where the machine has none.
pub fn helm() -> Command {
    let built = std::env::current_exe().expect("a test is a program");
    let beside = built.ancestors().map(|folder| folder.join("helm/bin/helm"));
    Command::new(beside.into_iter().find(|path| path.exists()).unwrap_or("helm".into()))
}

/// What helm complains of, without its remarks that the chart has links to the files it shares with the overlays.
pub fn without_remarks(complaints: &str) -> String {
    let remark = |line: &&str| !line.contains(": found symbolic link in path: ");
    complaints.lines().filter(remark).collect::<Vec<_>>().join("\n")
}

/// The objects that `helm install` makes in `neptune-system`, with these values set.
///
/// # Panics
/// If helm is missing or refuses the chart or the values.
pub fn chart(values: &[&str]) -> Vec<Value> {
    chart_in("neptune-system", values)
}

/// The same in another namespace.
///
/// # Panics
/// If helm is missing or refuses the chart or the values.
pub fn chart_in(namespace: &str, values: &[&str]) -> Vec<Value> {
    let output = helm()
        .args(["template", "neptune", "--include-crds", "--namespace", namespace])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .arg(repository("build/helm/neptune"))
        .output()
        .expect("helm is installed (hack/test.sh sees to it)");
    if !output.status.success() {
        fail("build/helm/neptune", &String::from_utf8_lossy(&output.stderr));
    }
    parse("build/helm/neptune", output.stdout)
}

fn parse(what: &str, yaml: Vec<u8>) -> Vec<Value> {
    let yaml = String::from_utf8(yaml).unwrap_or_else(|error| fail(what, &error.to_string()));
    let yaml = yaml.strip_prefix("---\n").unwrap_or(&yaml);
    let parse = |document| {
        serde_saphyr::from_str(document).unwrap_or_else(|error| fail(what, &error.to_string()))
    };
    yaml.split("\n---\n").map(parse).collect()
}

/// The one object of this kind and name.
///
/// # Panics
/// If there is none.
pub fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
    found.unwrap_or_else(|| fail(name, &format!("there is no such {kind}")))
}

#[expect(clippy::panic, reason = "a test cannot go on without what it tests")]
fn fail(what: &str, why: &str) -> ! {
    panic!("{what}: {why}")
}

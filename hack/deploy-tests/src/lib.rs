//! Reads the manifests, the chart and the configuration in `build/` as users get them.

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
/// If it is missing.
pub fn text(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| fail(path, &error.to_string()))
}

/// The objects that `kubectl apply -k` creates from an overlay.
///
/// # Panics
/// If kubectl is missing or refuses the overlay.
pub fn objects(overlay: &str) -> Vec<Value> {
    objects_in(&repository("build/deploy").join(overlay), overlay)
}

/// Like [`objects`], from a user's overlay that adds a component to one of this repository.
///
/// # Panics
/// If kubectl is missing or refuses the overlay, or a temporary folder cannot be written.
pub fn objects_with(overlay: &str, component: &str) -> Vec<Value> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    // kustomize refuses absolute paths.
    let from = dir.path().canonicalize().expect("the folder exists");
    let up = "../".repeat(from.components().count() - 1);
    let path = |name: &str| {
        let folder = repository("build/deploy").join(name).canonicalize();
        let folder = folder.unwrap_or_else(|error| fail(name, &error.to_string()));
        format!("{up}{}", folder.display().to_string().trim_start_matches('/'))
    };
    let text = format!("resources: [{}]\ncomponents: [{}]\n", path(overlay), path(component));
    fs::write(from.join("kustomization.yaml"), text).expect("the folder is writable");
    objects_in(&from, overlay)
}

fn objects_in(folder: &Path, overlay: &str) -> Vec<Value> {
    let output = Command::new("kubectl")
        .arg("kustomize")
        .arg(folder)
        .output()
        .expect("kubectl is installed (hack/test.sh installs it)");
    if !output.status.success() {
        fail(overlay, &String::from_utf8_lossy(&output.stderr));
    }
    parse(overlay, output.stdout)
}

/// The command helm. `hack/test.sh` installs it next to the built programs if the machine lacks it.
pub fn helm() -> Command {
    let built = std::env::current_exe().expect("a test has an executable");
    let beside = built.ancestors().map(|folder| folder.join("helm/bin/helm"));
    Command::new(beside.into_iter().find(|path| path.exists()).unwrap_or("helm".into()))
}

/// Errors and warnings of helm, without its notes on the symbolic links between the chart and the
/// overlays.
pub fn without_notes(stderr: &str) -> String {
    let is_relevant = |line: &&str| !line.contains(": found symbolic link in path: ");
    stderr.lines().filter(is_relevant).collect::<Vec<_>>().join("\n")
}

/// The objects that `helm install` creates in `neptune-system` with these values.
///
/// # Panics
/// If helm is missing or refuses the chart or the values.
pub fn chart(values: &[&str]) -> Vec<Value> {
    chart_in("neptune-system", values)
}

/// Like [`chart`], in another namespace.
///
/// # Panics
/// If helm is missing or refuses the chart or the values.
pub fn chart_in(namespace: &str, values: &[&str]) -> Vec<Value> {
    let output = helm()
        .args(["template", "neptune", "--namespace", namespace])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .arg(repository("build/helm/neptune"))
        .output()
        .expect("helm is installed (hack/test.sh installs it)");
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

/// The object of this kind and name.
///
/// # Panics
/// If it does not exist.
pub fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let object = objects.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name);
    object.unwrap_or_else(|| fail(name, &format!("no such {kind}")))
}

#[expect(clippy::panic, reason = "a test fails without what it tests")]
fn fail(what: &str, why: &str) -> ! {
    panic!("{what}: {why}")
}

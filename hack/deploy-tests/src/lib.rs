//! Reads what `build/` ships, as users get it. What it has to be is the tests'.

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
    let yaml = String::from_utf8(output.stdout).expect("kubectl prints UTF-8");
    let parse = |document| {
        serde_saphyr::from_str(document).unwrap_or_else(|error| fail(overlay, &error.to_string()))
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

//! The end-to-end tests' fixture: a cluster, a broker, a controller and two agents as real
//! processes, with ports, names and folders of their own, so that tests can run beside each other.
//!
//! With `KUBECONFIG` set the tests use that cluster, else a `devcluster` of their own. Whatever a
//! fixture started it ends when it is dropped, also after a panic: processes, containers, objects.

#![allow(clippy::panic, clippy::unwrap_used)] // a fixture fails by panicking

mod broker;
mod cluster;
mod fleet;
mod kubeedge;
mod launch;
mod model_server;
mod process;
mod proxy;
mod truth;

pub use broker::Broker;
pub use cluster::Cluster;
pub use fleet::{Fleet, KillTarget, Transport, is_running, totals};
pub use free_port::free_port;
pub use kubeedge::KubeEdge;
pub use model_server::ModelServer;
pub use process::Process;
pub use proxy::Proxy;
pub use truth::Truth;

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// The checkout.
///
/// # Panics
/// If this crate was moved.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("hack/e2e is two levels below the root").to_owned()
}

/// A program of the workspace, as the build of the running one made it.
///
/// # Panics
/// If it was not built.
pub fn program(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("a process has a program");
    path.pop();
    // Tests are in a folder below.
    if path.ends_with("deps") {
        path.pop();
    }
    path.push(name);
    assert!(path.exists(), "{} is missing: run cargo build --workspace first", path.display());
    path
}

/// A name that no other test on this machine has now: short, a Kubernetes label.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a command to its end and returns what it printed.
///
/// # Panics
/// If it cannot be run or fails, with what it said.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Ends the test at once, clearly, when an image that `hack/test.sh` builds is not there.
///
/// # Panics
/// If it is not there.
pub fn need_image(image: &str, script: &str) {
    let found = Command::new("docker").args(["image", "inspect", image]).output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "the image {image} is missing: run {script} first (hack/test.sh does)"
    );
}

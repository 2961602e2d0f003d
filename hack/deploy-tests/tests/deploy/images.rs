//! The sources of the images. The tests cannot build the images, because they reach no registry.

use deploy_tests::text;

#[test]
fn image_builder_gets_the_whole_workspace_and_its_compiler() {
    let (workspace, ignored) = (text("Cargo.toml"), text("build/Dockerfile.dockerignore"));
    let (_, members) = workspace.split_once("members = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let folders = members.split('"').skip(1).step_by(2).map(|path| path.split('/').next().unwrap());
    let given: Vec<_> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for needed in folders.chain(["Cargo.toml", "Cargo.lock"]) {
        assert!(given.contains(&needed), "build/Dockerfile.dockerignore keeps {needed} out");
    }
    let (_, rust) = workspace.split_once("rust-version = \"").unwrap();
    let (rust, _) = rust.split_once('"').unwrap();
    assert!(text("build/Dockerfile").contains(&format!("\nARG RUST={rust}\n")));
}

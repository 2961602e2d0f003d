//! Images on the built agent: pulls from a registry, and the removal of unused images, with real
//! Docker and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    time::{Duration, Instant},
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, MODEL, Registry, SERVICE, UnmanagedContainer, docker,
    eventually, local_model, runs, service, unique,
};
use neptune_harness::docker::{engine, try_docker};
use neptune_wire::StatusReport;

fn is_on_node(image: &str) -> bool {
    try_docker(&["image", "inspect", image]).is_ok()
}

/// The number of removals in the log of the agent.
fn removals(agent: &Agent) -> usize {
    agent.log().matches("unused image removed").count()
}

/// Indices of the repositories in the test.
const WANTED: usize = 3;
const USED: usize = 4;

#[tokio::test]
async fn only_unused_images_that_the_agent_pulled_are_removed() {
    if engine() == "podman" {
        // It pulls from a registry without TLS only if its configuration names the port.
        return;
    }
    let repositories = ["unused", "tagged", "of-user", "wanted", "of-container"];
    let images = repositories.map(|repository| (repository, BusyboxImage::import()));
    let (broker, registry) = (Broker::start().await, Registry::public(images).await);
    let image = |repository| registry.image(repository);
    let pulled = repositories.map(|repository| BusyboxImage(image(repository)));
    let mut agent = Agent::new(&broker.url());
    let flags = ["--image-gc-min-age", "0", "--image-gc-max-age", "2s"];
    agent.extra = flags.map(str::to_owned).into();
    agent.start();
    let cloud = Cloud::connect(&agent);
    let of_user = image("of-user");
    // Not on the thread of the registry.
    let pull = tokio::task::spawn_blocking(move || docker(&["pull", "-q", &of_user]));
    pull.await.unwrap();
    let model = cloud.insert(MODEL, &local_model(&agent));
    let object = |repository: &str| format!("default/jointinferenceservices/{repository}");
    let services = repositories.map(|repository| {
        cloud.insert(&object(repository), &service(&unique("w"), &image(repository), IDLE))
    });
    for repository in repositories {
        cloud.status(&object(repository), "running", runs).await;
    }
    let tag = BusyboxImage(format!("{}:1", unique("neptune-test")));
    docker(&["tag", &image("tagged"), &tag.0]);
    let container = UnmanagedContainer::run(&unique("neptune-test"), &pulled[USED]);

    // A reference that the engine rejects does not stop the removal of others.
    let malformed =
        cloud.insert(&object("malformed"), &service(&unique("w"), "Not/An Image", IDLE));

    // Without an index it is not known what is unused.
    let listed = [("wanted", &services[WANTED]), ("malformed", &malformed)];
    let keys = listed.map(|(name, _)| object(name));
    cloud.index(&[(MODEL, &model), (&keys[0], listed[0].1), (&keys[1], listed[1].1)]);
    for removed in ["unused", "tagged"] {
        eventually("the unused image to be removed", || !is_on_node(&image(removed))).await;
    }
    assert!(is_on_node(&tag.0), "a tag of a user stays, and so does its image");
    // An image is gone before the agent logs it.
    eventually("two removals in the log", || removals(&agent) >= 2).await;
    // The agent knows the records of a restart, and the container of a user is gone now.
    agent.kill();
    agent.start();
    assert!(is_on_node(&pulled[USED].0), "a container of a user uses it");
    drop(container);
    eventually("the image of the container to be removed", || !is_on_node(&pulled[USED].0)).await;
    for kept in ["wanted", "of-user"] {
        assert!(is_on_node(&image(kept)), "{kept}");
    }
    eventually("the third removal in the log", || removals(&agent) >= 3).await;
    assert_eq!(removals(&agent), 3);
}

/// Base64 of `user:pass:word`, as in the file of credentials.
const AUTH: &str = "dXNlcjpwYXNzOndvcmQ=";
const AUTHORIZATION: &str = "Basic dXNlcjpwYXNzOndvcmQ=";

#[tokio::test]
async fn private_registry_is_used_with_the_credentials_of_the_file() {
    if engine() == "podman" {
        // It pulls from a registry without TLS only if its configuration names the port.
        return;
    }
    let images = [("private", BusyboxImage::import())];
    let registry = Registry::private(images, AUTHORIZATION).await;
    let broker = Broker::start().await;
    let pulled = BusyboxImage(registry.image("private"));
    let mut agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    cloud.insert(SERVICE, &service(&unique("w"), &pulled.0, IDLE));
    let states = |report: &StatusReport, text: &str| report.workers[0].message.contains(text);
    let remedy = format!("if {} needs credentials, set --registry-config", registry.address());
    let denied = cloud.status(SERVICE, "the remedy", |report| states(report, &remedy)).await;
    assert!(states(&denied, "no basic auth credentials"), "{denied:?}");

    agent.terminate().await;
    let file = agent.dir.path().join("registries.json");
    fs::write(&file, format!(r#"{{"auths": {{"{}": "{AUTH}"}}}}"#, registry.address())).unwrap();
    agent.extra = vec!["--registry-config".to_owned(), file.to_str().unwrap().to_owned()];
    agent.start();
    let unusable = format!("{} is not usable: not JSON in the format", file.display());
    cloud.status(SERVICE, "the malformed file", |report| states(report, &unusable)).await;
    let login = format!(r#"{{"auths": {{"{}": {{"auth": "{AUTH}"}}}}}}"#, registry.address());
    fs::write(&file, login).unwrap();
    let running = cloud.status(SERVICE, "running with the corrected file", runs).await;
    for secret in [AUTH, "pass:word"] {
        assert!(!agent.log().contains(secret) && !format!("{running:?}").contains(secret));
    }
}

#[tokio::test]
async fn corrected_image_and_deletion_end_a_pull_in_progress() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let agent = Agent::started(&broker.url());
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    // A registry that accepts connections and never answers.
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = format!("{}/{}:1", registry.local_addr().unwrap(), unique("hung"));
    let (worker, other) = (unique("w"), "default/jointinferenceservices/other");
    cloud.insert(SERVICE, &service(&worker, &hung, IDLE));
    cloud.insert(other, &service(&unique("w"), &hung, IDLE));
    let pulling = |report: &StatusReport| report.workers[0].message.contains("pulling it");
    cloud.status(SERVICE, "pulling", pulling).await;
    cloud.status(other, "pulling", pulling).await;
    // The docker engine has connected, so that its pull is in progress.
    let connected = tokio::task::spawn_blocking(move || (registry.accept().unwrap(), registry));
    let _connected = connected.await.unwrap();

    let changed = Instant::now();
    cloud.insert(SERVICE, &service(&worker, &image.0, IDLE));
    cloud.delete(other);
    cloud.status(SERVICE, "running with the corrected image", runs).await;
    assert!(changed.elapsed() < Duration::from_secs(5), "{:?}", changed.elapsed());
    eventually("both pulls to end", || agent.log().matches("image pull cancelled").count() == 2)
        .await;
    assert_eq!(agent.containers().len(), 1);
}

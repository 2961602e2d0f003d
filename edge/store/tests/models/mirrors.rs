//! Mirrors: further URLs of the same content, for files and for sets of files.

use std::{fs, sync::Arc, time::Duration};

use neptune_harness::hub::{Hub, Repository};
use neptune_store::{
    Artifact, ArtifactRequest, Digest, FetchProgress, ModelError, ModelStore, StorePolicy,
};
use tokio::sync::watch;

use crate::{
    fixture::{StoreFixture, noise, policy},
    server::{Reply, Server, ranged},
};

fn request(digest: Digest, urls: &[&str]) -> ArtifactRequest {
    let mut request = ArtifactRequest::parse(urls[0], Some(digest)).unwrap();
    for (url, number) in urls[1..].iter().zip(1..) {
        request.add_mirror(number, url).unwrap();
    }
    request
}

async fn fetch(
    fixture: &StoreFixture,
    request: &ArtifactRequest,
) -> Result<Artifact, Arc<ModelError>> {
    fixture.store.ensure(request, &watch::channel(FetchProgress::default()).0).await
}

#[tokio::test]
async fn mirror_with_wrong_bytes_is_skipped_and_the_next_one_is_named() {
    let body = noise(300_000, 1);
    let digest = Digest::of_bytes(&body);
    let missing = Server::start(|_| Reply::status(404)).await;
    let wrong = Server::serve_file(noise(300_000, 2)).await;
    let right = Server::serve_file(body.clone()).await;
    let fixture = StoreFixture::new();
    let urls = [&missing, &wrong, &right].map(|server| format!("{}/m", server.url));
    let request = request(digest, &urls.each_ref().map(String::as_str));
    let artifact = fetch(&fixture, &request).await.unwrap();
    assert_eq!(fs::read(&artifact.path).unwrap(), body);
    assert_eq!(artifact.mirror, Some(2));
    assert_eq!([&missing, &wrong, &right].map(Server::requests), [1, 1, 1]);
    // The source is known after a restart too, and also if the mirrors changed.
    let StoreFixture { dir, store } = fixture;
    drop((artifact, store));
    let store = ModelStore::open(&dir.path().join("store"), policy()).unwrap();
    let known = store.find(&ArtifactRequest::parse(&urls[0], Some(digest)).unwrap()).unwrap();
    assert_eq!((known.digest, known.mirror), (digest, Some(2)));
}

#[tokio::test]
async fn url_is_preferred_and_a_server_that_is_down_does_not_delay_the_mirrors() {
    let body = noise(1_000, 3);
    let digest = Digest::of_bytes(&body);
    let server = Server::serve_file(body).await;
    let url = format!("{}/m", server.url);
    let fixture = StoreFixture::new();
    let artifact = fetch(&fixture, &request(digest, &[&url, "http://127.0.0.1:1/m"])).await;
    assert_eq!(artifact.unwrap().mirror, None);

    let fixture = StoreFixture::new();
    let down = Server::start(|_| Reply::status(503)).await;
    let down = format!("{}/m", down.url);
    let request = request(digest, &["http://127.0.0.1:1/m", &down, &url]);
    let fetching = fetch(&fixture, &request);
    let artifact = tokio::time::timeout(Duration::from_secs(20), fetching).await.unwrap();
    assert_eq!(artifact.unwrap().mirror, Some(2));
}

#[tokio::test]
async fn wrong_bytes_of_all_mirrors_are_an_error_and_nothing_is_stored() {
    let digest = Digest::of_bytes(b"other");
    let servers = [Server::serve_file("one").await, Server::serve_file("two").await];
    let urls = servers.each_ref().map(|server| format!("{}/m", server.url));
    let fixture = StoreFixture::new();
    let error = fetch(&fixture, &request(digest, &urls.each_ref().map(String::as_str))).await;
    let error = error.unwrap_err();
    assert!(matches!(*error, ModelError::DigestMismatch { .. }), "{error}");
    assert_eq!(servers.each_ref().map(Server::requests), [1, 1]);
    fixture.assert_empty();
}

#[tokio::test]
async fn redirect_of_a_mirror_to_a_refused_address_is_not_followed() {
    let body = noise(1_000, 4);
    let digest = Digest::of_bytes(&body);
    let hostile = Server::start(|_| Reply::status(302).with("location", "http://10.0.0.1/m")).await;
    let right = Server::start(move |request| ranged(request, &body.clone().into(), "\"1\"")).await;
    let urls = [&hostile, &hostile, &right].map(|server| format!("{}/m", server.url));
    let fixture = StoreFixture::new();
    let artifact = fetch(&fixture, &request(digest, &urls.each_ref().map(String::as_str))).await;
    assert_eq!(artifact.unwrap().mirror, Some(2));
}

#[tokio::test]
async fn set_comes_from_a_repository_that_is_its_mirror() {
    let files = [("config.json", &b"{}"[..]), ("w/model.bin", b"weights")];
    let hub = Hub::start(vec![Repository::new("org/copy").commit("main", &files)]).await;
    let with_hub =
        || StoreFixture::with(StorePolicy { hub: hub.url().parse().unwrap(), ..policy() });
    let digest = with_hub().fetch("hf://org/copy", None).await.unwrap().digest;
    let fixture = with_hub();
    let request = request(digest, &["hf://org/none", "hf://org/copy"]);
    let artifact = fetch(&fixture, &request).await.unwrap();
    assert_eq!((artifact.digest, artifact.mirror), (digest, Some(1)));
    assert_eq!(fs::read(artifact.path.join("w/model.bin")).unwrap(), b"weights");
}

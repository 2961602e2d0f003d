//! Files that a namespace has for itself (`StorePolicy::per_namespace`).

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::Bytes;
use neptune_store::{
    Artifact, ArtifactRequest, ContentKey, Digest, FetchProgress, ModelError, ModelErrorClass,
    ModelStore, PeerFetch, StorePolicy,
};
use neptune_wire::NodeName;
use tokio::sync::{mpsc, watch};

use crate::{
    archives::{file, tar},
    fixture::{StoreFixture, files, policy},
    server::{Reply, Server, ranged},
};

const BODY: &[u8] = b"weights of namespace a";

fn scoped() -> StorePolicy {
    StorePolicy { per_namespace: true, ..policy() }
}

fn request(namespace: &str, url: &str, digest: Option<Digest>) -> ArtifactRequest {
    ArtifactRequest::parse(url, digest).unwrap().for_namespace(namespace.parse().unwrap())
}

async fn ensure(
    store: &ModelStore,
    request: &ArtifactRequest,
) -> Result<Artifact, Arc<ModelError>> {
    store.ensure(request, &watch::channel(FetchProgress::default()).0).await
}

/// Answers 401, except for the token of namespace a.
async fn private_server() -> Server {
    Server::start(|request| match request.path.as_str() {
        "/m?token=a" => ranged(request, &Bytes::from_static(BODY), "\"1\""),
        _ => Reply::status(401),
    })
    .await
}

#[tokio::test]
async fn digest_gives_no_file_of_another_namespace() {
    let server = private_server().await;
    let (allowed, refused) = (format!("{}/m?token=a", server.url), format!("{}/m", server.url));
    let digest = Some(Digest::of_bytes(BODY));
    for per_namespace in [true, false] {
        let fixture = StoreFixture::with(StorePolicy { per_namespace, ..policy() });
        let a = ensure(&fixture.store, &request("a", &allowed, digest)).await.unwrap();
        let of_b = request("b", &refused, digest);
        assert_eq!(fixture.store.find(&of_b).is_some(), !per_namespace);
        match ensure(&fixture.store, &of_b).await {
            Ok(b) => assert!(!per_namespace && b.path == a.path),
            Err(error) => {
                assert!(per_namespace && error.class() == ModelErrorClass::Permanent);
                assert!(matches!(*error, ModelError::HttpStatus { status: 401, .. }), "{error}");
            }
        }
        // The rightful second namespace downloads the file itself.
        let c = ensure(&fixture.store, &request("c", &allowed, digest)).await.unwrap();
        assert_eq!(c.path != a.path, per_namespace);
        assert_eq!(std::fs::read(c.path).unwrap(), BODY);
    }
    assert_eq!(server.requests(), 4, "three with the option, one without");
}

#[tokio::test]
async fn concurrent_fetch_of_another_namespace_is_not_joined() {
    let server = private_server().await;
    let digest = Some(Digest::of_bytes(BODY));
    let fixture = StoreFixture::with(scoped());
    let (of_a, of_b) = (
        request("a", &format!("{}/m?token=a", server.url), digest),
        request("b", &format!("{}/m", server.url), digest),
    );
    let (a, b) = tokio::join!(ensure(&fixture.store, &of_a), ensure(&fixture.store, &of_b));
    assert!(a.is_ok() && b.is_err());
}

#[tokio::test]
async fn url_without_digest_is_fetched_for_each_namespace() {
    let server = Server::serve_file(Bytes::from_static(BODY)).await;
    let url = format!("{}/m", server.url);
    let fixture = StoreFixture::with(scoped());
    let in_namespace = |namespace| request(namespace, &url, None);
    ensure(&fixture.store, &in_namespace("a")).await.unwrap();
    assert!(fixture.store.find(&in_namespace("a")).is_some());
    assert!(fixture.store.find(&in_namespace("b")).is_none());
    ensure(&fixture.store, &in_namespace("b")).await.unwrap();
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn peers_are_asked_only_for_shared_files() {
    let server = Server::serve_file(Bytes::from_static(BODY)).await;
    let (asked, mut questions) = mpsc::unbounded_channel();
    let peers = PeerFetch::new(move |request| {
        asked.send(request.digest).unwrap();
        async { Ok(None::<NodeName>) }
    });
    let digest = Digest::of_bytes(BODY);
    let of_a = request("a", &format!("{}/m", server.url), Some(digest));
    for per_namespace in [true, false] {
        let policy = StorePolicy { per_namespace, peers: Some(peers.clone()), ..policy() };
        let fixture = StoreFixture::with(policy);
        ensure(&fixture.store, &of_a).await.unwrap();
        assert_eq!(questions.try_recv().is_ok(), !per_namespace);
        assert_eq!(fixture.store.contents().unwrap().is_empty(), per_namespace, "served to peers");
    }
}

/// The keys of the stored contents.
fn stored(root: &Path) -> BTreeSet<ContentKey> {
    let names = std::fs::read_dir(root.join("sha256")).unwrap().map(|entry| entry.unwrap());
    names.map(|name| name.file_name().to_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn files_of_the_other_setting_are_not_used_and_collected() {
    let server = Server::serve_file(Bytes::from_static(BODY)).await;
    let url = format!("{}/m.bin", server.url);
    let digest = Digest::of_bytes(BODY);
    let shared = ContentKey::shared(digest);
    let key_in =
        |namespace: &str| ContentKey { digest, namespace: Some(namespace.parse().unwrap()) };
    let dir = tempfile::tempdir().unwrap();
    let open = |policy| ModelStore::open(dir.path(), policy).unwrap();

    let store = open(policy());
    drop(ensure(&store, &request("a", &url, Some(digest))).await.unwrap());
    drop(ensure(&store, &request("a", &url, None)).await.unwrap());
    drop(store);

    let store = open(scoped());
    assert!(store.find(&request("a", &url, Some(digest))).is_none(), "not adopted");
    for namespace in ["a", "b"] {
        drop(ensure(&store, &request(namespace, &url, None)).await.unwrap());
    }
    // A container may still use a shared file.
    store.collect_garbage(&[shared.clone()].into(), 9).unwrap();
    assert_eq!(stored(dir.path()), [shared, key_in("a"), key_in("b")].into());
    assert!(store.contents().unwrap().len() == 1, "only what is shared is for peers");
    store.collect_garbage(&BTreeSet::new(), 9).unwrap();
    assert_eq!(stored(dir.path()), [key_in("a"), key_in("b")].into(), "no number of them is kept");
    store.collect_garbage(&[key_in("b")].into(), 0).unwrap();
    assert_eq!(stored(dir.path()), [key_in("b")].into());
    drop(store);

    let store = open(policy());
    assert!(store.find(&request("b", &url, None)).is_none());
    store.collect_garbage(&BTreeSet::new(), 9).unwrap();
    let left = files(dir.path());
    assert!(left.iter().all(|path| path.ends_with("lock")), "{left:?}");
}

#[tokio::test]
async fn peers_are_asked_for_models_with_a_digest_and_get_archives_that_arrived_with_peers_on() {
    let (asked, mut questions) = mpsc::unbounded_channel();
    let peers = PeerFetch::new(move |request| {
        asked.send(request.digest).unwrap();
        async { Ok(None::<NodeName>) }
    });
    let archive = tar(&[file("a", BODY)]);
    let digest = Digest::of_bytes(&archive);
    let server = Server::serve_file(archive).await;
    let url = format!("{}/m.tar", server.url);
    for (with_peers, given) in [(true, Some(digest)), (true, None), (false, Some(digest))] {
        let peers = with_peers.then(|| peers.clone());
        let fixture = StoreFixture::with(StorePolicy { peers, ..policy() });
        let request = ArtifactRequest::parse(&url, given).unwrap();
        ensure(&fixture.store, &request).await.unwrap();
        let asked = questions.try_recv().ok();
        assert_eq!(asked, given.filter(|_| with_peers), "{with_peers} {given:?}");
        let contents = fixture.store.contents().unwrap();
        assert_eq!(contents.len(), usize::from(with_peers), "{with_peers} {given:?}");
    }
}

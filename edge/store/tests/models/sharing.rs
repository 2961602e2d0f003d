//! Sharing of fetches and artifacts, and garbage collection.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use neptune_store::{ArtifactRequest, ContentKey, Digest, FetchPhase, FetchProgress, ModelStore};
use tokio::sync::watch;

use crate::{
    archives::{file, tar},
    fixture::{StoreFixture, noise, policy},
    server::{Reply, Server, ranged},
};

#[tokio::test]
async fn concurrent_requests_for_one_digest_share_a_download() {
    let body = noise(300_000, 10);
    let digest = Digest::of_bytes(&body);
    let pace = Some((30_000, Duration::from_millis(50)));
    let server = {
        let body = Bytes::from(body);
        Server::start(move |request| Reply { pace, ..ranged(request, &body, "\"1\"") }).await
    };
    let fixture = StoreFixture::new();
    let fetches = (0..8).map(|at| {
        let (store, url) = (fixture.store.clone(), format!("{}/mirror-{at}", server.url));
        async move {
            let (sender, progress) = watch::channel(FetchProgress::default());
            let request = ArtifactRequest::parse(&url, Some(digest)).unwrap();
            let artifact = store.ensure(&request, &sender).await.unwrap();
            let progress = progress.borrow().clone();
            assert_eq!((progress.received, progress.phase), (300_000, FetchPhase::Finishing));
            artifact.path
        }
    });
    let paths: BTreeSet<_> = join_all(fetches).await.into_iter().collect();
    assert_eq!((paths.len(), server.requests()), (1, 1));
}

#[tokio::test]
async fn unusable_url_of_one_caller_does_not_block_another() {
    let body = noise(300_000, 13);
    let digest = Digest::of_bytes(&body);
    let body = Bytes::from(body);
    let good = Server::serve_file(body.clone()).await;
    let bad = Server::start(move |request| match request.path.as_str() {
        "/absent" => Reply::status(404),
        "/wrong" => ranged(request, &Bytes::from_static(b"another file"), "\"1\""),
        "/cut" => ranged(request, &body, "\"1\"").cut(150_000),
        _ => Reply::status(503),
    });
    let bad = bad.await;
    for path in ["unavailable", "absent", "wrong", "cut"] {
        let fixture = StoreFixture::new();
        let (dead, working) = (format!("{}/{path}", bad.url), format!("{}/m", good.url));
        let fetch = |url: String| {
            let store = fixture.store.clone();
            async move {
                let (sender, _) = watch::channel(FetchProgress::default());
                let request = ArtifactRequest::parse(&url, Some(digest)).unwrap();
                store.ensure(&request, &sender).await.map(|artifact| artifact.bytes)
            }
        };
        let both = futures::future::join(fetch(dead), fetch(working));
        let results = tokio::time::timeout(Duration::from_secs(20), both).await;
        let (first, second) = results.unwrap_or_else(|_| panic!("{path} blocks the working URL"));
        assert_eq!((first.unwrap(), second.unwrap()), (300_000, 300_000), "{path}");
    }
}

#[tokio::test]
async fn url_that_is_added_during_the_backoff_is_tried_at_once() {
    let body = noise(1_000, 14);
    let digest = Digest::of_bytes(&body);
    let good = Server::serve_file(Bytes::from(body)).await;
    let bad = Server::start(|_| Reply::status(503)).await;
    let fixture = StoreFixture::new();
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse(&format!("{}/m", bad.url), Some(digest)).unwrap();
    let store = fixture.store.clone();
    let first = tokio::spawn(async move { store.ensure(&request, &sender).await.is_ok() });
    // Two failures: the next backoff takes seconds.
    while bad.requests() < 3 {
        progress.changed().await.unwrap();
    }
    let url = format!("{}/m", good.url);
    let fetch = fixture.fetch(&url, Some(digest));
    let result = tokio::time::timeout(Duration::from_millis(500), fetch).await;
    assert_eq!(result.unwrap().unwrap().bytes, 1_000);
    assert!(first.await.unwrap());
}

#[tokio::test]
async fn content_of_several_urls_is_stored_once() {
    for form in ["bin", "tar"] {
        let body = Bytes::from(tar(&[file("m", &noise(300_000, 12))]));
        let server = Server::serve_file(body).await;
        let fixture = StoreFixture::new();
        let fetches = (0..24).map(|at| {
            let (fixture, url) = (&fixture, format!("{}/{at}.{form}", server.url));
            async move {
                let artifact = fixture.fetch(&url, None).await.unwrap();
                let inode = fs::metadata(&artifact.path).unwrap().ino();
                (artifact, inode)
            }
        });
        let artifacts = join_all(fetches).await;
        assert_eq!(server.requests(), artifacts.len(), "{form}: fetched once for each URL");
        for (artifact, inode) in &artifacts {
            assert_eq!(
                fs::metadata(&artifact.path).unwrap().ino(),
                *inode,
                "replaced while in use"
            );
        }
        assert!(artifacts.iter().all(|(artifact, _)| artifact.path == artifacts[0].0.path));
    }
}

#[tokio::test]
async fn cancelled_caller_does_not_stop_others_and_bytes_are_kept() {
    let body = Bytes::from(noise(1_000_000, 11));
    let digest = Digest::of_bytes(&body);
    let pace = Some((20_000, Duration::from_millis(20)));
    let server =
        Server::start(move |request| Reply { pace, ..ranged(request, &body, "\"1\"") }).await;
    let fixture = StoreFixture::new();
    let request = ArtifactRequest::parse(&format!("{}/m", server.url), Some(digest)).unwrap();
    let received_more_than = |at: u64| {
        let (store, request) = (fixture.store.clone(), request.clone());
        async move {
            let (sender, mut progress) = watch::channel(FetchProgress::default());
            tokio::select! {
                _ = store.ensure(&request, &sender) => panic!("the download is not complete"),
                _ = progress.wait_for(|progress| progress.received > at) => {}
            }
        }
    };
    tokio::join!(received_more_than(200_000), received_more_than(400_000));
    assert_eq!(server.requests(), 1);
    let artifact = fixture.fetch(&format!("{}/m", server.url), Some(digest)).await.unwrap();
    assert_eq!(artifact.digest, digest);
    let spans = server.spans();
    assert_eq!(spans.len(), 2);
    assert!(spans[1].0 >= 400_000, "{spans:?}");

    fixture.store.discard_partial(&request).await.unwrap();
    assert!(fixture.store.find(&request).is_some(), "only the partial download is discarded");
}

#[tokio::test]
async fn garbage_collection_keeps_newest_kept_and_used_artifacts() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = dir.path().canonicalize().unwrap();
    let fixture = StoreFixture::with(neptune_store::StorePolicy {
        file_roots: vec![allowed.clone()],
        ..policy()
    });
    let mut digests = Vec::new();
    let mut in_use = None;
    for at in 0..6u8 {
        let path = allowed.join(format!("{at}"));
        fs::write(&path, vec![at; 100]).unwrap();
        let artifact = fixture.fetch(path.to_str().unwrap(), None).await.unwrap();
        digests.push(artifact.digest);
        if at == 1 {
            in_use = Some(artifact);
        }
        // The order has a resolution of one millisecond.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let present = || -> Vec<usize> {
        let there = |digest| {
            fixture.store.find(&ArtifactRequest::parse("/x", Some(digest)).unwrap()).is_some()
        };
        (0..6).filter(|at| there(digests[*at])).collect()
    };
    assert_eq!(
        fixture
            .store
            .collect_garbage(&BTreeSet::from([ContentKey::shared(digests[0])]), 2)
            .unwrap(),
        200
    );
    assert_eq!(present(), [0, 1, 4, 5]);
    drop(in_use);
    assert_eq!(
        fixture
            .store
            .collect_garbage(&BTreeSet::from([ContentKey::shared(digests[0])]), 0)
            .unwrap(),
        300
    );
    assert_eq!(present(), [0]);
    assert_eq!(fs::read_dir(fixture.root().join("trash")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(fixture.root().join("known")).unwrap().count(), 1);
    drop(fixture.store);
    let store = ModelStore::open(&dir.path().join("none"), policy()).unwrap();
    assert_eq!(store.collect_garbage(&BTreeSet::new(), 0).unwrap(), 0);
}

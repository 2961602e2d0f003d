//! Faulty servers and connections: the result is correct, and nothing is downloaded twice without
//! need.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use neptune_store::{ArtifactRequest, Digest, FetchPhase, FetchProgress, ModelError, StorePolicy};
use tokio::sync::watch;

use crate::{
    archives::{file, gz, tar},
    fixture::{StoreFixture, files, noise, policy},
    server::{Reply, Request, Server, ranged},
};

const LENGTH: usize = 400_000;

#[tokio::test]
async fn interrupted_download_resumes_at_any_offset() {
    let plain = noise(LENGTH, 3);
    for (end, body) in [("bin", plain.clone()), ("tar.gz", gz(&tar(&[file("m", &plain)])))] {
        let (body, length) = (Bytes::from(body.clone()), body.len());
        let content = body.clone();
        let server = Server::start(move |request| {
            let reply = ranged(request, &content, "\"v\"");
            let cut = request.path[1..].split('.').next().unwrap().parse::<usize>().unwrap();
            if request.from().is_none() { reply.cut(length * cut / 20) } else { reply }
        })
        .await;
        let fixture = StoreFixture::new();
        let urls: Vec<String> = (1..20).map(|cut| format!("{}/{cut}.{end}", server.url)).collect();
        for result in join_all(urls.iter().map(|url| fixture.fetch(url, None))).await {
            let artifact = result.unwrap();
            assert_eq!(artifact.digest, Digest::of_bytes(&body));
            let model = if end == "bin" { artifact.path } else { artifact.path.join("m") };
            assert_eq!(fs::read(model).unwrap(), plain);
        }
        assert_eq!(server.requests(), 2 * urls.len(), "{end}: {:?}", server.spans());
        assert_eq!(server.sent(), (length * urls.len()) as u64, "no byte was sent twice");
    }
}

/// A server whose first response ends in the middle of version one. `second` is its second
/// response. Returns both versions too.
async fn interrupted(
    second: impl Fn(&Request, &Bytes, &Bytes) -> Reply + Send + Sync + 'static,
) -> (Server, [Bytes; 2]) {
    let (one, two) = (Bytes::from(noise(LENGTH, 4)), Bytes::from(noise(LENGTH, 5)));
    let versions = [one.clone(), two.clone()];
    let server = Server::start(move |request| match request.number {
        0 => ranged(request, &one, "\"one\"").cut(LENGTH / 2),
        1 => second(request, &one, &two),
        _ => ranged(request, &two, "\"two\""),
    })
    .await;
    (server, versions)
}

#[tokio::test]
async fn versions_are_never_mixed() {
    let part = |body: &Bytes, range: &str| {
        Reply { status: 206, body: body.slice(LENGTH / 2..), ..Reply::default() }
            .with("content-range", range)
    };
    let right = format!("bytes {}-{}/{LENGTH}", LENGTH / 2, LENGTH - 1);
    let (a, b, c) = (right.clone(), right.clone(), right);
    let cases = [
        (
            "the range is ignored",
            interrupted(|_, one, _| Reply { status: 200, body: one.clone(), ..Reply::default() })
                .await,
            0,
            2,
        ),
        (
            "there is a new version",
            interrupted(|request, _, two| ranged(request, two, "\"two\"")).await,
            1,
            2,
        ),
        (
            "a range of the new version is sent",
            interrupted(move |_, _, two| part(two, &a).with("etag", "\"two\"")).await,
            1,
            3,
        ),
        (
            "another range is sent",
            interrupted(move |_, one, _| {
                part(one, &format!("bytes 0-{}/{LENGTH}", LENGTH / 2 - 1))
            })
            .await,
            1,
            3,
        ),
        (
            "the content has another length",
            interrupted(move |_, one, _| part(one, &b.replace("/4", "/5"))).await,
            1,
            3,
        ),
        (
            "the range has no Content-Range",
            interrupted(|_, one, _| Reply { status: 206, body: one.clone(), ..Reply::default() })
                .await,
            1,
            3,
        ),
        (
            "the content is shorter",
            interrupted(|_, _, _| Reply::status(416).with("content-range", "bytes */7")).await,
            1,
            3,
        ),
    ];
    join_all(cases.map(|(what, (server, versions), expected, requests)| async move {
        let fixture = StoreFixture::new();
        let artifact = fixture.fetch(&format!("{}/m", server.url), None).await.unwrap();
        assert_eq!(fs::read(artifact.path).unwrap(), versions[expected], "{what}");
        assert_eq!(server.requests(), requests, "{what}");
        let second_request = server.seen.lock().unwrap()[1].clone();
        assert_eq!(
            (second_request.from(), second_request.headers["if-range"].as_str()),
            (Some(LENGTH / 2), "\"one\"")
        );
    }))
    .await;
    // A range with a wrong version is detected by the digest. Then everything is requested.
    let (server, versions) = interrupted(move |_, _, two| part(two, &c)).await;
    let fixture = StoreFixture::new();
    let digest = Digest::of_bytes(&versions[1]);
    let artifact = fixture.fetch(&format!("{}/m", server.url), Some(digest)).await.unwrap();
    assert_eq!((artifact.digest, server.requests()), (digest, 3));
}

#[tokio::test]
async fn download_restarts_without_a_strong_validator() {
    let body = Bytes::from(noise(LENGTH, 6));
    for (tag, requests_range) in [("W/\"weak\"", false), ("\"strong\"", true)] {
        let body = body.clone();
        let server = Server::start(move |request| {
            let reply = ranged(request, &body, tag);
            if request.number == 0 { reply.cut(1000) } else { reply }
        })
        .await;
        let fixture = StoreFixture::new();
        fixture.fetch(&format!("{}/m", server.url), None).await.unwrap();
        assert_eq!(server.seen.lock().unwrap()[1].from().is_some(), requests_range, "{tag}");
    }
}

/// Fetches until the first transient error, and returns it. The artifact must not be visible then.
async fn first_error(fixture: &StoreFixture, url: &str, digest: Option<Digest>) -> Arc<ModelError> {
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse(url, digest).unwrap();
    tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        progress = progress.wait_for(|progress| progress.phase == FetchPhase::Retrying) => {
            assert!(fixture.store.find(&request).is_none());
            progress.unwrap().last_error.clone().unwrap()
        }
    }
}

#[tokio::test]
async fn truncated_and_stalled_downloads_fail_and_stay_invisible() {
    let fixture =
        StoreFixture::with(StorePolicy { stall_timeout: Duration::from_secs(1), ..policy() });
    let short = Server::start(|_| {
        Reply { status: 200, body: "short".into(), ..Reply::default() }.with("content-length", 100)
    })
    .await;
    let error = first_error(&fixture, &format!("{}/m", short.url), None).await;
    assert!(matches!(*error, ModelError::Interrupted { received: 5, .. }), "{error}");

    let silent = Server::start(|_| {
        let reply = Reply { status: 200, body: "si".into(), hangs: true, ..Reply::default() };
        reply.with("content-length", 100)
    })
    .await;
    let error = first_error(&fixture, &format!("{}/m", silent.url), None).await;
    assert!(matches!(*error, ModelError::Stalled { seconds: 1, .. }), "{error}");

    let gone = format!("{}/m", short.url);
    drop(short);
    tokio::task::yield_now().await;
    let error = first_error(&fixture, &gone, Some(Digest::of_bytes(b"x"))).await;
    assert!(matches!(*error, ModelError::Unreachable { .. }), "{error}");

    let without_length = Server::start(|_| Reply {
        status: 200,
        body: "cut".into(),
        is_unsized: true,
        ..Reply::default()
    })
    .await;
    let url = format!("{}/m", without_length.url);
    let error = fixture.fetch(&url, None).await.unwrap_err();
    assert!(matches!(*error, ModelError::UnknownLength { .. }), "{error}");
    let digest = Digest::of_bytes(b"cut short");
    let error = fixture.fetch(&url, Some(digest)).await.unwrap_err();
    assert!(matches!(*error, ModelError::DigestMismatch { .. }), "{error}");
    assert!(!files(&fixture.root()).iter().any(|path| path.ends_with("model")));
}

#[tokio::test]
async fn slow_server_does_not_block_other_fetches() {
    let pace = Some((1, Duration::from_secs(1)));
    let slow = Server::start(move |_| Reply {
        status: 200,
        body: vec![7; 1000].into(),
        pace,
        ..Reply::default()
    })
    .await;
    let fast = Server::serve_file(noise(4 << 20, 7)).await;
    let fixture =
        StoreFixture::with(StorePolicy { stall_timeout: Duration::from_secs(3), ..policy() });
    let (sender, progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse(&format!("{}/m", slow.url), None).unwrap();
    let quick = async {
        for at in 0..3 {
            fixture.fetch(&format!("{}/{at}", fast.url), None).await.unwrap();
        }
        // The total time exceeds the stall timeout, and the fetch does not fail.
        let mut progress = progress.clone();
        progress.wait_for(|progress| progress.received >= 5).await.unwrap().clone()
    };
    tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        progress = quick => {
            assert!(progress.last_error.is_none() && progress.bytes_per_second <= 5, "{progress:?}");
            assert_eq!((slow.requests(), fast.requests()), (1, 3));
        }
    }
}

#[tokio::test]
async fn received_bytes_are_reported_during_a_stall() {
    let server = Server::start(|_| {
        let reply =
            Reply { status: 200, body: vec![7; 500].into(), hangs: true, ..Reply::default() };
        reply.with("content-length", 1000)
    })
    .await;
    let fixture = StoreFixture::new();
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let request = ArtifactRequest::parse(&format!("{}/m", server.url), None).unwrap();
    let shown = async {
        let half = progress.wait_for(|progress| progress.received == 500).await.unwrap().clone();
        assert_eq!((half.total, half.phase), (Some(1000), FetchPhase::Downloading));
        let still = progress.wait_for(|progress| progress.bytes_per_second < half.bytes_per_second);
        assert_eq!(still.await.unwrap().received, 500);
    };
    tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        () = shown => {}
    }
}

#[tokio::test]
async fn each_of_a_thousand_flipped_bits_is_detected() {
    let good = gz(&tar(&[file("weights", &noise(1500, 8)), file("config", b"{}")]));
    let digest = Digest::of_bytes(&good);
    let dir = tempfile::tempdir().unwrap();
    let fixture =
        StoreFixture::with(StorePolicy { file_roots: vec![dir.path().to_owned()], ..policy() });
    let bits = good.len() * 8;
    for at in 0..1000 {
        let mut bad = good.clone();
        let bit = at * 7919 % bits;
        bad[bit / 8] ^= 1 << (bit % 8);
        let path = dir.path().join(format!("{at}.tar.gz"));
        fs::write(&path, bad).unwrap();
        let error = fixture.fetch(path.to_str().unwrap(), Some(digest)).await.unwrap_err();
        let is_found =
            matches!(*error, ModelError::DigestMismatch { .. } | ModelError::InvalidArchive { .. });
        assert!(is_found, "bit {bit}: {error}");
    }
    fixture.assert_empty();
    let path = dir.path().join("good.tar.gz");
    fs::write(&path, good).unwrap();
    assert_eq!(fixture.fetch(path.to_str().unwrap(), Some(digest)).await.unwrap().digest, digest);
}

#[tokio::test]
async fn truncated_chunked_body_is_detected() {
    let body = Bytes::from(noise(LENGTH, 9));
    let content = body.clone();
    let server = Server::start(move |request| {
        if request.from().is_some() {
            return ranged(request, &content, "\"1\"");
        }
        let chunks: Vec<Vec<u8>> = content
            .chunks(10_000)
            .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
            .collect();
        let chunked = [chunks.concat(), b"0\r\n\r\n".to_vec()].concat();
        let reply =
            Reply { status: 200, body: chunked.into(), is_unsized: true, ..Reply::default() };
        let reply = reply.with("transfer-encoding", "chunked").with("etag", "\"1\"");
        if request.number == 0 { reply.cut(LENGTH / 2) } else { reply }
    })
    .await;
    let fixture = StoreFixture::new();
    for (name, requests) in [("cut", 2), ("whole", 3)] {
        let artifact = fixture.fetch(&format!("{}/{name}", server.url), None).await.unwrap();
        assert_eq!(fs::read(artifact.path).unwrap(), body, "{name}");
        assert_eq!(server.requests(), requests, "{name}");
    }
}

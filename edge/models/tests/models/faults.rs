//! Servers and lines that fail: the model is right in the end, and nothing is fetched twice needlessly.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use neptune_models::{Digest, ModelError, Phase, Policy, Progress, Want};
use tokio::sync::watch;

use crate::{
    archives::{file, gz, tar},
    server::{Reply, Request, Server, ranged},
    stage::{Stage, files, noise, policy},
};

const LENGTH: usize = 400_000;

#[tokio::test]
async fn a_download_cut_at_any_twentieth_goes_on_from_there() {
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
        let stage = Stage::new();
        let urls: Vec<String> = (1..20).map(|cut| format!("{}/{cut}.{end}", server.url)).collect();
        for found in join_all(urls.iter().map(|url| stage.fetch(url, None))).await {
            let found = found.unwrap();
            assert_eq!(found.digest, Digest::of_bytes(&body));
            let model = if end == "bin" { found.path } else { found.path.join("m") };
            assert_eq!(fs::read(model).unwrap(), plain);
        }
        assert_eq!(server.requests(), 2 * urls.len(), "{end}: {:?}", server.spans());
        assert_eq!(server.sent(), (length * urls.len()) as u64, "no byte came twice");
    }
}

/// A server whose first answer is cut in the middle of version one, and what its second is.
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
            "a part of the new version is sent",
            interrupted(move |_, _, two| part(two, &a).with("etag", "\"two\"")).await,
            1,
            3,
        ),
        (
            "another part is sent",
            interrupted(move |_, one, _| {
                part(one, &format!("bytes 0-{}/{LENGTH}", LENGTH / 2 - 1))
            })
            .await,
            1,
            3,
        ),
        (
            "it has another length",
            interrupted(move |_, one, _| part(one, &b.replace("/4", "/5"))).await,
            1,
            3,
        ),
        (
            "the part is not named",
            interrupted(|_, one, _| Reply { status: 206, body: one.clone(), ..Reply::default() })
                .await,
            1,
            3,
        ),
        (
            "it is gone beyond the end",
            interrupted(|_, _, _| Reply::status(416).with("content-range", "bytes */7")).await,
            1,
            3,
        ),
    ];
    join_all(cases.map(|(what, (server, versions), expected, requests)| async move {
        let stage = Stage::new();
        let found = stage.fetch(&format!("{}/m", server.url), None).await.unwrap();
        assert_eq!(fs::read(found.path).unwrap(), versions[expected], "{what}");
        assert_eq!(server.requests(), requests, "{what}");
        let asked = server.seen.lock().unwrap()[1].clone();
        assert_eq!(
            (asked.from(), asked.headers["if-range"].as_str()),
            (Some(LENGTH / 2), "\"one\"")
        );
    }))
    .await;
    // A liar is found out by the digest, and then asked for the whole.
    let (server, versions) = interrupted(move |_, _, two| part(two, &c)).await;
    let stage = Stage::new();
    let digest = Digest::of_bytes(&versions[1]);
    let found = stage.fetch(&format!("{}/m", server.url), Some(digest)).await.unwrap();
    assert_eq!((found.digest, server.requests()), (digest, 3));
}

#[tokio::test]
async fn without_a_strong_validator_it_starts_over() {
    let body = Bytes::from(noise(LENGTH, 6));
    for (tag, asks_for_part) in [("W/\"weak\"", false), ("\"strong\"", true)] {
        let body = body.clone();
        let server = Server::start(move |request| {
            let reply = ranged(request, &body, tag);
            if request.number == 0 { reply.cut(1000) } else { reply }
        })
        .await;
        let stage = Stage::new();
        stage.fetch(&format!("{}/m", server.url), None).await.unwrap();
        assert_eq!(server.seen.lock().unwrap()[1].from().is_some(), asks_for_part, "{tag}");
    }
}

/// The first trouble that a fetch tells, and what it leaves to be seen.
async fn trouble(stage: &Stage, url: &str, digest: Option<Digest>) -> Arc<ModelError> {
    let (sender, mut told) = watch::channel(Progress::default());
    let want = Want::parse(url, digest).unwrap();
    tokio::select! {
        result = stage.store.ensure(&want, &sender) => panic!("{result:?}"),
        progress = told.wait_for(|progress| progress.phase == Phase::Retrying) => {
            assert!(stage.store.present(&want).is_none());
            progress.unwrap().trouble.clone().unwrap()
        }
    }
}

#[tokio::test]
async fn what_is_short_or_silent_is_told_and_never_seen() {
    let stage = Stage::with(Policy { stalled_after: Duration::from_secs(1), ..policy() });
    let short = Server::start(|_| {
        Reply { status: 200, body: "short".into(), ..Reply::default() }.with("content-length", 100)
    })
    .await;
    let error = trouble(&stage, &format!("{}/m", short.url), None).await;
    assert!(matches!(*error, ModelError::Cut { got: 5, .. }), "{error}");

    let silent = Server::start(|_| {
        let reply = Reply { status: 200, body: "si".into(), hangs: true, ..Reply::default() };
        reply.with("content-length", 100)
    })
    .await;
    let error = trouble(&stage, &format!("{}/m", silent.url), None).await;
    assert!(matches!(*error, ModelError::Stalled { seconds: 1, .. }), "{error}");

    let gone = format!("{}/m", short.url);
    drop(short);
    tokio::task::yield_now().await;
    let error = trouble(&stage, &gone, Some(Digest::of_bytes(b"x"))).await;
    assert!(matches!(*error, ModelError::Unreachable { .. }), "{error}");

    let unsized_ = Server::start(|_| Reply {
        status: 200,
        body: "cut".into(),
        is_unsized: true,
        ..Reply::default()
    })
    .await;
    let url = format!("{}/m", unsized_.url);
    let error = stage.fetch(&url, None).await.unwrap_err();
    assert!(matches!(*error, ModelError::Unmeasured { .. }), "{error}");
    let digest = Digest::of_bytes(b"cut short");
    let error = stage.fetch(&url, Some(digest)).await.unwrap_err();
    assert!(matches!(*error, ModelError::DigestMismatch { .. }), "{error}");
    assert!(!files(&stage.root()).iter().any(|path| path.ends_with("model")));
}

#[tokio::test]
async fn a_slow_server_blocks_nobody() {
    let pace = Some((1, Duration::from_secs(1)));
    let slow = Server::start(move |_| Reply {
        status: 200,
        body: vec![7; 1000].into(),
        pace,
        ..Reply::default()
    })
    .await;
    let fast = Server::of(noise(4 << 20, 7)).await;
    let stage = Stage::with(Policy { stalled_after: Duration::from_secs(3), ..policy() });
    let (sender, told) = watch::channel(Progress::default());
    let want = Want::parse(&format!("{}/m", slow.url), None).unwrap();
    let quick = async {
        for at in 0..3 {
            stage.fetch(&format!("{}/{at}", fast.url), None).await.unwrap();
        }
        // Slower than the stall timeout, in all, and not taken for gone.
        let mut told = told.clone();
        told.wait_for(|progress| progress.received >= 5).await.unwrap().clone()
    };
    tokio::select! {
        result = stage.store.ensure(&want, &sender) => panic!("{result:?}"),
        progress = quick => {
            assert!(progress.trouble.is_none() && progress.bytes_per_second <= 5, "{progress:?}");
            assert_eq!((slow.requests(), fast.requests()), (1, 3));
        }
    }
}

#[tokio::test]
async fn what_came_in_a_burst_is_told_while_nothing_more_comes() {
    let server = Server::start(|_| {
        let reply =
            Reply { status: 200, body: vec![7; 500].into(), hangs: true, ..Reply::default() };
        reply.with("content-length", 1000)
    })
    .await;
    let stage = Stage::new();
    let (sender, mut told) = watch::channel(Progress::default());
    let want = Want::parse(&format!("{}/m", server.url), None).unwrap();
    let shown = async {
        let half = told.wait_for(|progress| progress.received == 500).await.unwrap().clone();
        assert_eq!((half.total, half.phase), (Some(1000), Phase::Downloading));
        let still = told.wait_for(|progress| progress.bytes_per_second < half.bytes_per_second);
        assert_eq!(still.await.unwrap().received, 500);
    };
    tokio::select! {
        result = stage.store.ensure(&want, &sender) => panic!("{result:?}"),
        () = shown => {}
    }
}

#[tokio::test]
async fn a_thousand_flipped_bits_are_a_thousand_errors() {
    let good = gz(&tar(&[file("weights", &noise(1500, 8)), file("config", b"{}")]));
    let digest = Digest::of_bytes(&good);
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::with(Policy { file_roots: vec![dir.path().to_owned()], ..policy() });
    let bits = good.len() * 8;
    for at in 0..1000 {
        let mut bad = good.clone();
        let bit = at * 7919 % bits;
        bad[bit / 8] ^= 1 << (bit % 8);
        let path = dir.path().join(format!("{at}.tar.gz"));
        fs::write(&path, bad).unwrap();
        let error = stage.fetch(path.to_str().unwrap(), Some(digest)).await.unwrap_err();
        let is_found =
            matches!(*error, ModelError::DigestMismatch { .. } | ModelError::Archive { .. });
        assert!(is_found, "bit {bit}: {error}");
    }
    stage.assert_empty();
    let path = dir.path().join("good.tar.gz");
    fs::write(&path, good).unwrap();
    assert_eq!(stage.fetch(path.to_str().unwrap(), Some(digest)).await.unwrap().digest, digest);
}

#[tokio::test]
async fn a_chunked_body_has_an_end_that_is_seen() {
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
    let stage = Stage::new();
    for (name, requests) in [("cut", 2), ("whole", 3)] {
        let found = stage.fetch(&format!("{}/{name}", server.url), None).await.unwrap();
        assert_eq!(fs::read(found.path).unwrap(), body, "{name}");
        assert_eq!(server.requests(), requests, "{name}");
    }
}

//! The rate that all downloads share.

use std::time::{Duration, Instant};

use futures::future::join_all;
use neptune_store::{Digest, StorePolicy};

use crate::{
    fixture::{StoreFixture, noise, policy},
    server::Server,
};

const RATE: u64 = 1 << 20;

#[tokio::test]
async fn parallel_downloads_share_the_rate() {
    let bodies: Vec<_> = (1..4).map(|seed| noise(512 << 10, seed)).collect();
    let servers = join_all(bodies.iter().map(|body| Server::serve_file(body.clone()))).await;
    let urls: Vec<_> = servers.iter().map(|server| format!("{}/m", server.url)).collect();
    let started = Instant::now();
    let limited = StorePolicy { bytes_per_second: Some(RATE), ..policy() };
    let limited = StoreFixture::with(limited);
    let fetched = join_all(urls.iter().map(|url| limited.fetch(url, None))).await;
    let took = started.elapsed();
    let digests: Vec<_> = fetched.into_iter().map(|artifact| artifact.unwrap().digest).collect();
    assert_eq!(digests, bodies.iter().map(|body| Digest::of_bytes(body)).collect::<Vec<_>>());
    let expected = Duration::from_millis(1500);
    assert!(took >= expected && took < 3 * expected, "{took:?} for {expected:?}");

    let unlimited = StoreFixture::new();
    let started = Instant::now();
    join_all(urls.iter().map(|url| unlimited.fetch(url, None))).await;
    assert!(started.elapsed() < expected, "without a limit it took {:?}", started.elapsed());
}

#[tokio::test]
async fn waiting_for_the_rate_is_not_a_stall() {
    let server = Server::serve_file(noise(300_000, 9)).await;
    let fixture = StoreFixture::with(StorePolicy {
        bytes_per_second: Some(100_000),
        stall_timeout: Duration::from_millis(500),
        ..policy()
    });
    let artifact = fixture.fetch(&format!("{}/m", server.url), None).await.unwrap();
    assert_eq!((artifact.bytes, server.requests()), (300_000, 1));
}

//! Clients that are no members, and a member that reads slowly, concern nobody else.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use neptune_harness::{Attack, under_attack::judge};
use neptune_share::peers::FetchOutcome;
use neptune_transfer::Digest;

use crate::{
    limits::stuck_reader,
    origin::noise,
    site::{introduce, site},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_no_member() {
    let members = site(2);
    let address = members[0].peer.addresses[0];
    let number = AtomicU64::new(0);
    let (members, number) = (&members, &number);
    let request = || async move {
        let content = noise(100_000, number.fetch_add(1, Ordering::Relaxed));
        let digest = Digest::of_bytes(&content);
        members[0].hold(digest, &content);
        let fetched = members[1].fetch(digest).await.outcome;
        fetched == FetchOutcome::Stored(members[0].node.clone())
    };
    judge("peers", (address, 100), &Attack::all("/"), request).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_does_not_read_leaves_room_for_another() {
    let members = site(3);
    introduce(&members);
    let content = noise(20_000_000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    let mut stuck = Vec::new();
    for _ in 0..4 {
        stuck.push(stuck_reader(&members[1], &members[0].peer, digest).await);
    }
    let begun = Instant::now();
    let fetched = members[2].fetch(digest).await;
    assert_eq!(fetched.outcome, FetchOutcome::Stored(members[0].node.clone()));
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    drop(stuck);
}

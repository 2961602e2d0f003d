//! What a site saves: time, and bytes from the origin.

use std::{sync::Arc, time::Instant};

use futures::future::join_all;
use neptune_share::peers::{FetchOutcome, FetchTimes, OriginReason};

use crate::{
    origin::{Origin, noise},
    site::{Member, TIMES, introduce, site, site_with},
};

/// Gets the content on all members at once. Returns the time as a multiple of one transfer, and how
/// many used the origin.
async fn obtain(members: &[Arc<Member>], origin: &Arc<Origin>) -> (f64, usize) {
    let start = Instant::now();
    let tasks = members.iter().map(|member| {
        let (member, origin) = (Arc::clone(member), Arc::clone(origin));
        tokio::spawn(async move { member.obtain(&origin).await })
    });
    let outcomes: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let ratio = start.elapsed().as_secs_f64() / origin.seconds(start);
    for member in members {
        member.assert_has(&origin.digest);
    }
    let owners = outcomes.iter().filter(|it| matches!(it, FetchOutcome::UseOrigin(_)));
    (ratio, owners.count())
}

/// Members, and an origin of this size and rate. With `PEERS_REAL_SIZE=1` it has 200 MB at 1 MB/s,
/// and the times are those of an agent.
async fn scaled(count: usize, bytes: usize, rate: u64) -> (Vec<Arc<Member>>, Arc<Origin>) {
    let is_real = std::env::var_os("PEERS_REAL_SIZE").is_some();
    let (bytes, rate) = if is_real { (200_000_000, 1_000_000) } else { (bytes, rate) };
    let times = if is_real { FetchTimes::default() } else { TIMES };
    (site_with(count, times), Origin::start(noise(bytes, 1), rate).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_need_one_transfer_of_the_origin() {
    let (members, origin) = scaled(3, 10_000_000, 2_000_000).await;
    let (ratio, owners) = obtain(&members, &origin).await;
    let sent = origin.sent_ratio();
    println!("{ratio:.3} of the time of one transfer, {sent:.3} of its bytes");
    assert!(ratio <= 1.15 && sent <= 1.05 && owners == 1, "{ratio} {sent} {owners}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_members_need_one_transfer_of_the_origin() {
    // Less, because all 15 copies in the site share one machine.
    let (members, origin) = scaled(16, 4_000_000, 300_000).await;
    let (ratio, owners) = obtain(&members, &origin).await;
    let sent = origin.sent_ratio();
    println!("{ratio:.3} of the time of one transfer, {sent:.3} of its bytes");
    assert!(ratio <= 1.3 && sent <= 1.05 && owners == 1, "{ratio} {sent} {owners}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_of_a_site_that_starts_at_once_are_sent_once() {
    let members = site(5);
    let mut origins = Vec::new();
    for seed in 0..6 {
        origins.push(Origin::start(noise(400_000, seed), 1_000_000).await);
    }
    join_all(origins.iter().map(|origin| obtain(&members, origin))).await;
    for origin in origins {
        assert!(origin.sent_ratio() <= 1.05, "{}", origin.sent_ratio());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_of_a_split_site_needs_one_transfer() {
    let members = site(6);
    introduce(&members[..3]);
    introduce(&members[3..]);
    let origin = Origin::start(noise(500_000, 3), 1_000_000).await;
    let (_, owners) = obtain(&members, &origin).await;
    assert!(origin.sent_ratio() <= 2.05 && owners == 2, "{} {owners}", origin.sent_ratio());
}

#[tokio::test]
async fn member_without_peers_uses_the_origin_at_once() {
    let origin = Origin::start(noise(1000, 4), 1_000_000).await;
    let members = site(3);
    members[1].kill();
    members[2].kill();
    let start = Instant::now();
    members[0].table.set_wanted(origin.digest);
    let result = members[0].fetch(origin.digest).await;
    assert_eq!(result.outcome, FetchOutcome::UseOrigin(OriginReason::IsOwner));
    assert!(start.elapsed().as_secs_f64() < 1.5, "{:?}", start.elapsed());

    introduce(&members[..1]);
    let result = members[0].fetch(origin.digest).await;
    assert_eq!(result.outcome, FetchOutcome::UseOrigin(OriginReason::NoPeers));
}

#[tokio::test]
async fn member_that_does_not_name_the_content_is_no_owner() {
    let origin = Origin::start(noise(1000, 5), 1_000_000).await;
    let members = site(8);
    let outcome = members[7].obtain(&origin).await;
    assert_eq!(outcome, FetchOutcome::UseOrigin(OriginReason::IsOwner));
    let outcome = members[0].obtain(&origin).await;
    assert_eq!(outcome, FetchOutcome::Stored(members[7].node.clone()));
    members[0].assert_has(&origin.digest);
}

//! Peers that die, and damaged copies.

use std::{sync::Arc, time::Duration};

use neptune_share::peers::{
    ContentEvent, ContentSource as _, ContentState, FetchOutcome, OriginReason, rendezvous::ranked,
};
use neptune_transfer::Digest;

use crate::{
    origin::{Origin, noise},
    site::site,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_killed_at_any_time_costs_at_most_one_more_transfer() {
    for percent in (10..=90).step_by(20) {
        let origin = Origin::start(noise(600_000, percent), 600_000).await;
        let mut members = site(3);
        let order = ranked(&origin.digest, members.iter().map(|it| &it.node));
        let owner = order[0].clone();
        let index = members.iter().position(|it| it.node == owner).unwrap();
        let owner = members.remove(index);
        let tasks = members.iter().chain([&owner]).map(|member| {
            let (member, origin) = (Arc::clone(member), Arc::clone(&origin));
            tokio::spawn(async move { member.obtain(&origin).await })
        });
        let tasks: Vec<_> = tasks.collect();
        while origin.sent_ratio() * 100.0 < percent as f64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tasks[2].abort();
        owner.kill();
        for task in tasks.into_iter().take(2) {
            task.await.unwrap();
        }
        for member in &members {
            member.assert_has(&origin.digest);
        }
        let sent = origin.sent_ratio();
        let limit = 1.05 + percent as f64 / 100.0 + 0.15;
        assert!(sent <= limit.min(2.0), "{sent} after a kill at {percent} %");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bit_is_caught_in_each_of_100_copies() {
    let members = site(2);
    let (good, bad) = (&members[0], &members[1]);
    let mut from_bad = 0;
    for seed in 0..100 {
        let mut content = noise(1000 + 997 * usize::try_from(seed).unwrap(), seed);
        let digest = Digest::of_bytes(&content);
        let bit = fastrand::Rng::with_seed(seed).usize(..content.len() * 8);
        // A new reader for each copy: no quarantine.
        let reader = crate::site::Member::start("reader", 1 << 30);
        for member in [good, bad] {
            let all = [&good.peer, &bad.peer, &reader.peer].map(Clone::clone);
            member.roster.send_replace(neptune_share::peers::Roster::new(&member.node, all));
        }
        // First only the damaged copy, then both.
        let only_bad = neptune_share::peers::Roster::new(&reader.node, [bad.peer.clone()]);
        reader.roster.send_replace(only_bad);
        good.hold(digest, &content);
        content[bit / 8] ^= 1 << (bit % 8);
        bad.hold(digest, &content);

        let result = reader.fetch(digest).await;
        assert_eq!(result.outcome, FetchOutcome::UseOrigin(OriginReason::NoPeers), "{seed}");
        assert!(result.wrong.iter().eq([&bad.node]));
        assert!(!reader.path(&digest).exists());
        from_bad += result.wrong.len();

        let both =
            neptune_share::peers::Roster::new(&reader.node, [good.peer.clone(), bad.peer.clone()]);
        reader.roster.send_replace(both);
        let result = reader.fetch(digest).await;
        assert_eq!(result.outcome, FetchOutcome::Stored(good.node.clone()));
        assert!(result.wrong.is_empty(), "the quarantine lasts for an hour");
        reader.assert_has(&digest);

        // Its agent hashes the copy again, and does not offer it any more.
        let damaged = bad.events.lock().await.recv().await;
        assert_eq!(damaged, Some(ContentEvent::Damaged(digest, bad.path(&digest))));
        assert_eq!(bad.table.find(&digest, &reader.node), ContentState::Absent);
    }
    assert_eq!(from_bad, 100);
}

#[tokio::test]
async fn mixture_with_a_wrong_peer_is_replaced_by_one_right_copy() {
    let members = site(3);
    let content = noise(300_000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    members[1].hold(digest, &content);
    // What an earlier process received from a peer that is not known any more.
    std::fs::write(members[2].partial(&digest), vec![7; 100_000]).unwrap();
    let result = members[2].fetch(digest).await;
    assert!(matches!(result.outcome, FetchOutcome::Stored(_)));
    assert!(result.wrong.is_empty() && result.received == 500_000, "{result:?}");
    members[2].assert_has(&digest);
}

#[tokio::test]
async fn received_bytes_are_used_again_from_another_peer() {
    let members = site(2);
    let content = noise(300_000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    std::fs::write(members[1].partial(&digest), &content[..200_000]).unwrap();
    let result = members[1].fetch(digest).await;
    assert_eq!(result.outcome, FetchOutcome::Stored(members[0].node.clone()));
    assert_eq!(result.received, 100_000);
    members[1].assert_has(&digest);
    assert!(!members[1].partial(&digest).exists());
}

#[tokio::test]
async fn longer_partial_file_is_discarded() {
    let members = site(2);
    let content = noise(1000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    std::fs::write(members[1].partial(&digest), noise(2000, 2)).unwrap();
    let result = members[1].fetch(digest).await;
    assert_eq!(result.outcome, FetchOutcome::Stored(members[0].node.clone()));
    members[1].assert_has(&digest);
}

#[tokio::test]
async fn partial_file_that_cannot_be_written_is_an_error() {
    let members = site(2);
    let content = noise(1000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    let (partial, target) = (members[1].path(&digest).join("partial"), members[1].path(&digest));
    let request = neptune_share::peers::FetchRequest {
        digest,
        partial: &partial,
        target: &target,
        limit: 1 << 20,
    };
    assert!(members[1].fetcher.fetch(request).await.is_err());
    assert!(!target.exists());
}

#[tokio::test]
async fn file_that_became_shorter_is_not_served() {
    let members = site(2);
    let content = noise(100_000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    std::fs::write(members[0].path(&digest), &content[..50_000]).unwrap();
    let result = members[1].fetch(digest).await;
    assert!(matches!(result.outcome, FetchOutcome::UseOrigin(_)));
}

#[tokio::test]
async fn copy_that_cannot_be_read_as_a_whole_is_damaged_at_the_first_request() {
    for is_removed in [false, true] {
        let members = site(2);
        let (reader, holder) = (&members[0], &members[1]);
        let content = noise(10_000, 7);
        let digest = Digest::of_bytes(&content);
        holder.hold(digest, &content);
        let path = holder.path(&digest);
        if is_removed {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(9_999).unwrap();
        }
        let result = reader.fetch(digest).await;
        assert!(matches!(result.outcome, FetchOutcome::UseOrigin(_)), "{result:?}");
        let mut events = holder.events.lock().await;
        let damaged = tokio::time::timeout(Duration::from_secs(20), events.recv()).await;
        assert_eq!(damaged.unwrap(), Some(ContentEvent::Damaged(digest, path)));
    }
}

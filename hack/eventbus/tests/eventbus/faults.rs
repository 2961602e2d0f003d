//! Faults: cut connections, silent nodes, restarts.

use std::time::{Duration, Instant};

use neptune_harness::eventually;

use crate::harness::{Harness, NODE, UP};

#[tokio::test(flavor = "multi_thread")]
async fn silent_node_is_a_200_for_thirty_seconds_and_then_a_500() {
    let mut harness = Harness::start(0.02).await;
    harness.emulator.partition(NODE).unwrap();
    let started = Instant::now();
    let mut delivered = 0;
    loop {
        let elapsed = started.elapsed();
        let (status, _) = harness.post("/neptune/a", "body").await;
        if status == 500 {
            assert!(elapsed >= Duration::from_millis(400), "{elapsed:?}");
            break;
        }
        assert!(elapsed < Duration::from_millis(601), "{elapsed:?}");
        delivered += 1;
    }
    assert!(delivered > 20, "{delivered}");
    assert!(harness.client.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_for_a_silent_node_arrive_late_or_never() {
    let (mut late, mut never) = (0, 0);
    for seed in 0..3 {
        let mut harness = Harness::start_with(0.01, seed).await;
        harness.emulator.partition(NODE).unwrap();
        let started = Instant::now();
        for _ in 0..20 {
            harness.post("/neptune/a", "body").await;
        }
        tokio::time::sleep(Duration::from_millis(350).saturating_sub(started.elapsed())).await;
        assert!(harness.client.received().is_empty());
        harness.emulator.heal(NODE).unwrap();
        let settled = || {
            let down = harness.emulator.traffic(NODE).unwrap().down;
            down.passed + down.lost == down.taken
        };
        eventually("every message to be accounted for", settled).await;
        let down = harness.emulator.traffic(NODE).unwrap().down;
        late += down.passed;
        never += down.lost;
        for _ in 0..down.passed {
            harness.client.next().await;
        }
    }
    assert!(late > 0 && never > 0, "{late} late, {never} never");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_silent_seconds_lose_messages_until_reconnect() {
    let mut harness = Harness::start_with(0.02, 2).await;
    let a_fifth = Duration::from_millis(4);
    let mut ticks = tokio::time::interval(a_fifth);
    for n in 0..750_usize {
        ticks.tick().await;
        match n {
            200 => harness.emulator.partition(NODE).unwrap(),
            500 => harness.emulator.heal(NODE).unwrap(),
            _ => {}
        }
        harness.client.publish(UP, n.to_string()).await;
    }
    let settled = || {
        let up = harness.emulator.traffic(NODE).unwrap().up;
        up.passed + up.lost == 750
    };
    eventually("every message to be accounted for", settled).await;
    // 60 s, and up to 30 s until edgehub reconnects. 416 were measured.
    let lost = harness.emulator.traffic(NODE).unwrap().up.lost;
    assert!((290..=470).contains(&lost), "{lost}");
    assert_eq!(harness.receiver.count() as u64, 750 - lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_loses_messages_in_transit_in_both_directions() {
    // A hundred times slower: a message takes at least 100 ms.
    let mut harness = Harness::start(100.0).await;
    harness.client.publish(UP, "lost").await;
    harness.taken(1).await;
    harness.emulator.cut(NODE).unwrap();
    eventually("the message to be lost", || harness.emulator.traffic(NODE).unwrap().up.lost == 1)
        .await;
    harness.emulator.heal(NODE).unwrap();
    let cut = async {
        eventually("the message to be queued", || {
            harness.emulator.traffic(NODE).unwrap().down.taken == 1
        })
        .await;
        harness.emulator.cut(NODE).unwrap();
    };
    let ((status, _), ()) = tokio::join!(harness.post("/neptune/a", "lost"), cut);
    assert_eq!(status, 200);
    assert_eq!(harness.emulator.traffic(NODE).unwrap().down.lost, 1);
    assert_eq!(harness.receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_cloudcore_loses_messages_in_transit() {
    let mut harness = Harness::start(100.0).await;
    harness.client.publish(UP, "lost").await;
    harness.taken(1).await;
    harness.emulator.restart_cloudcore();
    eventually("the message to be lost", || harness.emulator.traffic(NODE).unwrap().up.lost == 1)
        .await;
    assert_eq!(harness.receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_cloudcore_answers_again_once_its_nodes_reconnect() {
    let mut harness = Harness::start(0.1).await;
    let url = format!("{}/edge0/neptune-system/neptune/a", harness.emulator.router_url());
    harness.emulator.restart_cloudcore();
    assert!(harness.http.post(&url).body("x").send().await.is_err());
    harness.emulator.listening().await;
    harness.emulator.connected(NODE).await.unwrap();
    harness.client.publish(UP, "1").await;
    eventually("the message to arrive", || harness.receiver.count() == 1).await;
    assert_eq!(harness.post("/neptune/a", "body").await.0, 200);
    while harness.client.next().await.topic != "neptune/a" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_cuts_account_for_every_message() {
    let mut harness = Harness::start(0.1).await;
    for n in 0..1000 {
        if n % 10 == 0 {
            harness.client.publish(UP, n.to_string()).await;
        }
        harness.post("/neptune/a", n.to_string()).await;
        harness.emulator.cut(NODE).unwrap();
        harness.emulator.heal(NODE).unwrap();
    }
    let settled = || {
        let traffic = harness.emulator.traffic(NODE).unwrap();
        [traffic.down, traffic.up]
            .iter()
            .all(|direction| direction.passed + direction.lost == direction.taken)
    };
    eventually("every message to be accounted for", settled).await;
    let down = harness.emulator.traffic(NODE).unwrap().down;
    assert_eq!(down.taken, 1000);
    assert!(down.lost > 0 && down.passed > 0, "{down:?}");
}

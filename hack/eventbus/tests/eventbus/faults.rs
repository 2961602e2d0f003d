//! Cuts, silence, restarts.

use std::time::{Duration, Instant};

use crate::bed::{Bed, NODE, UP, until};

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_answered_200_for_thirty_seconds_and_then_500() {
    let mut bed = Bed::start(0.02).await;
    bed.emulator.partition(NODE).unwrap();
    let started = Instant::now();
    let mut delivered = 0;
    loop {
        let asked = started.elapsed();
        let (status, _) = bed.post("/neptune/a", "body").await;
        if status == 500 {
            assert!(asked >= Duration::from_millis(400), "{asked:?}");
            break;
        }
        assert!(asked < Duration::from_millis(601), "{asked:?}");
        delivered += 1;
    }
    assert!(delivered > 20, "{delivered}");
    assert!(bed.client.arrived().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_posted_into_silence_comes_late_or_never() {
    let (mut late, mut never) = (0, 0);
    for seed in 0..3 {
        let mut bed = Bed::start_with(0.01, seed).await;
        bed.emulator.partition(NODE).unwrap();
        let started = Instant::now();
        for _ in 0..20 {
            bed.post("/neptune/a", "body").await;
        }
        tokio::time::sleep(Duration::from_millis(350).saturating_sub(started.elapsed())).await;
        assert!(bed.client.arrived().is_empty());
        bed.emulator.heal(NODE).unwrap();
        let settled = || {
            let down = bed.emulator.traffic(NODE).unwrap().down;
            down.passed + down.lost == down.taken
        };
        until("each has its fate", settled).await;
        let down = bed.emulator.traffic(NODE).unwrap().down;
        late += down.passed;
        never += down.lost;
        for _ in 0..down.passed {
            bed.client.next().await;
        }
    }
    assert!(late > 0 && never > 0, "{late} late, {never} never");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_seconds_of_silence_cost_the_messages_until_the_node_is_back() {
    let mut bed = Bed::start_with(0.02, 2).await;
    let a_fifth = Duration::from_millis(4);
    let mut ticks = tokio::time::interval(a_fifth);
    for n in 0..750_usize {
        ticks.tick().await;
        match n {
            200 => bed.emulator.partition(NODE).unwrap(),
            500 => bed.emulator.heal(NODE).unwrap(),
            _ => {}
        }
        bed.client.publish(UP, n.to_string()).await;
    }
    let settled = || {
        let up = bed.emulator.traffic(NODE).unwrap().up;
        up.passed + up.lost == 750
    };
    until("each has its fate", settled).await;
    // 60 s, and up to 30 s until edgehub is back: 416 were seen.
    let lost = bed.emulator.traffic(NODE).unwrap().up.lost;
    assert!((290..=470).contains(&lost), "{lost}");
    assert_eq!(bed.receiver.count() as u64, 750 - lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_loses_what_is_on_the_way_in_both_directions() {
    // A hundred times slower: the way takes 100 ms at least.
    let mut bed = Bed::start(100.0).await;
    bed.client.publish(UP, "lost").await;
    bed.taken(1).await;
    bed.emulator.cut(NODE).unwrap();
    until("it is lost", || bed.emulator.traffic(NODE).unwrap().up.lost == 1).await;
    bed.emulator.heal(NODE).unwrap();
    let cut = async {
        until("it is queued", || bed.emulator.traffic(NODE).unwrap().down.taken == 1).await;
        bed.emulator.cut(NODE).unwrap();
    };
    let ((status, _), ()) = tokio::join!(bed.post("/neptune/a", "lost"), cut);
    assert_eq!(status, 200);
    assert_eq!(bed.emulator.traffic(NODE).unwrap().down.lost, 1);
    assert_eq!(bed.receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_cloudcore_loses_what_is_on_the_way() {
    let mut bed = Bed::start(100.0).await;
    bed.client.publish(UP, "lost").await;
    bed.taken(1).await;
    bed.emulator.restart_cloudcore();
    until("it is lost", || bed.emulator.traffic(NODE).unwrap().up.lost == 1).await;
    assert_eq!(bed.receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_cloudcore_answers_nobody_until_it_is_back_with_its_nodes() {
    let mut bed = Bed::start(0.1).await;
    let url = format!("{}/edge0/neptune-system/neptune/a", bed.emulator.router_url());
    bed.emulator.restart_cloudcore();
    assert!(bed.http.post(&url).body("x").send().await.is_err());
    bed.emulator.listening().await;
    bed.emulator.connected(NODE).await.unwrap();
    bed.client.publish(UP, "1").await;
    until("it arrives", || bed.receiver.count() == 1).await;
    assert_eq!(bed.post("/neptune/a", "body").await.0, 200);
    while bed.client.next().await.topic != "neptune/a" {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cuts_lose_messages_and_account_for_each() {
    let mut bed = Bed::start(0.1).await;
    for n in 0..1000 {
        if n % 10 == 0 {
            bed.client.publish(UP, n.to_string()).await;
        }
        bed.post("/neptune/a", n.to_string()).await;
        bed.emulator.cut(NODE).unwrap();
        bed.emulator.heal(NODE).unwrap();
    }
    let settled = || {
        let traffic = bed.emulator.traffic(NODE).unwrap();
        [traffic.down, traffic.up].iter().all(|way| way.passed + way.lost == way.taken)
    };
    until("each has its fate", settled).await;
    let down = bed.emulator.traffic(NODE).unwrap().down;
    assert_eq!(down.taken, 1000);
    assert!(down.lost > 0 && down.passed > 0, "{down:?}");
}

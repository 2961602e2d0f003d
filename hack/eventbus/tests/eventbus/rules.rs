//! When rules take effect, and when they do not.

use crate::bed::{Bed, NODE, UP, endpoints, until, up_rule};

const PLAIN: &str = "neptune-system/plain/upstream";

fn plain(bed: &Bed) -> serde_json::Value {
    up_rule("plain", "plain/upstream", &bed.receiver.url("plain"))
}

/// Publishes on a topic that works, and waits until that arrived: whatever else would have arrived by then, has.
async fn mark(bed: &mut Bed) {
    let before =
        bed.receiver.look(|got| got.paths.iter().filter(|path| *path == "/upstream/edge0").count());
    bed.client.publish(UP, "mark").await;
    let marks = || {
        bed.receiver.look(|got| got.paths.iter().filter(|path| *path == "/upstream/edge0").count())
    };
    until("the mark arrives", || marks() > before).await;
}

fn plain_count(bed: &Bed) -> usize {
    bed.receiver.look(|got| got.paths.iter().filter(|path| *path == "/upstream/plain").count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_created_while_its_node_is_offline_never_takes_effect() {
    let mut bed = Bed::start(0.05).await;
    bed.emulator.cut(NODE).unwrap();
    bed.emulator.apply(plain(&bed)).unwrap();
    bed.emulator.heal(NODE).unwrap();
    bed.client.publish(PLAIN, "no").await;
    mark(&mut bed).await;
    bed.emulator.restart_edgecore(NODE).await.unwrap();
    bed.client.publish(PLAIN, "no").await;
    mark(&mut bed).await;
    assert_eq!((plain_count(&bed), bed.emulator.traffic(NODE).unwrap().up.taken), (0, 2));
    // Deleted and created again while the node is there, it works.
    bed.emulator.delete(plain(&bed)).unwrap();
    bed.emulator.apply(plain(&bed)).unwrap();
    subscribed_to_plain(&mut bed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_under_user_works_though_it_was_created_while_its_node_was_offline() {
    let mut bed = Bed::start(0.1).await;
    bed.emulator.cut(NODE).unwrap();
    bed.emulator.apply(up_rule("two", "user/two", &bed.receiver.url("two"))).unwrap();
    // Also with the edge database wiped.
    bed.emulator.wipe_edgecore(NODE).await.unwrap();
    bed.emulator.heal(NODE).unwrap();
    bed.client.publish("neptune-system/user/two", "yes").await;
    until("it arrives", || bed.receiver.look(|got| got.paths == ["/upstream/two"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_deleted_while_its_node_is_offline_leaves_a_zombie_subscription() {
    let mut bed = Bed::start(0.05).await;
    bed.emulator.apply(plain(&bed)).unwrap();
    subscribed_to_plain(&mut bed).await;
    bed.emulator.cut(NODE).unwrap();
    bed.emulator.delete(plain(&bed)).unwrap();
    bed.emulator.heal(NODE).unwrap();
    let (taken, forwarded) = (bed.emulator.traffic(NODE).unwrap().up.taken, plain_count(&bed));
    // It outlives edgecore: it is in the node's database.
    bed.emulator.restart_edgecore(NODE).await.unwrap();
    bed.client.publish(PLAIN, "to nobody").await;
    bed.taken(taken + 1).await;
    mark(&mut bed).await;
    assert_eq!(plain_count(&bed), forwarded);
    // The zombie serves the next rule for the topic.
    bed.emulator.cut(NODE).unwrap();
    bed.emulator.apply(plain(&bed)).unwrap();
    bed.emulator.heal(NODE).unwrap();
    bed.client.publish(PLAIN, "to the next").await;
    until("it arrives", || plain_count(&bed) == forwarded + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_updated_rule_keeps_its_old_effect_until_it_is_created_again() {
    let mut bed = Bed::start(0.1).await;
    let new = up_rule("up", "user/neptune/upstream", &bed.receiver.url("new"));
    bed.emulator.apply(new.clone()).unwrap();
    bed.client.publish(UP, "1").await;
    until("it arrives", || bed.receiver.count() == 1).await;
    bed.emulator.delete(new.clone()).unwrap();
    bed.emulator.apply(new).unwrap();
    bed.client.publish(UP, "2").await;
    until("it arrives", || bed.receiver.count() == 2).await;
    bed.receiver.look(|got| assert_eq!(got.paths, ["/upstream/edge0", "/upstream/new"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_comes_before_its_endpoints_takes_effect_after_a_while() {
    let mut bed = Bed::start(0.02).await;
    for endpoint in endpoints() {
        bed.emulator.delete(endpoint).unwrap();
    }
    bed.emulator.apply(up_rule("two", "user/two", &bed.receiver.url("two"))).unwrap();
    for endpoint in endpoints() {
        bed.emulator.apply(endpoint).unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    bed.client.publish("neptune-system/user/two", "yes").await;
    until("it arrives", || bed.receiver.look(|got| got.paths == ["/upstream/two"])).await;
}

/// A subscription is on its way for a moment: publishes until one arrives.
async fn subscribed_to_plain(bed: &mut Bed) {
    for _ in 0..100 {
        bed.client.publish(PLAIN, "is it there?").await;
        mark(bed).await;
        if plain_count(bed) > 0 {
            let before = plain_count(bed);
            mark(bed).await;
            assert!(plain_count(bed) >= before);
            return;
        }
    }
    panic!("the rule never took effect");
}

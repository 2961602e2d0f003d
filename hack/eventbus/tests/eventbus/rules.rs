//! When rules take effect, and when they do not.

use neptune_harness::eventually;

use crate::harness::{Harness, NODE, UP, endpoints, up_rule};

const PLAIN: &str = "neptune-system/plain/upstream";

fn plain(harness: &Harness) -> serde_json::Value {
    up_rule("plain", "plain/upstream", &harness.receiver.url("plain"))
}

/// Publishes on a topic with a working rule, and waits until that message arrived: earlier messages
/// arrive before.
async fn mark(harness: &mut Harness) {
    let before = harness.receiver.inspect(|requests| {
        requests.paths.iter().filter(|path| *path == "/upstream/edge0").count()
    });
    harness.client.publish(UP, "mark").await;
    let marks = || {
        harness.receiver.inspect(|requests| {
            requests.paths.iter().filter(|path| *path == "/upstream/edge0").count()
        })
    };
    eventually("the mark", || marks() > before).await;
}

fn plain_count(harness: &Harness) -> usize {
    harness
        .receiver
        .inspect(|requests| requests.paths.iter().filter(|path| *path == "/upstream/plain").count())
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_created_while_its_node_is_offline_never_takes_effect() {
    let mut harness = Harness::start(0.05).await;
    harness.emulator.cut(NODE).unwrap();
    harness.emulator.apply(plain(&harness)).unwrap();
    harness.emulator.heal(NODE).unwrap();
    harness.client.publish(PLAIN, "no").await;
    mark(&mut harness).await;
    harness.emulator.restart_edgecore(NODE).await.unwrap();
    harness.client.publish(PLAIN, "no").await;
    mark(&mut harness).await;
    assert_eq!((plain_count(&harness), harness.emulator.traffic(NODE).unwrap().up.taken), (0, 2));
    // Recreated while the node is online, it takes effect.
    harness.emulator.delete(plain(&harness)).unwrap();
    harness.emulator.apply(plain(&harness)).unwrap();
    subscribed_to_plain(&mut harness).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_topic_rule_created_while_node_is_offline_takes_effect() {
    let mut harness = Harness::start(0.1).await;
    harness.emulator.cut(NODE).unwrap();
    harness.emulator.apply(up_rule("two", "user/two", &harness.receiver.url("two"))).unwrap();
    // Also with the edge database wiped.
    harness.emulator.wipe_edgecore(NODE).await.unwrap();
    harness.emulator.heal(NODE).unwrap();
    harness.client.publish("neptune-system/user/two", "yes").await;
    eventually("the message to arrive", || {
        harness.receiver.inspect(|requests| requests.paths == ["/upstream/two"])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_deleted_while_its_node_is_offline_leaves_a_subscription() {
    let mut harness = Harness::start(0.05).await;
    harness.emulator.apply(plain(&harness)).unwrap();
    subscribed_to_plain(&mut harness).await;
    harness.emulator.cut(NODE).unwrap();
    harness.emulator.delete(plain(&harness)).unwrap();
    harness.emulator.heal(NODE).unwrap();
    let (taken, forwarded) =
        (harness.emulator.traffic(NODE).unwrap().up.taken, plain_count(&harness));
    // The subscription survives a restart of edgecore: it is in the node's database.
    harness.emulator.restart_edgecore(NODE).await.unwrap();
    harness.client.publish(PLAIN, "without a rule").await;
    harness.taken(taken + 1).await;
    mark(&mut harness).await;
    assert_eq!(plain_count(&harness), forwarded);
    // The next rule for the topic uses the leftover subscription.
    harness.emulator.cut(NODE).unwrap();
    harness.emulator.apply(plain(&harness)).unwrap();
    harness.emulator.heal(NODE).unwrap();
    harness.client.publish(PLAIN, "for the next rule").await;
    eventually("the message to arrive", || plain_count(&harness) == forwarded + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updated_rule_keeps_its_old_effect_until_recreated() {
    let mut harness = Harness::start(0.1).await;
    let new = up_rule("up", "user/neptune/upstream", &harness.receiver.url("new"));
    harness.emulator.apply(new.clone()).unwrap();
    harness.client.publish(UP, "1").await;
    eventually("the message to arrive", || harness.receiver.count() == 1).await;
    harness.emulator.delete(new.clone()).unwrap();
    harness.emulator.apply(new).unwrap();
    harness.client.publish(UP, "2").await;
    eventually("the message to arrive", || harness.receiver.count() == 2).await;
    harness
        .receiver
        .inspect(|requests| assert_eq!(requests.paths, ["/upstream/edge0", "/upstream/new"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_created_before_its_endpoints_takes_effect_later() {
    let mut harness = Harness::start(0.02).await;
    for endpoint in endpoints() {
        harness.emulator.delete(endpoint).unwrap();
    }
    harness.emulator.apply(up_rule("two", "user/two", &harness.receiver.url("two"))).unwrap();
    for endpoint in endpoints() {
        harness.emulator.apply(endpoint).unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    harness.client.publish("neptune-system/user/two", "yes").await;
    eventually("the message to arrive", || {
        harness.receiver.inspect(|requests| requests.paths == ["/upstream/two"])
    })
    .await;
}

/// A subscription takes a moment: publishes until a message arrives.
async fn subscribed_to_plain(harness: &mut Harness) {
    for _ in 0..100 {
        harness.client.publish(PLAIN, "probe").await;
        mark(harness).await;
        if plain_count(harness) > 0 {
            let before = plain_count(harness);
            mark(harness).await;
            assert!(plain_count(harness) >= before);
            return;
        }
    }
    panic!("the rule never took effect");
}

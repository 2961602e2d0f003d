//! The broker's rules: a node hears only what is meant for it, and speaks only for itself.

use std::collections::{BTreeMap, BTreeSet};

use deploy_tests::broker::{Broker, LocalBroker, connect, next, next_message, say};
use neptune_link::{Link, LinkEvent, LinkOptions, Message};
use tokio::task::JoinSet;

const NODES: [&str; 10] = [
    "edge0",
    "edge1",
    "edge2",
    "edge3",
    "edge4",
    "edge5",
    "edge6",
    "edge7",
    "edge8",
    "edge9.site-b.example",
];
const CONTROLLER: &str = "neptune_cloud";
const OBSERVER: &str = "neptune_observer";

fn users() -> Vec<&'static str> {
    [CONTROLLER, OBSERVER].into_iter().chain(NODES).collect()
}

fn subscribing(options: LinkOptions, filters: &[&str]) -> LinkOptions {
    LinkOptions { subscriptions: filters.iter().map(ToString::to_string).collect(), ..options }
}

/// What a node that has gone bad would say in the name of a victim, of the controller, and of others.
fn forged(victim: &str) -> [(String, bool); 10] {
    [
        (format!("neptune/{victim}/upstream/node"), true),
        (format!("neptune/{victim}/upstream/node"), false),
        (format!("neptune/{victim}/upstream/sync"), false),
        (format!("neptune/{victim}/upstream/default/jointinferenceservices/s/status"), true),
        (format!("neptune/{victim}/downstream/index"), true),
        (format!("neptune/{victim}/downstream/default/models/m/insert"), true),
        (format!("neptune/{victim}/downstream/default/models/m/delete"), false),
        ("neptune/upstream/node".to_owned(), true),
        ("neptune/all/upstream/node".to_owned(), false),
        (format!("other/{victim}/upstream/node"), true),
    ]
}

/// What such a node would like to read, beside what is its own.
const GREEDY: [&str; 10] = [
    "#",
    "+/+/downstream/#",
    "neptune/#",
    "neptune/+/#",
    "neptune/+/downstream/#",
    "neptune/+/downstream/index",
    "neptune/+/upstream/#",
    "neptune/edge0/downstream/#",
    "neptune/edge9.site-b.example/downstream/#",
    "$SYS/#",
];

#[tokio::test]
async fn ten_nodes_that_forge_and_spy_are_neither_heard_nor_told() {
    let broker = Broker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (controller, mut heard) = connect(options).await;
    let all = ["neptune/+/upstream/#", "neptune/+/downstream/#"];
    let (_observer, mut seen) = connect(subscribing(broker.as_cloud(OBSERVER), &all)).await;

    let mut nodes = BTreeMap::new();
    for node in NODES {
        let own = format!("neptune/{node}/downstream/#");
        let filters = [&[own.as_str()], &GREEDY[..]].concat();
        nodes.insert(node, connect(subscribing(broker.as_node(node), &filters)).await);
    }

    let mut at_work = JoinSet::new();
    for (position, node) in NODES.into_iter().enumerate() {
        let (link, events) = nodes.remove(node).unwrap();
        let victim = NODES[(position + 1) % NODES.len()];
        at_work.spawn(async move {
            for (topic, retain) in forged(victim) {
                say(&link, &topic, "forged", retain).await;
            }
            say(&link, &format!("neptune/{node}/upstream/node"), node, false).await;
            (node, (link, events))
        });
    }
    nodes.extend(at_work.join_all().await);
    let count = 10 * NODES.len();
    assert_eq!(broker.logs("Denied PUBLISH", count).await, count);
    for node in NODES {
        say(&controller, &format!("neptune/{node}/downstream/index"), node, false).await;
    }

    let mut said = BTreeSet::new();
    for _ in NODES {
        let Message { topic, payload, .. } = next_message(&mut heard).await;
        assert_eq!(topic.as_bytes(), [b"neptune/", &payload[..], b"/upstream/node"].concat());
        said.insert(topic);
    }
    assert_eq!(said.len(), NODES.len());
    for _ in 0..2 * NODES.len() {
        assert_ne!(next_message(&mut seen).await.payload, "forged");
    }
    for (node, (link, mut told)) in nodes {
        // Filters that overlap may bring the same message more than once. Its last one ends this.
        say(&controller, &format!("neptune/{node}/downstream/index"), "last", false).await;
        loop {
            let Message { topic, payload, .. } = next_message(&mut told).await;
            assert_eq!(
                topic,
                format!("neptune/{node}/downstream/index"),
                "{node} heard {payload:?}"
            );
            assert_ne!(payload, "forged");
            if payload == "last" {
                break;
            }
        }
        drop(link);
    }
    // The controller has no more rights than it needs either.
    say(&controller, "neptune/edge0/upstream/node", "forged", true).await;
    assert_eq!(broker.logs("Denied PUBLISH", count + 1).await, count + 1);
    // Nothing was kept for who comes later.
    say_and_hear_nothing_else(&controller, &broker).await;
}

async fn say_and_hear_nothing_else(controller: &Link, broker: &Broker) {
    let filters = ["neptune/+/upstream/#", "neptune/+/downstream/#"];
    let (_late, mut events) = connect(subscribing(broker.as_cloud(OBSERVER), &filters)).await;
    say(controller, "neptune/edge0/downstream/index", "end", false).await;
    assert_eq!(next_message(&mut events).await.payload, "end");
}

#[tokio::test]
async fn a_last_will_in_the_name_of_another_node_is_not_published() {
    let broker = Broker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (_controller, mut heard) = connect(options).await;
    for (node, payload) in [("edge1", "forged"), ("edge0", "its own")] {
        let topic = "neptune/edge0/upstream/node".to_owned();
        let will = Some(Message { topic, payload: payload.into(), retain: false });
        let dying = connect(LinkOptions { will, ..broker.as_node(node) }).await;
        // The new connection ends the old one as if it had been cut, before it is greeted itself.
        connect(broker.as_node(node)).await;
        drop(dying);
    }
    assert_eq!(next_message(&mut heard).await.payload, "its own");
}

#[tokio::test]
async fn a_node_with_anothers_client_id_does_not_throw_it_off() {
    let broker = Broker::start(&users()).await;
    let options = subscribing(broker.as_node("edge0"), &["neptune/edge0/downstream/#"]);
    let (_victim, mut told) = connect(options).await;
    for client_id in ["neptune-edge-edge0", "edge0"] {
        let (_thief, _) =
            connect(LinkOptions { client_id: client_id.to_owned(), ..broker.as_node("edge1") })
                .await;
    }
    let (controller, _) = connect(broker.as_cloud(CONTROLLER)).await;
    say(&controller, "neptune/edge0/downstream/index", "still there", false).await;
    assert_eq!(next(&mut told).await, {
        let topic = "neptune/edge0/downstream/index".to_owned();
        LinkEvent::Message(Message { topic, payload: "still there".into(), retain: false })
    });
}

#[tokio::test]
async fn nobody_connects_without_a_password_of_the_list() {
    let broker = Broker::start(&["edge0"]).await;
    let (known, stranger) = (broker.as_node("edge0"), broker.as_node("edge1"));
    let anonymous = format!("mqtts://localhost:{}", known.url.port()).parse().unwrap();
    let anonymous = LinkOptions { url: anonymous, ..known.clone() };
    for options in [stranger, anonymous] {
        let (_link, mut events) = Link::start(options).unwrap();
        assert!(matches!(next(&mut events).await, LinkEvent::Down { .. }));
    }
    connect(known).await;
}

#[tokio::test]
async fn a_nodes_own_broker_carries_what_is_the_nodes_and_nothing_else() {
    let central = Broker::start(&users()).await;
    let options = subscribing(central.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (controller, mut heard) = connect(options).await;
    say(&controller, "neptune/edge0/downstream/index", "before", true).await;
    say(&controller, "neptune/edge1/downstream/index", "another's", true).await;

    let local = LocalBroker::start(&central).await;
    let (agent, mut told) = connect(subscribing(local.options(), &["neptune/#"])).await;
    assert_eq!(next_message(&mut told).await.payload, "before");
    say(&agent, "neptune/edge1/upstream/node", "forged", true).await;
    say(&agent, "neptune/workers/w/info", "of a worker", false).await;
    say(&agent, "neptune/edge0/upstream/node", "here", true).await;
    let report = next_message(&mut heard).await;
    assert_eq!(
        (&*report.topic, &report.payload[..]),
        ("neptune/edge0/upstream/node", &b"here"[..])
    );
    say(&controller, "neptune/edge1/downstream/index", "another's", false).await;
    say(&controller, "neptune/edge0/downstream/index", "after", false).await;
    // Beside that, the agent hears what it said itself, on the node.
    let mut heard = BTreeSet::new();
    while !heard.contains("after") {
        let payload = next_message(&mut told).await.payload;
        heard.insert(String::from_utf8(payload.into()).unwrap());
    }
    assert_eq!(heard, ["after", "forged", "here", "of a worker"].map(str::to_owned).into());
}

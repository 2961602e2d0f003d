//! The broker's ACL: a node receives only its own messages, and publishes only on its own topics.

use std::collections::{BTreeMap, BTreeSet};

use deploy_tests::{
    broker::{LocalBroker, MEMORY_LIMIT, ShippedBroker, connect, next, next_message, publish},
    object, objects, text,
};
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

/// Topics that a malicious node would fill with messages, and on which it would forge messages of a
/// victim, of the controller, and of others.
fn forged(node: &str, victim: &str) -> [(String, bool); 13] {
    [
        (format!("neptune/{node}/upstream/1"), true),
        (format!("neptune/{node}/upstream/node/1"), true),
        (format!("neptune/{node}/upstream/default/models/m/other"), true),
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

/// Filters by which such a node would read messages of others.
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
async fn malicious_nodes_can_neither_forge_nor_read_messages() {
    let broker = ShippedBroker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (controller, mut received) = connect(options).await;
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
            // mosquitto 2.0 closes a connection that publishes what is denied, and a client that loses
            // many waits longer each time. So the nodes share the attempts.
            let own = forged(node, victim).into_iter().skip(position).step_by(NODES.len());
            for (topic, retain) in own {
                publish(&link, &topic, "forged", retain).await;
            }
            publish(&link, &format!("neptune/{node}/upstream/node"), node, false).await;
            (node, (link, events))
        });
    }
    nodes.extend(at_work.join_all().await);
    let count = 13;
    broker.until_logged("Denied PUBLISH", count).await;
    assert_eq!(broker.logged("Denied PUBLISH"), count);
    for node in NODES {
        publish(&controller, &format!("neptune/{node}/downstream/index"), node, false).await;
    }

    let mut topics = BTreeSet::new();
    for _ in NODES {
        let Message { topic, payload, .. } = next_message(&mut received).await;
        assert_eq!(topic.as_bytes(), [b"neptune/", &payload[..], b"/upstream/node"].concat());
        topics.insert(topic);
    }
    assert_eq!(topics.len(), NODES.len());
    for _ in 0..2 * NODES.len() {
        assert_ne!(next_message(&mut seen).await.payload, "forged");
    }
    for (node, (link, mut messages)) in nodes {
        // Overlapping filters may deliver a message more than once. The last message ends the loop.
        publish(&controller, &format!("neptune/{node}/downstream/index"), "last", false).await;
        loop {
            let Message { topic, payload, .. } = next_message(&mut messages).await;
            assert_eq!(
                topic,
                format!("neptune/{node}/downstream/index"),
                "{node} received {payload:?}"
            );
            assert_ne!(payload, "forged");
            if payload == "last" {
                break;
            }
        }
        drop(link);
    }
    // The controller has only the rights that it needs, too.
    publish(&controller, "neptune/edge0/upstream/node", "forged", true).await;
    broker.until_logged("Denied PUBLISH", count + 1).await;
    assert_eq!(broker.logged("Denied PUBLISH"), count + 1);
    // No forged message is retained.
    late_observer_receives_only_new_messages(&controller, &broker).await;
}

async fn late_observer_receives_only_new_messages(controller: &Link, broker: &ShippedBroker) {
    let filters = ["neptune/+/upstream/#", "neptune/+/downstream/#"];
    let (_late, mut events) = connect(subscribing(broker.as_cloud(OBSERVER), &filters)).await;
    publish(controller, "neptune/edge0/downstream/index", "end", false).await;
    assert_eq!(next_message(&mut events).await.payload, "end");
}

/// The topics of the protocol between cloud and nodes, for edge0.
fn documented() -> Vec<String> {
    let document = include_str!("../../../../docs/asyncapi.yaml");
    let addresses = document.lines().filter_map(|line| line.trim().strip_prefix("address: "));
    let topic = |address: &str| {
        let parts = [
            ("{node}", "edge0"),
            ("{namespace}", "default"),
            ("{resource}", "models"),
            ("{name}", "m"),
        ];
        parts.iter().fold(address.to_owned(), |text, (part, value)| text.replace(part, value))
    };
    addresses.map(topic).filter(|topic| topic.starts_with("neptune/edge0/")).collect()
}

/// A broker that denies one of them may also close the connection of the node.
#[tokio::test]
async fn node_and_controller_may_publish_each_topic_of_the_protocol() {
    let broker = ShippedBroker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (controller, mut upstream) = connect(options).await;
    let options = subscribing(broker.as_node("edge0"), &["neptune/edge0/downstream/#"]);
    let (node, mut downstream) = connect(options).await;
    let topics = documented();
    assert!(topics.len() >= 8, "{topics:?}");
    for topic in topics {
        let (sender, received) = if topic.contains("/upstream/") {
            (&node, &mut upstream)
        } else {
            (&controller, &mut downstream)
        };
        publish(sender, &topic, "allowed", false).await;
        assert_eq!(next_message(received).await.topic, topic);
    }
    assert_eq!(broker.logged("Denied PUBLISH"), 0);
}

#[tokio::test]
async fn full_broker_refuses_messages_and_serves_the_other_nodes() {
    const MESSAGE: usize = 900_000;
    let broker = ShippedBroker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/edge1/upstream/#"]);
    let (_controller, mut received) = connect(options).await;
    let (flooding, _events) = connect(broker.as_node("edge0")).await;
    for number in 0..2 * MEMORY_LIMIT / MESSAGE {
        let topic = format!("neptune/edge0/upstream/default/models/m{number}/status");
        let message = Message { topic, payload: vec![b'x'; MESSAGE].into(), retain: true };
        flooding.publish(message).unwrap();
    }
    broker.until_logged("out of memory", 1).await;
    let (node, _) = connect(broker.as_node("edge1")).await;
    publish(&node, "neptune/edge1/upstream/node", "here", true).await;
    assert_eq!(next_message(&mut received).await.payload, "here");
}

#[tokio::test]
async fn last_will_on_another_nodes_topic_is_not_published() {
    let broker = ShippedBroker::start(&users()).await;
    let options = subscribing(broker.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (_controller, mut received) = connect(options).await;
    for (node, payload) in [("edge1", "forged"), ("edge0", "its own")] {
        let topic = "neptune/edge0/upstream/node".to_owned();
        let will = Some(Message { topic, payload: payload.into(), retain: false });
        let client = connect(LinkOptions { will, ..broker.as_node(node) }).await;
        // The new connection takes over the session, which ends the old one like a lost connection.
        connect(broker.as_node(node)).await;
        drop(client);
    }
    assert_eq!(next_message(&mut received).await.payload, "its own");
}

#[tokio::test]
async fn client_id_of_another_node_does_not_disconnect_it() {
    let broker = ShippedBroker::start(&users()).await;
    let options = subscribing(broker.as_node("edge0"), &["neptune/edge0/downstream/#"]);
    let (_victim, mut messages) = connect(options).await;
    for client_id in ["neptune-edge-edge0", "edge0"] {
        let (_thief, _) =
            connect(LinkOptions { client_id: client_id.to_owned(), ..broker.as_node("edge1") })
                .await;
    }
    let (controller, _) = connect(broker.as_cloud(CONTROLLER)).await;
    publish(&controller, "neptune/edge0/downstream/index", "still connected", false).await;
    assert_eq!(next(&mut messages).await, {
        let topic = "neptune/edge0/downstream/index".to_owned();
        LinkEvent::Message(Message { topic, payload: "still connected".into(), retain: false })
    });
}

#[tokio::test]
async fn connections_need_a_certificate_of_the_authority() {
    let broker = ShippedBroker::start(&["edge0"]).await;
    let foreign = ShippedBroker::start(&["edge0"]).await;
    let known = broker.as_node("edge0");
    let other = LinkOptions { identity: foreign.as_node("edge0").identity, ..known.clone() };
    for options in [broker.as_node("edge1"), other] {
        let (_link, mut events) = Link::start(options).unwrap();
        assert!(matches!(next(&mut events).await, LinkEvent::Down { .. }));
    }
    connect(known).await;
}

#[tokio::test]
async fn connections_with_passwords_need_a_listed_user() {
    let broker = ShippedBroker::with_passwords(&["edge0"], &["edge1"]).await;
    let known = broker.with_password("edge1");
    let anonymous = format!("mqtts://localhost:{}", known.url.port()).parse().unwrap();
    let anonymous = LinkOptions { url: anonymous, ..known.clone() };
    for options in [broker.with_password("edge2"), anonymous] {
        let (_link, mut events) = Link::start(options).unwrap();
        assert!(matches!(next(&mut events).await, LinkEvent::Down { .. }));
    }
    connect(known).await;
}

#[test]
fn configuration_with_passwords_is_that_without_and_two_listeners() {
    let plain = text("build/acl/mosquitto.conf");
    let with = text("build/acl/mosquitto-passwords.conf");
    let lines = |text: &str| -> Vec<String> {
        let is_setting = |line: &&str| !line.is_empty() && !line.starts_with('#');
        text.lines().filter(is_setting).map(str::to_owned).collect()
    };
    let (before, listeners) = with.split_once("\n# Nodes with a password").unwrap();
    let mut before = lines(before);
    before.retain(|line| !line.starts_with("password_file "));
    assert_eq!(before, lines(&plain));
    assert_eq!(listeners.matches("listener ").count(), 2);
}

#[tokio::test]
async fn bridge_of_a_local_broker_forwards_only_its_nodes_topics() {
    let central = ShippedBroker::start(&users()).await;
    let options = subscribing(central.as_cloud(CONTROLLER), &["neptune/+/upstream/#"]);
    let (controller, mut received) = connect(options).await;
    publish(&controller, "neptune/edge0/downstream/index", "before", true).await;
    publish(&controller, "neptune/edge1/downstream/index", "another's", true).await;

    let local = LocalBroker::start(&central).await;
    let (agent, mut messages) = connect(subscribing(local.options(), &["neptune/#"])).await;
    assert_eq!(next_message(&mut messages).await.payload, "before");
    publish(&agent, "neptune/edge1/upstream/node", "forged", true).await;
    publish(&agent, "neptune/workers/w/info", "of a worker", false).await;
    publish(&agent, "neptune/edge0/upstream/node", "here", true).await;
    let report = next_message(&mut received).await;
    assert_eq!(
        (&*report.topic, &report.payload[..]),
        ("neptune/edge0/upstream/node", &b"here"[..])
    );
    publish(&controller, "neptune/edge1/downstream/index", "another's", false).await;
    publish(&controller, "neptune/edge0/downstream/index", "after", false).await;
    // The agent also receives its own messages on the local broker.
    let mut received = BTreeSet::new();
    while !received.contains("after") {
        let payload = next_message(&mut messages).await.payload;
        received.insert(String::from_utf8(payload.into()).unwrap());
    }
    assert_eq!(received, ["after", "forged", "here", "of a worker"].map(str::to_owned).into());
}

#[test]
fn files_that_mosquitto_opens_without_links_are_mounted_one_by_one() {
    let objects = objects("mqtt");
    let pod = &object(&objects, "Deployment", "neptune-mosquitto")["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let config = text("build/acl/mosquitto.conf");
    let files: Vec<_> = config
        .lines()
        .filter_map(|line| line.strip_prefix("password_file ").or(line.strip_prefix("acl_file ")))
        .collect();
    assert_eq!(files.len(), 1, "{config}");
    for file in files {
        // A volume of a Secret or ConfigMap has links; a mount with a subPath is the file itself.
        let mount = mounts.iter().find(|mount| mount["mountPath"] == file);
        assert!(mount.is_some_and(|it| it["subPath"].is_string()), "{file}: {mounts:#?}");
    }
}

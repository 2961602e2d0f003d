//! The link with rumqttd, the broker that agents embed.

use std::collections::HashMap;
use std::net::SocketAddr;

use neptune_harness::free_port;
use rumqttd::{Broker, Config, ConnectionSettings, RouterConfig, ServerSettings};

use crate::{flush, message, next, next_message, options};
use neptune_link::{Link, LinkEvent};

/// Starts a broker. It has no shutdown: its thread ends with the test process.
fn start(port: u16) {
    let server = ServerSettings {
        name: "test".into(),
        listen: SocketAddr::from(([127, 0, 0, 1], port)),
        tls: None,
        next_connection_delay_ms: 1,
        connections: ConnectionSettings {
            connection_timeout_ms: 5000,
            max_payload_size: 1024 * 1024,
            max_inflight_count: 100,
            auth: None,
            external_auth: None,
            dynamic_filters: true,
        },
    };
    let router = RouterConfig {
        max_connections: 10,
        max_outgoing_packet_count: 200,
        max_segment_size: 1024 * 1024,
        max_segment_count: 2,
        ..RouterConfig::default()
    };
    let config =
        Config { router, v4: Some(HashMap::from([("1".into(), server)])), ..Config::default() };
    std::thread::spawn(move || Broker::new(config).start().expect("the embedded broker runs"));
}

#[tokio::test]
async fn link_works_with_the_embedded_broker() {
    let port = free_port();
    start(port);
    let (link, mut events) =
        Link::start(options(port, "both", &["neptune/workers/+/info"])).unwrap();
    // The broker does not report when it listens, so the first attempt may fail.
    while next(&mut events).await != LinkEvent::Up {}
    for n in 0..1000 {
        let sent = message(format!("neptune/workers/{n}/info"), "{}");
        link.publish(sent.clone()).unwrap();
        assert_eq!(next_message(&mut events).await, sent);
    }
    flush(&link).await;
    link.close(crate::TIMEOUT).await;
}

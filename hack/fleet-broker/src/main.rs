//! An MQTT broker on loopback for the demo and for tests: rumqttd, without TLS, users and
//! persistence.

#![allow(clippy::doc_markdown, reason = "clap shows the doc comments to users")]

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Parser;
use rumqttd::{
    ConnectionSettings, LinkType, Router, RouterConfig, Server, ServerSettings, protocol::v4::V4,
};
use tracing_subscriber::EnvFilter;

/// The largest message, in bytes. Neptune's are at most 1 MiB.
const MAX_PAYLOAD: usize = 4 << 20;

/// Runs an MQTT broker on a port of loopback, until it is killed. Anonymous clients may publish and
/// subscribe to everything. It keeps nothing on disk.
///
/// Its limits are those of rumqttd: a subscription with wildcards gets at most 100 retained
/// messages with QoS 1, and none on topics that begin with `$`.
#[derive(Debug, Parser)]
#[command(name = "fleet-broker", version, arg_required_else_help = true)]
struct Arguments {
    /// The port to listen on.
    port: u16,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let is_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_terminal);
    log.with_writer(std::io::stderr).init();
    let Arguments { port } = Arguments::parse();
    // Not rumqttd's Broker, which succeeds also if the port is taken.
    let router = Router::new(0, router()).spawn();
    let mut server = Server::new(listener(port), router, V4);
    server.start(LinkType::Remote).await.with_context(|| format!("listening on 127.0.0.1:{port}"))
}

fn router() -> RouterConfig {
    RouterConfig {
        max_connections: 10_000,
        // Per turn and subscription with QoS 0: what mosquitto_sub gets of the retained messages.
        max_outgoing_packet_count: 10_000,
        // A log of each filter. Its memory is never given back.
        max_segment_size: 1 << 20,
        max_segment_count: 10,
        ..RouterConfig::default()
    }
}

fn listener(port: u16) -> ServerSettings {
    ServerSettings {
        name: "fleet".to_owned(),
        listen: ([127, 0, 0, 1], port).into(),
        tls: None,
        next_connection_delay_ms: 1,
        connections: ConnectionSettings {
            connection_timeout_ms: 5_000,
            max_payload_size: MAX_PAYLOAD,
            max_inflight_count: 100,
            auth: None,
            external_auth: None,
            dynamic_filters: false,
        },
    }
}

//! Runs the embedded local broker. Workers and the agent exchange messages through it; no durable
//! state depends on it.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use rumqttd::{
    ConnectionSettings, LinkType, Router, RouterConfig, Server, ServerSettings, protocol::v4::V4,
};

use crate::{Error, domain::listen_address::reachable};

/// The log that connects writers to readers is kept in segments of this size, per topic filter.
/// They never shrink: small, since the agent reads fast.
const SEGMENT_BYTES: usize = 1024 * 1024;
const SEGMENTS: usize = 2;
const CONNECTIONS: usize = 256;
/// Below what the agent's own link takes, so that no worker can cut it.
const LARGEST_PAYLOAD: usize = 256 * 1024;
const READY_TRIES: u32 = 100;
const READY_PAUSE: Duration = Duration::from_millis(2);

/// Starts the broker on a thread of its own, for as long as the process lives. `failed` is called
/// when it ends nevertheless.
///
/// # Errors
/// [`Error::LocalBroker`] when the address is taken.
pub fn start(listen: SocketAddr, failed: impl FnOnce(Error) + Send + 'static) -> Result<(), Error> {
    let error = move |why: String| Error::LocalBroker { listen, why };
    // The server says so too, but only on its thread and after the agent went on.
    TcpListener::bind(listen).map_err(|cause| error(cause.to_string()))?;
    let router = Router::new(
        0,
        RouterConfig {
            max_connections: CONNECTIONS,
            max_outgoing_packet_count: 200,
            max_segment_size: SEGMENT_BYTES,
            max_segment_count: SEGMENTS,
            ..RouterConfig::default()
        },
    );
    let settings = ServerSettings {
        name: "local".to_owned(),
        listen,
        tls: None,
        next_connection_delay_ms: 0,
        connections: ConnectionSettings {
            connection_timeout_ms: 5000,
            max_payload_size: LARGEST_PAYLOAD,
            max_inflight_count: 200,
            auth: None,
            external_auth: None,
            dynamic_filters: false,
        },
    };
    let mut server = Server::new(settings, router.spawn(), V4);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| error(cause.to_string()))?;
    let spawned = thread::Builder::new().name("local-broker".to_owned()).spawn(move || {
        let ended = runtime.block_on(server.start(LinkType::Remote));
        failed(error(ended.err().map_or_else(|| "it ended".to_owned(), |cause| cause.to_string())));
    });
    spawned.map_err(|cause| error(cause.to_string()))?;
    // It listens within milliseconds. Whoever connects next finds it, and need not come again.
    for _ in 0..READY_TRIES {
        if TcpStream::connect(reachable(listen)).is_ok() {
            break;
        }
        thread::sleep(READY_PAUSE);
    }
    Ok(())
}

//! Runs the embedded local broker between the workers and the agent. It persists nothing.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use rumqttd::{
    ConnectionSettings, LinkType, Router, RouterConfig, Server, ServerSettings, protocol::v4::V4,
};

use crate::{Error, domain::listen_address::reachable};

/// Segment size of the broker's log per topic filter. Small, because segments never shrink and the
/// agent reads without delay.
const SEGMENT_BYTES: usize = 1024 * 1024;
const SEGMENTS: usize = 2;
const MAX_CONNECTIONS: usize = 256;
/// Below the packet limit of the agent's link, so that no worker's message disconnects the agent.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
const READY_ATTEMPTS: u32 = 100;
const READY_INTERVAL: Duration = Duration::from_millis(2);

/// Starts the broker on its own thread until the process exits. `failed` is called if the broker
/// stops earlier.
///
/// # Errors
/// [`Error::LocalBroker`] when the address is in use.
pub fn start(listen: SocketAddr, failed: impl FnOnce(Error) + Send + 'static) -> Result<(), Error> {
    let error = move |why: String| Error::LocalBroker { listen, why };
    // The server reports this error only on its thread, after this function returned.
    TcpListener::bind(listen).map_err(|cause| error(cause.to_string()))?;
    let router = Router::new(
        0,
        RouterConfig {
            max_connections: MAX_CONNECTIONS,
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
            max_payload_size: MAX_PAYLOAD_BYTES,
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
        let result = runtime.block_on(server.start(LinkType::Remote));
        failed(error(
            result.err().map_or_else(|| "broker stopped".to_owned(), |cause| cause.to_string()),
        ));
    });
    spawned.map_err(|cause| error(cause.to_string()))?;
    // The broker listens within milliseconds, so that the first connection succeeds.
    for _ in 0..READY_ATTEMPTS {
        if TcpStream::connect(reachable(listen)).is_ok() {
            break;
        }
        thread::sleep(READY_INTERVAL);
    }
    Ok(())
}

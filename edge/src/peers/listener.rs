//! Listens for peers, and tries again while the address is not available. The address of a network
//! may appear after the start of the agent, which must not wait for it.

use std::{future::pending, net::SocketAddr, time::Duration};

use neptune_share::peers::{PeerServer, bind};
use tracing::{info, warn};

/// Interval between two attempts to listen.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Serves until the process ends.
pub async fn run(server: PeerServer, listen: SocketAddr) {
    let mut warned = None;
    let listener = loop {
        match bind(listen) {
            Ok(listener) => break listener,
            Err(error) => {
                let text = error.to_string();
                if warned.as_ref() != Some(&text) {
                    warn!(%listen, %error, "peers cannot connect; correct --peers-listen or free its port; retrying");
                    warned = Some(text);
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    };
    info!(%listen, "listening for peers");
    server.run(listener, pending()).await;
}

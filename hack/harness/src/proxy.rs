//! A TCP proxy that resets or refuses connections, as a network does that fails.

use std::sync::Arc;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// Forwards connections to a port of loopback until it is dropped.
pub struct Proxy {
    port: u16,
    state: Arc<watch::Sender<State>>,
    accepting: AbortHandle,
}

#[derive(Clone, Copy)]
struct State {
    /// A connection is reset when this number rises.
    resets: usize,
    is_open: bool,
}

impl Proxy {
    /// Starts a proxy for this port.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(watch::Sender::new(State { resets: 0, is_open: true }));
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&state))).abort_handle();
        Self { port, state, accepting }
    }

    /// The port to connect to instead of the target's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL for MQTT clients.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Resets all connections. New ones are forwarded.
    pub fn reset_connections(&self) {
        self.state.send_modify(|state| state.resets += 1);
    }

    /// Resets all connections, and closes new ones until [`Proxy::open`].
    pub fn close(&self) {
        self.state.send_modify(|state| *state = State { resets: state.resets + 1, is_open: false });
    }

    /// Forwards new connections again.
    pub fn open(&self) {
        self.state.send_modify(|state| state.is_open = true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset_connections();
    }
}

async fn accept(listener: TcpListener, target: u16, state: Arc<watch::Sender<State>>) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut state = state.subscribe();
        let State { resets, is_open } = *state.borrow();
        if !is_open {
            continue;
        }
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
                return;
            };
            for stream in [&client, &server] {
                let _ = stream.set_nodelay(true);
            }
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = state.wait_for(|state| state.resets > resets) => {
                    // Reset, not closed: buffered bytes are lost, as in a network that fails.
                    let _ = client.set_zero_linger();
                    let _ = server.set_zero_linger();
                }
            }
        });
    }
}

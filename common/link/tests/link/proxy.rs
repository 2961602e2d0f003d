//! A TCP proxy that cuts connections.

use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub struct Proxy {
    pub port: u16,
    state: Arc<watch::Sender<ProxyState>>,
    accepting: AbortHandle,
}

#[derive(Clone, Copy)]
struct ProxyState {
    /// Number of cuts so far. A connection is reset when it increases.
    cuts: usize,
    open: bool,
}

impl Proxy {
    pub async fn to(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(watch::Sender::new(ProxyState { cuts: 0, open: true }));
        let accepting = tokio::spawn(accept(listener, broker, Arc::clone(&state))).abort_handle();
        Self { port, state, accepting }
    }

    /// Resets all connections; new ones are accepted.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Resets all connections, and closes new ones immediately.
    pub fn close(&self) {
        self.state.send_modify(|state| *state = ProxyState { cuts: state.cuts + 1, open: false });
    }

    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, broker: u16, state: Arc<watch::Sender<ProxyState>>) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut state = state.subscribe();
        let ProxyState { cuts, open } = *state.borrow();
        if !open {
            continue;
        }
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", broker)).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = state.wait_for(|state| state.cuts > cuts) => {
                    // Reset, not closed: buffered data is lost, as when a network fails.
                    client.set_zero_linger().unwrap();
                    server.set_zero_linger().unwrap();
                }
            }
        });
    }
}

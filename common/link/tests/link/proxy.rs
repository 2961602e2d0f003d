//! A TCP proxy that cuts what passes through it.

use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub struct Proxy {
    pub port: u16,
    gate: Arc<watch::Sender<Gate>>,
    accepting: AbortHandle,
}

#[derive(Clone, Copy)]
struct Gate {
    /// A connection lives as long as this number.
    cuts: usize,
    open: bool,
}

impl Proxy {
    pub async fn to(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::new(watch::Sender::new(Gate { cuts: 0, open: true }));
        let accepting = tokio::spawn(accept(listener, broker, Arc::clone(&gate))).abort_handle();
        Self { port, gate, accepting }
    }

    /// Resets all connections; new ones are taken.
    pub fn cut(&self) {
        self.gate.send_modify(|gate| gate.cuts += 1);
    }

    /// Resets all connections, and new ones at once.
    pub fn close(&self) {
        self.gate.send_modify(|gate| *gate = Gate { cuts: gate.cuts + 1, open: false });
    }

    pub fn open(&self) {
        self.gate.send_modify(|gate| gate.open = true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, broker: u16, gate: Arc<watch::Sender<Gate>>) {
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut gate = gate.subscribe();
        let Gate { cuts, open } = *gate.borrow();
        if !open {
            continue;
        }
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", broker)).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = gate.wait_for(|gate| gate.cuts > cuts) => {
                    // Reset, not closed: what is in the buffers is gone, as with a lost network.
                    client.set_zero_linger().unwrap();
                    server.set_zero_linger().unwrap();
                }
            }
        });
    }
}

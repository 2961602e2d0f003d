//! One instance of the embedded broker: a thread with its own runtime, which accepts connections
//! and serves each in a task. A panic ends one task; the instance keeps the others.

use std::{io, net, sync::Arc, thread, time::Duration};

use neptune_program::listen::{self, Gate, Limits, Refusals};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    credentials::FIRST_OBSERVATION_TIMEOUT,
    handshake::{CONNECT_TIMEOUT, serve},
    hub::Hub,
    session::Shared,
};

/// The name of the broker in metrics and in the log.
pub const SERVER: &str = "workers-broker";
/// Connections without a login are few and end soon; a worker logs in within milliseconds. Its place
/// afterwards is limited by the hub, which knows the user.
const LIMITS: Limits = Limits {
    pending: 256,
    pending_per_address: 64,
    pending_reserve: 64,
    pending_time: CONNECT_TIMEOUT.saturating_add(FIRST_OBSERVATION_TIMEOUT),
    hurried_time: Duration::from_millis(500),
    anonymous: 0,
    anonymous_per_address: 0,
    known: 0,
    per_identity: 0,
};

/// A running instance. Its connections are closed when it is dropped.
pub struct Instance {
    /// Ends the instance when dropped.
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
    gate: Gate,
    pings: mpsc::Sender<oneshot::Sender<()>>,
}

impl Instance {
    /// Starts an instance on a duplicate of the listener, so that another one can replace it.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub fn start(
        listener: &net::TcpListener,
        shared: Arc<Shared>,
        refusals: &Refusals,
    ) -> io::Result<Self> {
        let listener = listener.try_clone()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let gate = Gate::new(SERVER, LIMITS, refusals);
        let (stop, stopped) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        let (pings, received) = mpsc::channel(1);
        let accepting = gate.clone();
        thread::Builder::new().name("local-broker".to_owned()).spawn(move || {
            // Dropped at the end of the thread, after a panic as well.
            let _running: oneshot::Sender<()> = running;
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::spawn(answer_pings(received, Arc::clone(&shared.hub)));
                let stopped = async { drop(stopped.await) };
                // The connections are dropped with the runtime.
                listen::run(&listener, &accepting, stopped, |stream, _, entry| {
                    serve(stream, Arc::clone(&shared), entry)
                })
                .await;
            });
        })?;
        Ok(Self { stop: Some(stop), ended, gate, pings })
    }

    /// Closes the connections and ends the thread, unless it is blocked.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Resolves when the thread has ended.
    pub async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Connections that it accepted so far.
    pub fn turns(&self) -> u64 {
        self.gate.turns()
    }

    /// Whether its thread works and can deliver messages, without a connection.
    pub async fn is_responsive(&self, within: Duration) -> bool {
        let (answer, answered) = oneshot::channel();
        let ping = async { self.pings.send(answer).await.is_ok() && answered.await.is_ok() };
        timeout(within, ping).await.unwrap_or(false)
    }
}

async fn answer_pings(mut pings: mpsc::Receiver<oneshot::Sender<()>>, hub: Arc<Hub>) {
    while let Some(answer) = pings.recv().await {
        // Waits as a message does.
        hub.connections();
        // The supervisor may have given up.
        let _ = answer.send(());
    }
}

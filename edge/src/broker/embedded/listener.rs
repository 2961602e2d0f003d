//! One instance of the embedded broker: a thread with its own runtime, which accepts connections
//! and serves each in a task. A panic ends one task; the instance keeps the others.

use std::{
    collections::VecDeque,
    io, net,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::{AbortHandle, JoinSet},
    time::sleep,
};
use tracing::warn;

use super::{handshake::serve, session::Shared};

/// Connections that have not logged in. The oldest one makes room for the next.
const MAX_UNACCEPTED: usize = 64;
/// After an error of the listener, such as too many open files.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// A running instance. Its connections are closed when it is dropped.
pub struct Instance {
    /// Ends the instance when dropped.
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
}

impl Instance {
    /// Starts an instance on a duplicate of the listener, so that another one can replace it.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub fn start(listener: &net::TcpListener, shared: Arc<Shared>) -> io::Result<Self> {
        let listener = listener.try_clone()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let (running, ended) = oneshot::channel();
        thread::Builder::new().name("local-broker".to_owned()).spawn(move || {
            // Dropped at the end of the thread, after a panic as well.
            let _running: oneshot::Sender<()> = running;
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = accept(&listener, &shared) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), ended })
    }

    /// Closes the connections and ends the thread, unless it is blocked.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Resolves when the thread has ended.
    pub async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }
}

/// A connection that has not logged in yet.
struct Unaccepted {
    task: AbortHandle,
    is_accepted: Arc<AtomicBool>,
}

/// Accepts connections. Never returns.
async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    let mut unaccepted: VecDeque<Unaccepted> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    warn!(%error, "a connection of the embedded broker failed; others continue");
                }
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "embedded broker cannot accept a connection; retrying");
                sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        unaccepted.retain(|it| !it.task.is_finished() && !it.is_accepted.load(Ordering::Relaxed));
        if unaccepted.len() >= MAX_UNACCEPTED
            && let Some(oldest) = unaccepted.pop_front()
        {
            oldest.task.abort();
        }
        let is_accepted = Arc::new(AtomicBool::new(false));
        let task = tasks.spawn(serve(stream, Arc::clone(shared), Arc::clone(&is_accepted)));
        unaccepted.push_back(Unaccepted { task, is_accepted });
    }
}

//! SIGTERM and SIGINT. The first process of a container has no default handlers: without these, the
//! engine would wait for its whole timeout.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;

pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// [`Error::Signal`] when a handler cannot be installed.
    pub fn listen() -> Result<Self, Error> {
        let handler = |kind| signal(kind).map_err(Error::Signal);
        Ok(Self {
            terminate: handler(SignalKind::terminate())?,
            interrupt: handler(SignalKind::interrupt())?,
        })
    }

    /// Waits for either signal.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

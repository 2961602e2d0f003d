//! SIGTERM and SIGINT. As the first process of a container a program gets no default handlers: without this, stopping takes the engine's whole timeout.

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
    /// [`Error::Signal`] when the system refuses a handler.
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

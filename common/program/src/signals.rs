//! Waits for the signals that stop a program.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Returns a future that resolves after SIGTERM or SIGINT. From now on these signals do not end the
/// process; the first process of a container would ignore them otherwise.
///
/// # Errors
/// The operating system refuses the handlers.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

//! Serves the pages for machines on a Unix socket.

use std::{
    convert::Infallible,
    fs,
    io::{self, ErrorKind},
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::Path,
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use neptune_program::listen::{self, Gate, Identity, Limits, Refusals};
use tokio::net::UnixListener;
use tracing::debug;

use super::answer::{Answer, busy_connection};

/// Time to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// The agent and people read the pages.
const LIMITS: Limits = Limits {
    pending: 64,
    pending_per_address: 64,
    pending_reserve: 0,
    pending_time: HEAD,
    hurried_time: Duration::from_secs(1),
    anonymous: 64,
    anonymous_per_address: 64,
    known: 0,
    per_identity: 0,
};

/// Listens on a socket. That of a killed process is replaced.
///
/// # Errors
/// Another process listens on it, something else is at the path, or it cannot be created.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is not a socket"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(ErrorKind::AddrInUse.into()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

/// Serves connections until the task ends. `server` is the name in metrics.
pub async fn serve(
    listener: UnixListener,
    (server, refusals): (&'static str, Refusals),
    handle: impl Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
) {
    let gate = Gate::new(server, LIMITS, &refusals);
    listen::run(&listener, &gate, std::future::pending(), |stream, _, entry| {
        let handle = handle.clone();
        let service = service_fn(move |request| {
            let admitted = entry.admit(Identity::Anonymous);
            let answer = admitted.map_or_else(|_| busy_connection(), |()| handle(request));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service);
        async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection ended");
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn socket_of_a_killed_process_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.sock");
        // Closing it leaves the file, as a kill does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(live);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    }
}

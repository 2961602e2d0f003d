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
use tokio::{net::UnixListener, time::sleep};
use tracing::{debug, warn};

use super::answer::Answer;

/// Time to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Pause after an accept that failed, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on a socket. That of a killed process is replaced.
///
/// # Errors
/// Another process listens on it, something else is at the path, or it cannot be created.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is not a socket"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(ErrorKind::AddrInUse.into()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

/// Serves connections until the task ends.
pub async fn serve(
    listener: UnixListener,
    handle: impl Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handle = handle.clone();
        let service =
            service_fn(move |request| std::future::ready(Ok::<_, Infallible>(handle(request))));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection ended");
            }
        });
    }
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

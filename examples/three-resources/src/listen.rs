//! Serves HTTP on a listener until SIGTERM or SIGINT.

use std::time::Duration;

use axum::Router;
use digits::stop::Stop;
use tokio::{net::TcpListener, time::sleep};

use crate::error::Error;

/// How long a shutdown waits for requests in progress.
const GRACE: Duration = Duration::from_millis(500);

/// Serves until a signal; requests in progress get another 500 ms.
///
/// # Errors
/// When the address is in use, or signal handlers cannot be installed.
pub async fn serve(address: &str, routes: Router) -> Result<(), Error> {
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let mut stop = Stop::listen()?;
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    eprintln!("listening on {}", listener.local_addr().map_err(failed)?);
    let (stopping, mut stopped) = tokio::sync::watch::channel(false);
    let mut graceful = stopped.clone();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        // An error means that the signal task has ended, which stops the server as well.
        let _ = graceful.wait_for(|stop| *stop).await;
    });
    tokio::spawn(async move {
        stop.requested().await;
        stopping.send_replace(true);
    });
    let late = async move {
        let _ = stopped.wait_for(|stop| *stop).await;
        sleep(GRACE).await;
    };
    tokio::select! {
        ended = server => ended.map_err(failed),
        () = late => Ok(()),
    }
}

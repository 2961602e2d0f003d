//! Runs the program: opens the data directory, serves until SIGTERM.

use std::sync::Arc;

use neptune_pinned_tls::TlsKey;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{aggregator::Aggregator, cli::Cli, error::Error, fetch, http::server, work};

/// Serves until SIGTERM or SIGINT, and then stops at once: all state is on the disk.
///
/// # Errors
/// The key, the data directory or the address cannot be used.
pub async fn run(cli: Cli) -> Result<(), Error> {
    // The first process of a container has no default handlers.
    let handler = |kind| signal(kind).map_err(|error| Error::Start(error.to_string()));
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    let aggregator = Arc::new(Aggregator::open(&cli.data_dir)?);
    let key = match cli.key_file {
        // A missing file of this flag is an error: nobody would know a new key.
        Some(path) => {
            let pem = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
            TlsKey::from_pem(&pem, &path.display().to_string())?
        }
        None => TlsKey::load_or_generate(&cli.data_dir.join("tls.key"))?,
    };
    let listener = server::bind(cli.listen).await?;
    let address = listener.local_addr().unwrap_or(cli.listen);
    info!(%address, pin = key.pin().0, "serving");
    tokio::select! {
        () = server::serve(listener, key, Arc::clone(&aggregator)) => {}
        () = work::run(aggregator, fetch::client()?) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("stopping");
    Ok(())
}

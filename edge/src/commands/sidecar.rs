//! The `sidecar` command: the embedded broker and the relay of one cloud worker in a Pod.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use neptune_edge_broker::{BrokerSettings, WorkerNotes};
use neptune_program::listen::Refusals;
use neptune_wire::{TopicPrefix, WorkerName};
use tokio::{
    net::TcpStream,
    sync::mpsc,
    time::{error::Elapsed, timeout},
};
use tracing::info;

use crate::{
    Error,
    cli::SidecarArgs,
    sidecar::{poster::Poster, relay, reports::Reports},
};

/// How long the broker may take to accept a connection of `--check`.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs until `stop` resolves; with `--check` it only connects to the broker.
///
/// # Errors
/// An invalid flag, an address in use, or a broker that failed.
pub async fn sidecar(args: SidecarArgs, stop: impl Future<Output = ()>) -> Result<(), Error> {
    if args.check {
        return check(args.listen).await;
    }
    let invalid = |flag, problem: String, remedy| Error::Config { flag, problem, remedy };
    let worker: WorkerName = args.worker_name.parse().map_err(|error| {
        invalid("--worker-name", format!("{error}"), "use the value of WORKER_NAME")
    })?;
    let prefix: TopicPrefix = args.topic_prefix.parse().map_err(|error| {
        invalid("--topic-prefix", format!("{error}"), "use the controller's prefix")
    })?;
    if !args.listen.ip().is_loopback() {
        let problem = format!("{} is not a loopback address", args.listen);
        return Err(invalid("--listen", problem, "use 127.0.0.1:1884"));
    }
    if args.worker_password.is_empty() {
        return Err(invalid("--worker-password", "is empty".to_owned(), "set a password"));
    }
    let poster = Poster::new(&args.report_url)?;
    let reports = Arc::new(Reports::default());
    let added = Arc::clone(&reports);
    let settings = BrokerSettings {
        listen: args.listen,
        prefix,
        allow_anonymous: false,
        data_dir: None,
        consumer: Some(Arc::new(move |payload| added.add(&payload))),
        refusals: Refusals::default(),
    };
    let (send_failure, mut failure) = mpsc::channel(1);
    let failed = move |error| async move { drop(send_failure.send(error).await) };
    let broker = neptune_edge_broker::start(&settings, WorkerNotes::new(|| ()), failed)?;
    broker.credentials.permit(&worker, &args.worker_password);
    info!(%worker, listen = %args.listen, version = env!("CARGO_PKG_VERSION"), "sidecar started");
    tokio::select! {
        () = relay::run(&reports, &poster, stop) => Ok(()),
        Some(error) = failure.recv() => Err(error.into()),
    }
}

async fn check(listen: SocketAddr) -> Result<(), Error> {
    let connected = timeout(CHECK_TIMEOUT, TcpStream::connect(listen)).await;
    let late = |_: Elapsed| io::Error::from(io::ErrorKind::TimedOut);
    let connected = connected.map_err(late).and_then(|connected| connected);
    connected.map(drop).map_err(|source| Error::SidecarBroker { listen, source })
}

//! The command line: parses arguments, starts the server, writes the kubeconfig and waits for a
//! signal.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// An in-memory Kubernetes API for the demo and the tests of Neptune.
#[derive(Debug, Parser)]
#[command(name = "devcluster", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve an empty cluster until SIGTERM or SIGINT.
    ///
    /// All objects are lost when it stops, it runs no workloads, and every client is its
    /// administrator: listen on loopback only.
    ///
    /// Example:
    ///
    ///   devcluster run --kubeconfig /tmp/dev.kubeconfig &
    ///   kubectl --kubeconfig /tmp/dev.kubeconfig get nodes
    #[command(verbatim_doc_comment)]
    Run {
        /// Address to listen on; port 0 selects a free port.
        #[arg(
            long,
            value_name = "ADDRESS",
            env = "DEVCLUSTER_LISTEN",
            default_value = "127.0.0.1:0"
        )]
        listen: SocketAddr,
        /// File for a kubeconfig, written when the server answers.
        #[arg(long, value_name = "FILE", env = "DEVCLUSTER_KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
        /// Name of the context, the cluster and the user in the kubeconfig.
        #[arg(long, value_name = "NAME", env = "DEVCLUSTER_CONTEXT", default_value = "devcluster")]
        context: String,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let Command::Run { listen, kubeconfig, context } = Arguments::parse().command;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|source| devcluster::Error::Listen { address: listen.to_string(), source })?;
    let address = listener.local_addr().context("reading the address that was bound")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let server = tokio::spawn(devcluster::serve(listener, async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }));
    // The listener is bound and its server runs, so clients of the kubeconfig can connect.
    if let Some(path) = kubeconfig {
        devcluster::kubeconfig::write(&path, address, &context)
            .map_err(|source| devcluster::Error::Kubeconfig { path, source })?;
    }
    tracing::info!("serving a Kubernetes API on http://{address}");
    server.await.context("the server panicked")??;
    Ok(())
}

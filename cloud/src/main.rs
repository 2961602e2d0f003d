//! `neptune-cloud`: reads the command line, sets up logs and TLS, and runs the command.

use std::{io::IsTerminal as _, process::ExitCode};

use clap::Parser as _;
use neptune_cloud::{
    cli::{Cli, Command, LogFormat},
    commands,
    error::Class,
    run,
};
use tracing_subscriber::EnvFilter;

/// The exit code for wrong flags and settings, the same as clap's.
const USAGE: u8 = 2;

/// The client library logs each failed request as an error. The controller logs an outage of the
/// API server once.
const LOG_FILTER: &str =
    "warn,kube_client::client::builder=off,neptune_cloud=info,neptune_link=info";

fn main() -> ExitCode {
    // Before any TLS connection. It fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = match Cli::parse().command {
        Command::Crds { output } => commands::crds(output.as_deref()),
        Command::Run(flags) => {
            set_up_logs(flags.log_format);
            runtime().block_on(run::run(*flags))
        }
        Command::RecordMetrics(flags) => runtime().block_on(commands::record_metrics(flags)),
        Command::Trust(flags) => runtime().block_on(commands::trust(flags)),
        Command::Status(flags) => runtime().block_on(commands::status(flags)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("neptune-cloud: {error}");
            match error.class() {
                Class::Configuration => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("threads and an I/O driver are available")
}

fn set_up_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

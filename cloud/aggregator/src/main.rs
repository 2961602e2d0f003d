//! `neptune-aggregator`: reads the command line, sets up logs and TLS, and serves.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use clap::Parser as _;
use neptune_aggregator::{
    cli::{Cli, LogFormat},
    command,
};
use tracing_subscriber::EnvFilter;

/// The exit code for wrong flags and settings, the same as clap's.
const USAGE: u8 = 2;
/// The default log filter. The platform verifier logs errors that the download logs too.
const LOG_FILTER: &str =
    "warn,neptune_aggregator=info,neptune_content=info,rustls_platform_verifier=off";

fn main() -> ExitCode {
    // Before any TLS connection. It fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    set_up_logs(cli.log_format);
    let runtime = tokio::runtime::Runtime::new().expect("threads and an I/O driver are available");
    let result = runtime.block_on(command::run(cli));
    // Threads that check updates or compute weights do not delay the exit.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("neptune-aggregator: {error}");
            ExitCode::from(if error.is_configuration() { USAGE } else { 1 })
        }
    }
}

fn set_up_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

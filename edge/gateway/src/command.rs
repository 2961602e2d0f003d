//! The commands of the program: sets up logging and threads, runs a command, and decides the exit
//! code.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::{
    calibrate::calibrate,
    cli::{Cli, Command, ProxyArgs, RunArgs},
    error::Error,
    proxy,
    run::{check, start},
};

/// Exit code of errors that a restart does not solve, as of clap's own errors.
const INVALID_CONFIGURATION: u8 = 2;
/// The default log filter. The platform verifier logs errors that the gateway logs too.
const DEFAULT_LOG: &str = "info,rustls_platform_verifier=off";

/// Runs the command and returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let has_colors = io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colors)
        .with_writer(io::stderr)
        .init();
    let result = match cli.command {
        Command::Run(args) => serve(&args),
        Command::Check(args) => check(&args.config),
        Command::Proxy(args) => serve_proxy(&args),
        Command::Calibrate(args) => calibrate(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("neptune-gateway: {error}");
            ExitCode::from(if error.is_configuration() { INVALID_CONFIGURATION } else { 1 })
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn serve(args: &RunArgs) -> Result<(), Error> {
    // The first process of a container has no default handlers.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = start(&args.config, &args.report)?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    info!("stopping: requests in flight are answered first");
    running.stop().await;
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn serve_proxy(args: &ProxyArgs) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    proxy::start(args.listen, &args.target_file, stop)?.ended().await;
    Ok(())
}

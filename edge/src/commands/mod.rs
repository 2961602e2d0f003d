//! The commands of the program: sets up logging and threads, runs a command, and decides the exit
//! code.

pub mod doctor;
mod fetch;
mod sidecar;

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::{
    Error,
    cli::{Cli, Command, LogFormat},
    config::{self, Config, s3_from_environment},
    error::ErrorClass,
    startup,
};

/// Exit code of errors that a restart does not solve, as of clap's own errors.
const INVALID_CONFIGURATION: u8 = 2;
/// The default log filter. The platform verifier logs errors that the agent logs too.
const DEFAULT_LOG: &str = "info,rustls_platform_verifier=off";

/// Runs the command and returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    if let Err(error) = log(&cli) {
        eprintln!("neptune-edge: {error:#}");
        return ExitCode::from(INVALID_CONFIGURATION);
    }
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match execute(cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("neptune-edge: {error:#}");
            let is_configuration = error
                .downcast_ref::<Error>()
                .is_some_and(|error| error.class() == ErrorClass::Configuration);
            ExitCode::from(if is_configuration { INVALID_CONFIGURATION } else { 1 })
        }
    }
}

/// Returns `false` if the doctor found errors.
fn execute(cli: Cli) -> anyhow::Result<bool> {
    // The agent's loop runs on this thread; links, downloads and Docker calls on two others.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_keep_alive(Duration::from_secs(1))
        .enable_all()
        .build()
        .context("cannot start the agent's threads")?;
    let result = runtime.block_on(async {
        match cli.command {
            Command::Run(args) => {
                let config = config::config(*args)?;
                let policy =
                    neptune_models::StorePolicy { s3: s3_from_environment()?, ..config.policy };
                let config = Config { policy, ..config };
                // The future holds the whole state of the agent.
                Box::pin(startup::run(config, stop_signal()?)).await?;
                Ok(true)
            }
            Command::Doctor(args) => Ok(Box::pin(doctor::doctor(*args)).await),
            Command::Fetch(args) => {
                fetch::fetch(args).await?;
                Ok(true)
            }
            Command::Sidecar(args) => {
                sidecar::sidecar(args, stop_signal()?).await?;
                Ok(true)
            }
        }
    });
    // Does not wait for threads: a blocked disk would keep one indefinitely. Files survive that
    // like a power cut.
    runtime.shutdown_background();
    result
}

/// Resolves after SIGTERM or SIGINT, which end the program otherwise.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

fn log(cli: &Cli) -> anyhow::Result<()> {
    let text = cli
        .log_filter
        .clone()
        .or_else(|| std::env::var("RUST_LOG").ok())
        .filter(|text| !text.is_empty());
    let filter = match text {
        Some(text) => EnvFilter::try_new(&text).with_context(|| {
            format!(
                "--log-filter: invalid filter {text:?}; use for example `debug` or `info,neptune_edge=debug`"
            )
        })?,
        // The doctor prints a report instead.
        None if matches!(cli.command, Command::Doctor(_)) => EnvFilter::new("off"),
        None => EnvFilter::new(DEFAULT_LOG),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Text => {
            log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
        }
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

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

/// The client library logs each failed request, and each watch that ends or is refused. The
/// controller logs an outage of the API server, and a refused watch, once.
const LOG_FILTER: &str = "warn,kube_client::client=error,kube_client::client::tls=warn,\
    kube_client::client::builder=off,kube_runtime::watcher=error,neptune_cloud=info,neptune_link=info";

fn main() -> ExitCode {
    // Before any TLS connection. It fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = match Cli::parse().command {
        Command::Crds { output } => commands::crds(output.as_deref()),
        Command::Run(flags) => {
            set_up_logs(flags.log_format);
            abort_on_panic();
            runtime().block_on(run::run(*flags))
        }
        Command::RecordMetrics(flags) => runtime().block_on(commands::record_metrics(flags)),
        Command::Training { command } => runtime().block_on(commands::training(command)),
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

/// Ends the process at a panic of any thread. Otherwise one that holds a lock would make every later
/// message fail while `/livez` is green; a new process recovers everything from the API server and
/// the agents.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{
        os::unix::process::ExitStatusExt as _,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn retries_of_the_client_library_are_not_logged() {
        let lines = Lines::default();
        let writer = lines.clone();
        let logs = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(LOG_FILTER))
            .without_time()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(logs.finish(), || {
            tracing::warn!(target: "kube_client::client", "eof in poll");
            tracing::error!(target: "kube_client::client::builder", "failed with status");
            tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403");
            tracing::warn!(target: "kube_client::client::tls", "failed to reload CA bundle");
            tracing::warn!(target: "kube_client::config", "overriding cluster URL");
            tracing::info!(target: "neptune_cloud::cache", "watch recovered");
            tracing::info!(target: "neptune_link", "connected");
        });
        let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let targets: Vec<_> =
            logged.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        let expected = [
            "kube_client::client::tls:",
            "kube_client::config:",
            "neptune_cloud::cache:",
            "neptune_link:",
        ];
        assert_eq!(targets, expected, "{logged}");
    }

    #[test]
    fn panic_of_any_thread_ends_the_process() {
        const NAME: &str = "tests::panic_of_any_thread_ends_the_process";
        if std::env::var_os("NEPTUNE_TEST_PANIC").is_some() {
            abort_on_panic();
            let _ = std::thread::spawn(|| panic!("by the test")).join();
            return;
        }
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env("NEPTUNE_TEST_PANIC", "1");
        let output = command.output().unwrap();
        assert!(output.status.signal().is_some(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("by the test"), "{output:?}");
    }
}

//! `neptune-cloud`: reads the command line, and runs the command.

use std::process::ExitCode;

use clap::Parser as _;
use neptune_cloud::{
    cli::{BrokerFiles, Cli, Command},
    commands,
    error::Error,
    run,
};
use neptune_cloud_kinds::error_class::Class;
use neptune_program::{Program, Threads};

/// The client library logs each failed request, and each watch that ends or is refused. The
/// controller logs an outage of the API server, and a refused watch, once.
const LOG_FILTER: &str = "warn,kube_client::client=error,kube_client::client::tls=warn,\
    kube_client::client::builder=off,kube_runtime::watcher=error,neptune_cloud=info,neptune_link=info";

fn main() -> ExitCode {
    let Cli { command, logs } = Cli::parse();
    let is_service = matches!(
        command,
        Command::Run(_)
            | Command::JoinServer(_)
            | Command::BrokerFiles(BrokerFiles { check: false, .. })
    );
    if matches!(command, Command::Run(_)) {
        abort_on_panic();
    }
    // The other commands print their result, and one error.
    let log_filter = if is_service { LOG_FILTER } else { "off" };
    let program = Program { name: "neptune-cloud", log_filter, threads: Threads::Cpus };
    program.run(&logs, execute(command), |error| error.class() == Class::Configuration)
}

async fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Crds { output } => commands::crds(output.as_deref())?,
        Command::Run(flags) => Box::pin(run::run(*flags)).await?,
        Command::ClientKey(flags) => commands::client_key(&flags)?,
        Command::Resolve(flags) => commands::resolve(flags).await?,
        Command::RecordMetrics(flags) => commands::record_metrics(flags).await?,
        Command::Training { command } => commands::training(command).await?,
        Command::Rollout { command } => commands::rollout(command).await?,
        Command::Restart(flags) => commands::restart(flags).await?,
        Command::Enroll(flags) => commands::enroll(flags).await?,
        Command::JoinServer(flags) => commands::join_server(flags).await?,
        Command::ObserverCertificate(flags) => commands::observer_certificate(flags).await?,
        Command::BrokerFiles(flags) => commands::broker_files(flags).await?,
        Command::Trust(flags) => commands::trust(flags).await?,
        Command::Nodes(flags) => commands::nodes(flags).await?,
        Command::Logs(flags) => commands::logs(flags).await?,
        Command::Revoke(flags) => commands::revoke(flags).await?,
        Command::Status(flags) => commands::status(flags).await?,
    }
    Ok(ExitCode::SUCCESS)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{
        os::unix::process::ExitStatusExt as _,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::EnvFilter;

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
            tracing::info!(target: "neptune_cloud_runtime::cache", "watch recovered");
            tracing::info!(target: "neptune_link", "connected");
        });
        let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let targets: Vec<_> =
            logged.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        let expected = [
            "kube_client::client::tls:",
            "kube_client::config:",
            "neptune_cloud_runtime::cache:",
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

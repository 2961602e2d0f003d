//! `neptune-aggregator`: reads the command line, and serves.

use std::process::ExitCode;

use clap::Parser as _;
use neptune_aggregator::{cli::Cli, command, error::Error};
use neptune_program::{Program, Threads};

/// The platform verifier logs errors that the download logs too.
const LOG_FILTER: &str =
    "warn,neptune_aggregator=info,neptune_content=info,rustls_platform_verifier=off";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let program =
        Program { name: "neptune-aggregator", log_filter: LOG_FILTER, threads: Threads::Cpus };
    let logs = cli.logs.clone();
    let command = async { command::run(cli).await.map(|()| ExitCode::SUCCESS) };
    program.run(&logs, command, Error::is_configuration)
}

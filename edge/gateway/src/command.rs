//! Runs the command of the program.

use std::process::ExitCode;

use neptune_program::{Program, Threads, stop_signal};
use tracing::info;

use crate::{
    calibrate::calibrate,
    cli::{Cli, Command, ProxyArgs, RunArgs},
    error::Error,
    proxy,
    run::{check, start},
};

/// The program. The platform verifier logs errors that the gateway logs too.
const PROGRAM: Program = Program {
    name: "neptune-gateway",
    log_filter: "info,rustls_platform_verifier=off",
    threads: Threads::Number(2),
};

/// Runs the command and returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    let Cli { command, logs } = cli;
    PROGRAM.run(&logs, execute(command), Error::is_configuration)
}

async fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Run(args) => serve(&args).await?,
        Command::Check(args) => check(&args.config)?,
        Command::Proxy(args) => serve_proxy(&args).await?,
        Command::Calibrate(args) => calibrate(&args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: &RunArgs) -> Result<(), Error> {
    let stop = stop_signal()?;
    let running = start(&args.config, &args.report)?;
    stop.await;
    info!("stopping: requests in flight are answered first");
    running.stop().await;
    Ok(())
}

async fn serve_proxy(args: &ProxyArgs) -> Result<(), Error> {
    proxy::start(args.listen, &args.target_file, stop_signal()?)?.ended().await;
    Ok(())
}

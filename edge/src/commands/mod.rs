//! The commands of the program.

mod bundle;
pub mod doctor;
mod fetch;
pub mod join;
mod leave;
mod sidecar;

use std::process::ExitCode;

use neptune_program::{Program, Threads, stop_signal};

use crate::{
    Error,
    artifacts::registry_logins::registry_logins,
    cli::{Cli, Command},
    config::{self, Config, s3_from_environment},
    error::ErrorClass,
    startup,
};

/// The default log filter. The platform verifier logs errors that the agent logs too.
const LOG_FILTER: &str = "info,rustls_platform_verifier=off";

/// Runs the command and returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    let Cli { command, logs } = cli;
    // These print a report instead.
    let log_filter = if matches!(
        command,
        Command::Doctor(_) | Command::Bundle(_) | Command::Join(_) | Command::Leave(_)
    ) {
        "off"
    } else {
        LOG_FILTER
    };
    // The agent's loop runs on the main thread; links, downloads and Docker calls on two others.
    let program = Program { name: "neptune-edge", log_filter, threads: Threads::Number(2) };
    let is_configuration = |error: &Error| error.class() == ErrorClass::Configuration;
    program.run(&logs, execute(command), is_configuration)
}

/// Fails if the doctor found errors.
async fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Run(args) => {
            let config = config::config(args.or_environment(variable))?;
            let policy = neptune_store::StorePolicy {
                s3: s3_from_environment()?,
                registry_logins: registry_logins(config.registry_config.clone()),
                ..config.policy
            };
            let config = Config { policy, ..config };
            // The future holds the whole state of the agent.
            Box::pin(startup::run(config, stop_signal().map_err(Error::Signals)?)).await?;
        }
        Command::Doctor(args) => {
            if !Box::pin(doctor::doctor(*args)).await {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bundle(args) => Box::pin(bundle::bundle(*args)).await?,
        Command::Join(args) => return Ok(Box::pin(join::join(args)).await),
        Command::Leave(args) => return Ok(Box::pin(leave::leave(args)).await),
        Command::Fetch(args) => fetch::fetch(args).await?,
        Command::Sidecar(args) => {
            sidecar::sidecar(args, stop_signal().map_err(Error::Signals)?).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The value of an environment variable, if it is text.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

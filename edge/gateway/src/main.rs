//! The binary `neptune-gateway`: parses the command line and runs the command.

use std::process::ExitCode;

use clap::Parser as _;
use neptune_gateway::cli::Cli;

fn main() -> ExitCode {
    neptune_gateway::command::run(Cli::parse())
}

//! The binary `neptune-edge`: parses the command line and runs the command.

use std::process::ExitCode;

use clap::Parser as _;
use neptune_edge::cli::Cli;

fn main() -> ExitCode {
    neptune_edge::run(Cli::parse())
}

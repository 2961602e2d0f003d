//! Runs the command that the command line names.

use std::process::ExitCode;

use clap::Parser as _;
use neptune_edge::cli::Cli;

fn main() -> ExitCode {
    neptune_edge::run(Cli::parse())
}

//! `neptune-cloud`: reads the command line, sets up logs and TLS, and hands over.

mod admission;
mod cli;
mod controllers;
mod desired;
mod downstream;
mod environment;
mod error;
mod fleet;
mod frameworks;
mod kubeconfig;
mod leader;
mod metrics;
mod model_source;
mod quantity;
mod reason;
mod run;
mod serve;
mod servers;
mod status;
mod stores;
mod transport;
mod upstream;
mod worker_name;

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
};

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use crate::{
    cli::{Cli, Command, LogFormat},
    error::{Class, Error},
};

/// The exit code of a program that was started wrong, as of clap.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything can open a TLS connection; an error would mean that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = match Cli::parse().command {
        Command::Crds { output } => crds(output.as_deref()),
        Command::Run(flags) => {
            log(flags.log_format);
            runtime().block_on(run::run(*flags))
        }
        Command::Status(flags) => runtime().block_on(status::status(flags)),
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
    tokio::runtime::Runtime::new().expect("threads can be had")
}

fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,neptune_cloud=info,neptune_link=info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

fn crds(output: Option<&Path>) -> Result<(), Error> {
    let write = |path: &Path, source| Error::Write { path: path.to_owned(), source };
    let Some(directory) = output else {
        let stream = neptune_api::crdgen::stream();
        let result = std::io::stdout().write_all(stream.as_bytes());
        return result.map_err(|source| write(Path::new("standard output"), source));
    };
    std::fs::create_dir_all(directory).map_err(|source| write(directory, source))?;
    for (name, text) in neptune_api::crdgen::files() {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|source| write(&path, source))?;
    }
    Ok(())
}

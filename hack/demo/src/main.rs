//! Runs `examples/digits`, or with `--llm` `examples/llm`, on this machine, prints its counters live
//! and checks the result.
#![allow(clippy::doc_markdown, reason = "clap shows the doc comments to users")]

mod cluster;
mod environment;
mod llm;
mod progress;
mod summary;
mod transport;

use std::{path::PathBuf, process::ExitCode, time::Instant};

use anyhow::bail;
use clap::Parser;

use crate::{
    environment::{Environment, Example},
    llm::Assistant,
    summary::Summary,
    transport::Transport,
};

/// Starts a Kubernetes API server, an MQTT broker, the controller and two agents on loopback,
/// applies examples/digits, prints its counters live and checks the result.
#[derive(Debug, Parser)]
struct Options {
    /// Keep everything running after the result, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Use the cluster of KUBECONFIG instead of the built-in Kubernetes API server.
    #[arg(long, conflicts_with = "transport")]
    cluster: bool,
    /// How the controller and the nodes exchange messages.
    #[arg(long, default_value = "mqtt")]
    transport: Transport,
    /// Run examples/llm instead, with the model file in this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    llm: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    // Every way out of this function drops the environment, which stops everything it started.
    let result = tokio::select! {
        result = demo(&options) => result,
        () = stop_signal() => {
            eprintln!("Interrupted. Stopping the demo and removing its containers.");
            return ExitCode::from(130);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let assistant = match &options.llm {
        Some(models) => Some(Assistant::start(models).await?),
        None => None,
    };
    let example = assistant.as_ref().map_or_else(Example::digits, Assistant::example);
    let environment = Environment::start(example, options.cluster, options.transport).await?;
    let result = match &assistant {
        Some(assistant) => assistant.run(&environment).await,
        None => run_example(&environment, began).await,
    };
    if result.is_err() {
        environment.print_logs();
    }
    if options.keep {
        println!("\nThe demo keeps running. {}", environment.hints());
        println!("Press Ctrl-C to stop the demo and remove its containers.");
        std::future::pending::<()>().await;
    }
    println!("\nStopping the demo and removing its containers.");
    environment.stop().await;
    result
}

/// Resolves on Ctrl-C and on SIGTERM.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

async fn run_example(environment: &Environment, began: Instant) -> anyhow::Result<()> {
    println!("{}\n", environment.hints());
    println!("Applying examples/digits.\n");
    environment.apply_example().await?;
    let (service, worker) = progress::follow(environment, began).await?;
    let summary = Summary { worker, service, model: environment.small_model().await? };
    println!("\n{summary}");
    if !summary.passed() {
        bail!("a check of the demo failed; see the table above");
    }
    Ok(())
}

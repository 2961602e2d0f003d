//! Runs `examples/digits` on this machine and tells whether it did what Neptune promises.
#![allow(clippy::doc_markdown, reason = "the texts are shown to users as they are")]

mod cluster;
mod stage;
mod verdict;
mod watch;
mod way;

use std::{process::ExitCode, time::Instant};

use anyhow::{Context, bail};
use clap::Parser;

/// Starts a Kubernetes API, a broker, the controller and two agents on loopback, applies
/// examples/digits and follows its counters to the end.
#[derive(Debug, Parser)]
struct Options {
    /// Leave everything running after the result, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Use the cluster that KUBECONFIG names in place of the built-in API.
    #[arg(long, conflicts_with = "transport")]
    cluster: bool,
    /// How the controller and the nodes reach each other: `mqtt`, by one broker, or `eventbus`, by an
    /// emulator of KubeEdge's router and EventBus and a mosquitto on each node.
    #[arg(long, default_value = "mqtt")]
    transport: way::Transport,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    // Whatever ends this function drops the stage, and with it all that was started.
    let ended = tokio::select! {
        ended = demo(&options) => ended,
        () = told_to_end() => {
            eprintln!("interrupted, cleaning up");
            return ExitCode::from(130);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut stage = stage::Stage::set(options.cluster, options.transport).await?;
    let ended = follow(&mut stage, began).await;
    if ended.is_err() {
        stage.print_logs();
    }
    if options.keep {
        println!("\nEverything goes on. {}\nCtrl-C ends it and cleans up.", stage.hints());
        std::future::pending::<()>().await;
    }
    stage.clear().await;
    ended
}

/// Resolves on Ctrl-C and on SIGTERM.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

async fn follow(stage: &mut stage::Stage, began: Instant) -> anyhow::Result<()> {
    println!("{}\n", stage.hints());
    stage.apply_example().await?;
    let status = watch::to_the_end(stage, began).await?;
    let worker =
        verdict::workers_own_words(&stage.edge_container()?).context("edge worker's log")?;
    let verdict = verdict::judge(&status, &stage.small_model().await?, &worker);
    println!("\n{verdict}");
    if !verdict.holds() {
        bail!("the demo did not show what it should");
    }
    Ok(())
}

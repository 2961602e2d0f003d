//! The command line: parses arguments, starts the emulator, prints its addresses, waits for a
//! signal.

#![allow(clippy::doc_markdown, reason = "clap shows the doc comments to users")]

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use eventbus_emulator::{BrokerAddress, Emulator, Options, control, watch};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Emulates KubeEdge's router and EventBus with their faults, for tests.
#[derive(Debug, Parser)]
#[command(name = "eventbus-emulator", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run until SIGTERM or SIGINT. Prints `router=http://...` and `control=http://...` once both
    /// are open.
    Run(Run),
    /// Print the CRDs of Rule and RuleEndpoint.
    Crds,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Address of the router. Port 0 selects a free port. It answers once a Rule with a path
    /// exists.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    router_listen: SocketAddr,
    /// Address of the control endpoint (POST /control/<action>/<node>).
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    control_listen: SocketAddr,
    /// An edge node and its local broker: edge0=mqtt://127.0.0.1:1883. Can be repeated.
    #[arg(long = "node", value_name = "NAME=URL", value_parser = node)]
    nodes: Vec<(String, BrokerAddress)>,
    /// Watch Rules and RuleEndpoints in this cluster.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// YAML file with Rules and RuleEndpoints that exist from the start.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Factor for all durations: 0.01 turns 30 s into 300 ms.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Seed of the random numbers for delays and losses.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn node(text: &str) -> Result<(String, BrokerAddress), String> {
    let (name, url) = text.split_once('=').ok_or("must be NAME=mqtt://host:port")?;
    Ok((name.to_owned(), url.parse().map_err(|error: eventbus_emulator::Error| error.to_string())?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Arguments::parse().command {
        Command::Run(arguments) => run(arguments).await,
        Command::Crds => {
            print!("{}", eventbus_emulator::CRDS);
            Ok(())
        }
    }
}

async fn run(arguments: Run) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let Run { router_listen: listen, nodes, scale, seed, .. } = arguments;
    let emulator = Emulator::start(Options { listen, nodes, scale, seed }).await?;
    if let Some(path) = arguments.rules {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        emulator.apply_yaml(&text)?;
    }
    let client = match arguments.kubeconfig {
        Some(path) => Some(client(&path).await?),
        None => None,
    };
    let listener = TcpListener::bind(arguments.control_listen)
        .await
        .with_context(|| format!("listening on {}", arguments.control_listen))?;
    let control = listener.local_addr().context("reading the address of the control endpoint")?;
    println!("router={}\ncontrol=http://{control}", emulator.router_url());
    let watched = async {
        match &client {
            Some(client) => watch::follow(&emulator, client).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = watched => {}
        served = control::serve(emulator.clone(), listener) => served.context("control endpoint")?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn client(path: &std::path::Path) -> anyhow::Result<kube::Client> {
    let read =
        Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

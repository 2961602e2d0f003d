//! What the programs cost and how quick they are, on this machine: prints figures, judges none. Start it by
//! `hack/bench.sh`, which builds what it runs.

#![allow(clippy::unwrap_used)] // what cannot be measured ends the run

mod agent;
mod controller;
mod figures;

use clap::Parser;

/// What the programs cost and how quick they are, on this machine.
#[derive(Parser)]
struct Arguments {
    /// Nodes, and services, that the controller is measured with.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Messages that a worker says to the agent.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Services that are started one after the other on a node.
    #[arg(long, default_value_t = 20)]
    starts: u32,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    agent::measure(arguments.messages, arguments.starts).await;
    controller::measure(arguments.nodes).await;
}

//! Measures memory, CPU time and latencies of the programs on this machine, and prints them without
//! judging them. Run it with `hack/bench.sh`, which builds the programs.

#![allow(clippy::unwrap_used)] // a failed measurement ends the run

mod agent;
mod controller;
mod figures;

use clap::Parser;

/// Measures memory, CPU time and latencies of the controller and of the agent on this machine.
#[derive(Parser)]
struct Arguments {
    /// Number of nodes, and of services, for the controller.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Number of messages that a worker publishes to the agent.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Number of services that are started on a node, one after the other.
    #[arg(long, default_value_t = 20)]
    starts: u32,
    /// Measure only the controller.
    #[arg(long)]
    controller_only: bool,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if !arguments.controller_only {
        agent::measure(arguments.messages, arguments.starts).await;
    }
    controller::measure(arguments.nodes).await;
}

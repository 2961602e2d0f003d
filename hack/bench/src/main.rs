//! Measures memory, CPU time and latencies of the programs on this machine, and prints them without
//! judging them. Run it with `hack/bench.sh`, which builds the programs.

#![allow(clippy::unwrap_used)] // a failed measurement ends the run

mod agent;
mod controller;
mod cost;
mod figures;
mod fleet;

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
    /// Measure only what an event costs the controller, with heartbeats, reconnects and all kinds of
    /// objects, in a small fleet and in one of --nodes nodes.
    #[arg(long)]
    cost: bool,
    /// With --cost: number of nodes, and of services, of the small fleet.
    #[arg(long, default_value_t = 100)]
    few: u32,
    /// With --cost: number of `InferenceModels` of the large fleet.
    #[arg(long, default_value_t = 500)]
    servers: u32,
    /// With --cost: number of `TrainingModels` of each fleet.
    #[arg(long, default_value_t = 20)]
    trainings: u32,
    /// With --cost: number of nodes that are dead when the controller restarts.
    #[arg(long, default_value_t = 200)]
    dead: u32,
    /// With --cost: number of rounds of reports.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// With --cost: the controller creates the `EdgeNodes` of the fleet while it is measured. Without,
    /// they exist.
    #[arg(long)]
    new_fleet: bool,
    /// Measure only one service on all nodes of a fleet, for each of these numbers of nodes.
    #[arg(long, value_delimiter = ',')]
    fleet: Vec<u32>,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if arguments.cost {
        let Arguments { nodes, few, servers, trainings, dead, rounds, new_fleet, .. } = arguments;
        let (nodes, is_new) = ([few, nodes], new_fleet);
        let sizes = cost::Sizes { nodes, servers, trainings, dead, rounds, is_new };
        return cost::measure(sizes).await;
    }
    if !arguments.fleet.is_empty() {
        return fleet::measure(&arguments.fleet).await;
    }
    if !arguments.controller_only {
        agent::measure(arguments.messages, arguments.starts).await;
    }
    controller::measure(arguments.nodes).await;
}

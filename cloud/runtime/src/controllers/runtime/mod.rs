//! The generic part of every controller. One reconcile over the [`Controller`] trait: queue,
//! triggers, plan execution, status writer, Events.

mod apply;
mod collected;
mod config_memory;
mod config_reads;
mod context;
mod controller;
#[cfg(test)]
mod cost_tests;
mod event_queue;
mod events;
mod execute;
mod merge_patch;
mod node_keys;
mod node_queries;
mod peer_rosters;
mod queue;
mod recent_events;
mod reconcile;
mod rosters;
#[cfg(test)]
mod silence_tests;
mod state;
mod status_writer;
#[cfg(test)]
mod tests;
mod triggers;
mod turns;
mod write_budget;

pub use self::{
    config_reads::read_config,
    context::{Context, NODES_PER_LOCK},
    controller::{AgentChange, Cause, Controller},
    events::{publish_event_about, queue_event},
    merge_patch::merge_patch,
    queue::{publish_waiting, run_all},
    rosters::publish_rosters,
    state::Stateful,
    triggers::{dispatch, synced},
    write_budget::WritePace,
};

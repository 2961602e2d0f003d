//! The nodes: what each should have, and what they report. Pure.

mod backlog;
mod cloud_workers;
mod contents;
mod counters;
mod delays;
mod desired;
mod evaluations;
mod incomplete;
mod node_desired;
mod node_keys;
pub mod observed;
mod partners;
mod presence;
mod reports;
mod rosters;
mod rows;
mod state;

pub use self::{
    cloud_workers::CloudWorkerReport,
    counters::{CounterReport, RefusedCounters, may_count},
    desired::{FleetDesired, Generations, Requirements, Retained},
    evaluations::Evaluation,
    node_keys::{KeyChange, NodeKey},
    partners::{MAX_PARTNERS, PeerPair},
    presence::Presence,
    rosters::{PeerFacts, Rosters},
    rows::{Counted, Rows},
    state::{Affected, FleetState},
};

//! The nodes: what each should have, and what they report.

mod backlog;
mod cloud_workers;
mod contents;
mod delays;
mod desired;
mod evaluations;
mod incomplete;
mod inventories;
mod node_desired;
pub mod observed;
mod partners;
mod presence;
mod refused;
mod reports;
mod rosters;
pub mod rows;
mod state;

pub use self::{
    cloud_workers::CloudWorkerReport,
    contents::{NodeContents, encode_contents},
    desired::{FleetDesired, Generations, Requirements, Retained, pending::PendingPlan},
    evaluations::Evaluation,
    partners::{MAX_PARTNERS, PeerPair},
    presence::Presence,
    refused::RefusedCounters,
    rosters::{PeerFacts, Rosters},
    rows::{Counted, CounterReport, PendingSlice, SliceWrite},
    state::{Affected, FleetState, SilentNodes},
};

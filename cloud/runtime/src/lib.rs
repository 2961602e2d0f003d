//! What the controller does with the Kubernetes API: watches its kinds, reconciles their objects,
//! writes their statuses, and judges writes in the admission webhook.
//!
//! What to do is decided in `neptune-cloud-kinds`; `neptune-cloud-fleet` connects to the nodes. The
//! folders depend on each other in one direction: `admission`, `join`, `log_requests`, `slices` and
//! `worker_reports` on
//! `controllers`, these on `upstream`, this on `cache`, and all on `kubernetes` and `training`.

pub mod admission;
pub mod cache;
mod controllers;
mod error;
pub mod health;
pub mod join;
pub mod kubernetes;
mod log_requests;
mod slices;
mod training;
pub mod upstream;
pub mod worker_reports;

pub use self::{
    controllers::{
        edge_nodes::write_edge_nodes,
        runtime::{
            Context, dispatch, merge_patch, publish_rosters, publish_waiting, run_all, synced,
        },
    },
    error::Error,
    log_requests::answer_log_requests,
    slices::{flush_slices, follow_deletions, load_slices, write_slices},
};

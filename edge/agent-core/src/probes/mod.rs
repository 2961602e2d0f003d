//! The probes of workers: when each is run, and what the results mean for the container. The agent
//! runs them.

mod run;
mod workers;

pub use workers::{DueProbe, ProbedContainer, WorkerProbes};

//! Runs the aggregators of this node as containers, and relays between them and the controller. The
//! agent has their keys, so that it is their controller on the node.

mod files;
mod relay;
pub mod run;
mod status;
pub mod sweep;

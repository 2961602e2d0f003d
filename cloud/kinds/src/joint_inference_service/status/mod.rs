//! The status of a service: what is observed becomes conditions, counters and Events.

pub mod agent;
mod availability;
pub mod conditions;
#[cfg(test)]
mod counter_tests;
pub mod deployment;
#[cfg(test)]
mod earlier_controllers;
mod edge_workers;
pub mod events;
#[cfg(test)]
pub mod fixtures;
pub mod gateway;
pub mod next;
pub mod observed;
pub mod silence;

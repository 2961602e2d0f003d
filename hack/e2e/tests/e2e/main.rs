//! Neptune as a user meets it: kubectl on one side, containers on the other.
#![allow(clippy::unwrap_used, clippy::panic)]

mod dataset;
mod demo;
mod digits;
mod helmet;
mod kubeedge;
mod model;
mod power;
mod rights;
mod sample;
mod serving;
mod trouble;

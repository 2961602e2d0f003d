//! Neptune as a user meets it: kubectl on one side, containers on the other.
#![allow(clippy::unwrap_used, clippy::panic)]

mod demo;
mod digits;
mod helmet;
mod power;
mod serving;
mod trouble;

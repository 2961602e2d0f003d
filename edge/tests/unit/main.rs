//! Tests of the library's pure parts and of its database, without a broker or Docker.
#![allow(clippy::disallowed_methods)]

mod doctor;
mod storage;

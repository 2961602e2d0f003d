//! The gateway between a scripted edge and a scripted cloud, over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value, reason = "tests")]

mod addresses;
mod attacks;
mod calibrate;
mod capture;
mod chain;
mod clients;
mod completions;
mod edge_errors;
mod faults;
mod generated;
mod grpc;
mod grpc_faults;
mod grpc_server;
mod harness;
mod hosts;
mod http;
mod limits;
mod memory;
mod oip;
mod oip_binary;
mod problems;
mod process;
mod refusals;
mod streams;
mod tfserving;
mod tls;

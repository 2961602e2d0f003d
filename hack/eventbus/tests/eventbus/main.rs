//! Every property of KubeEdge that README.md lists, checked on the emulator with real mosquittos.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::doc_markdown, reason = "the names of KubeEdge components are not code")]

mod downstream;
mod faults;
mod harness;
mod program;
mod rules;
mod upstream;

//! Each fact about KubeEdge that the emulator claims, against real mosquittos. README.md has the table.
#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::doc_markdown, reason = "the names of KubeEdge's parts are no code")]

mod bed;
mod downstream;
mod faults;
mod program;
mod rules;
mod upstream;

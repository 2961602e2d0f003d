//! The devices below `/dev`: looks at them, and follows which of the offered ones are present. What
//! that means is decided in `devices` of `neptune-agent-core`.

pub mod scan;
pub mod watch;

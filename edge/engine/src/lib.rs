//! The client of the node's Docker engine: observes containers, and has the one supervisor that
//! adopts, starts, watches and removes them; pulls and removes images. What to do is decided in `neptune-agent-core`; the results are
//! [`EngineEvent`](event::EngineEvent)s or values.

mod containers;
mod create;
pub mod describe;
mod devices;
pub mod docker;
pub mod event;
mod exec;
pub mod former_nodes;
pub mod image_collector;
pub mod image_pulls;
mod images;
mod inspect;
mod logs;
mod mode_archive;
pub mod networks;
pub mod registry_config;
pub mod supervisor;
mod volumes;
pub mod watch;

#[cfg(test)]
mod tests {
    pub mod fake_engine;
}

//! The end-to-end tests' fixture: a whole fleet as real processes, with names of its own, so that
//! tests can run in parallel. The parts that other tests need as well are in `hack/harness`.
//!
//! With `KUBECONFIG` set the tests use that cluster, else a `devcluster` of their own. A fixture
//! stops and removes everything it started when it is dropped, also after a panic: processes,
//! containers, objects.

#![allow(clippy::panic, clippy::unwrap_used)] // a fixture fails by panicking

mod aggregator;
mod expected;
mod fleet;
pub mod idle;
mod kubeedge;
mod launch;
mod model_server;
mod real_kubeedge;
mod session_server;
mod shell_service;
mod slow_origin;

pub use aggregator::AggregatorProcess;
pub use expected::WorkerObserver;
pub use fleet::{Fleet, KillTarget, Transport, is_running, totals};
pub use kubeedge::KubeEdge;
pub use launch::GATEWAY_IMAGE;
pub use model_server::ModelServer;
pub use real_kubeedge::NodeBroker;
pub use session_server::SessionServer;
pub use shell_service::ShellService;
pub use slow_origin::SlowOrigin;

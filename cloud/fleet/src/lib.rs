//! The nodes: the connection to them, how the desired state of each is published, and the state that
//! their reports update.
//!
//! The modules depend on each other in one direction: `publisher` on `transport`, and this on
//! `receiver` and `token_key`.

mod error;
mod publisher;
pub mod receiver;
pub mod token_key;
mod transport;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_cloud_kinds::fleet::FleetState;
use neptune_cloud_metrics::NodeState;

pub use self::{
    error::Error,
    publisher::Publisher,
    transport::{
        BaseUrl, DEFAULT_FLEET_RATE, EventBus, EventBusSettings, Mqtt, OrderKind, Orders, Refused,
        Transport, TransportEvent, TransportEvents,
    },
};

/// What the nodes report, shared by the upstream listener and the controllers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<FleetInner>);

#[derive(Debug)]
struct FleetInner {
    state: Mutex<FleetState>,
    clock: FleetClock,
}

/// A clock that shows the wall time of the start and advances monotonically, so that a step of the
/// wall clock changes no duration.
#[derive(Debug, Clone, Copy)]
struct FleetClock {
    wall: Timestamp,
    monotonic: Instant,
}

impl FleetClock {
    fn at(&self, instant: Instant) -> Timestamp {
        let elapsed = instant.saturating_duration_since(self.monotonic);
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
        self.wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

/// How many nodes are in each state, for the metrics.
pub fn nodes_by_state(fleet: &FleetState) -> [(NodeState, usize); 4] {
    let counts = fleet.node_counts();
    [
        (NodeState::Delayed, fleet.delayed_nodes()),
        (NodeState::Online, counts.online),
        (NodeState::Offline, counts.offline),
        (NodeState::Problem, counts.with_problems),
    ]
}

impl Fleet {
    /// No node has reported. Agents that do not announce their heartbeat have one every `heartbeat`
    /// seconds.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn new(heartbeat: u32) -> Self {
        let clock = FleetClock { wall: Timestamp::now(), monotonic: Instant::now() };
        let state = Mutex::new(FleetState::new(clock.wall, heartbeat));
        Self(Arc::new(FleetInner { state, clock }))
    }

    /// The time for every method of [`FleetState`]. Steps of the wall clock do not affect it.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    pub fn now(&self) -> Timestamp {
        self.0.clock.at(Instant::now())
    }

    /// The fleet's time at this instant.
    pub fn at(&self, instant: Instant) -> Timestamp {
        self.0.clock.at(instant)
    }

    /// Locks the state. The guard must not live across an `await`.
    pub fn lock(&self) -> MutexGuard<'_, FleetState> {
        self.0.state.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn fleet_clock_follows_the_monotonic_clock_only() {
        let monotonic = Instant::now();
        // A wall clock that is wrong by decades.
        let clock = FleetClock { wall: Timestamp::UNIX_EPOCH, monotonic };
        let later = clock.at(monotonic + Duration::from_secs(90));
        assert_eq!(later.as_second(), 90);
        assert_eq!(clock.at(monotonic), Timestamp::UNIX_EPOCH);
    }
}

//! The admission of one listener, shared by the loop and the connections.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    admission::{Admission, Identity, Limits, Refusal, Stage},
    refusals::Refusals,
    source::{Peer, Source},
};
use parking_lot::Mutex;

/// Counts the connections of one listener, and refuses those above its limits. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: &'static str,
    admission: Mutex<Admission>,
    refusals: Refusals,
    turns: AtomicU64,
}

impl Gate {
    /// The gate of a server, whose name is the label `server` of the metrics.
    pub fn new(server: &'static str, limits: Limits, refusals: &Refusals) -> Self {
        refusals.add_server(server);
        let admission = Mutex::new(Admission::new(limits));
        let (refusals, turns) = (refusals.clone(), AtomicU64::default());
        Self(Arc::new(Inner { server, admission, refusals, turns }))
    }

    /// The name of the server.
    pub fn server(&self) -> &'static str {
        self.0.server
    }

    /// How often the loop took a connection, or tried to. It grows as long as the loop works and
    /// clients connect.
    pub fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }

    /// Connections whose client is not known yet.
    pub fn pending(&self) -> usize {
        self.0.admission.lock().pending()
    }

    pub(super) fn on_turn(&self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn enter(&self, peer: Peer) -> Result<(Entry, Duration), Refusal> {
        let source = Source::from_peer(peer);
        let time = self.0.admission.lock().enter(source)?;
        let stage = Mutex::new(Stage::Pending);
        Ok((Entry(Arc::new(Connection { gate: self.clone(), source, stage })), time))
    }

    pub(super) fn refuse(&self, cause: Refusal) {
        self.0.refusals.count(self.0.server, cause);
    }

    /// The refusals of each cause so far.
    pub(super) fn counts(&self) -> [u64; Refusal::ALL.len()] {
        Refusal::ALL.map(|cause| self.0.refusals.total(self.0.server, cause))
    }
}

/// The refusals between two counts as text; `None` if there are none.
pub fn refused_since(before: &[u64], now: &[u64]) -> Option<String> {
    let mut text = String::new();
    for ((cause, before), now) in Refusal::ALL.iter().zip(before).zip(now) {
        let refused = now.saturating_sub(*before);
        if refused > 0 {
            let comma = if text.is_empty() { "" } else { ", " };
            // A String takes every text.
            let _ = write!(text, "{comma}{refused} {}", cause.as_str());
        }
    }
    (!text.is_empty()).then_some(text)
}

/// The place of one connection, from its beginning to the drop of the last clone.
#[derive(Debug, Clone)]
pub struct Entry(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    gate: Gate,
    source: Option<Source>,
    stage: Mutex<Stage>,
}

impl Entry {
    /// Gives the connection a place, because its client has shown what it is. Has no effect on a
    /// connection that has one.
    ///
    /// # Errors
    /// Why there is none. The refusal is counted; the caller ends the connection.
    pub fn admit(&self, identity: Identity<'_>) -> Result<(), Refusal> {
        let mut stage = self.0.stage.lock();
        if *stage != Stage::Pending {
            return Ok(());
        }
        let admitted = self.0.gate.0.admission.lock().admit(self.0.source, identity);
        *stage = admitted.inspect_err(|cause| self.0.gate.refuse(*cause))?;
        Ok(())
    }

    /// Counts a client whose key or login is not known. The caller ends the connection.
    pub fn refuse_unknown(&self) {
        self.0.gate.refuse(Refusal::UnknownIdentity);
    }

    /// The name of the server.
    pub(super) fn server(&self) -> &'static str {
        self.0.gate.server()
    }

    pub(super) fn is_pending(&self) -> bool {
        *self.0.stage.lock() == Stage::Pending
    }
}

impl Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut *self.stage.lock(), Stage::Trusted);
        self.gate.0.admission.lock().leave(self.source, stage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_since_the_last_count_are_named_by_cause() {
        let mut now = [0; Refusal::ALL.len()];
        assert_eq!(refused_since(&now, &now), None);
        (now[0], now[2]) = (12, 3);
        let text = refused_since(&[0; Refusal::ALL.len()], &now);
        assert_eq!(text.as_deref(), Some("12 pending_full, 3 unidentified"));
        let mut later = now;
        later[2] += 1;
        assert_eq!(refused_since(&now, &later).as_deref(), Some("1 unidentified"));
    }
}

//! The clients of the configuration in force, with what lasts longer than it: their requests of the
//! last minute, and their counts.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;

use super::{ClientCounts, ClientEntry, ClientFile, window::Window};
use crate::{config::Client, decision::Outcome};

/// The clients of a gateway.
#[derive(Debug, Default)]
pub struct Clients(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The clients by their names.
    entries: BTreeMap<String, State>,
    /// `None` without a state file, and after the end.
    file: Option<ClientFile>,
}

#[derive(Debug)]
struct State {
    window: Window,
    entry: ClientEntry,
    /// Whether the counts are not in the file yet.
    is_changed: bool,
}

impl Clients {
    /// Begins with the counts of a file, if there is one.
    pub fn new(file: Option<(ClientFile, BTreeMap<String, ClientEntry>)>, now: Instant) -> Self {
        let Some((file, entries)) = file else { return Self::default() };
        let state =
            |(name, entry)| (name, State { window: Window::new(now), entry, is_changed: false });
        let entries = entries.into_iter().map(state).collect();
        Self(Mutex::new(Inner { entries, file: Some(file) }))
    }

    /// Uses another list. A client that stays keeps its counts and its last minute; those of others
    /// end.
    pub fn configure(&self, clients: &[Client], (now, time): (Instant, Timestamp)) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let is_listed = |name: &str| clients.iter().any(|client| client.name == name);
        inner.entries.retain(|name, _| is_listed(name));
        if let Some(file) = &mut inner.file {
            file.retain(is_listed);
        }
        for client in clients {
            inner.entries.entry(client.name.clone()).or_insert_with(|| State {
                window: Window::new(now),
                entry: ClientEntry { since: time, counts: ClientCounts::default() },
                is_changed: false,
            });
        }
    }

    /// Counts a request with a key of this client.
    ///
    /// # Errors
    /// When to ask again, if there were too many in the last minute.
    pub fn enter(&self, client: &Client, now: Instant) -> Result<(), Duration> {
        let mut inner = self.0.lock();
        // A request may end after its client was removed.
        let Some(state) = inner.entries.get_mut(&client.name) else { return Ok(()) };
        state.entry.counts.requests += 1;
        state.is_changed = true;
        let Some(limit) = client.requests_per_minute else { return Ok(()) };
        state.window.take(limit, now).inspect_err(|_| state.entry.counts.refused += 1)
    }

    /// Counts a request for a model that the client may not use.
    pub fn refused(&self, client: &Client) {
        if let Some(state) = self.0.lock().entries.get_mut(&client.name) {
            state.entry.counts.refused += 1;
            state.is_changed = true;
        }
    }

    /// Counts the answered samples of a request. They are on record when this returns.
    pub fn count(&self, client: &Client, outcomes: &[Outcome], tiers: &[usize]) {
        let mut inner = self.0.lock();
        if let Some(state) = inner.entries.get_mut(&client.name) {
            state.entry.counts.count(outcomes);
            for tier in tiers {
                state.entry.counts.samples.tiers.add(*tier);
            }
            state.is_changed = true;
        }
        inner.record(&client.name);
    }

    /// Records what was counted for a client, if it is not yet.
    pub fn record(&self, client: &Client) {
        self.0.lock().record(&client.name);
    }

    /// The counts of these clients, in their order.
    pub fn entries(&self, clients: &[Client]) -> Vec<(String, ClientEntry)> {
        let inner = self.0.lock();
        let entry =
            |client: &Client| Some((client.name.clone(), inner.entries.get(&client.name)?.entry));
        clients.iter().filter_map(entry).collect()
    }

    /// Closes the record: no more requests are counted.
    pub fn close(&self) {
        let mut inner = self.0.lock();
        let Some(file) = inner.file.take() else { return };
        let entries = inner.entries.iter().map(|(name, state)| (name.as_str(), state.entry));
        if let Err(problem) = file.close(entries) {
            warn!("the counters of clients are not closed: {problem}");
        }
    }
}

impl Inner {
    fn record(&mut self, name: &str) {
        let Self { entries, file } = self;
        let (Some(state), Some(file)) = (entries.get_mut(name), file) else { return };
        if std::mem::take(&mut state.is_changed) {
            file.record(name, &state.entry);
        }
    }
}

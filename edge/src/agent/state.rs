//! What the agent's loop knows beside what is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{ModelReload, ObjectKey, WorkerName};

use crate::{
    desired::Desired, engine::Engine, plan::Health, rejected::Rejected, reload::Reloading,
    resync::Resync, served::Server, track::Track, unheard::Unheard,
};

/// All of it belongs to one run of the agent.
pub struct State {
    pub(super) desired: Desired,
    pub(super) tracks: BTreeMap<WorkerName, Track>,
    pub(super) health: BTreeMap<WorkerName, Health>,
    pub(super) servers: BTreeMap<ObjectKey, Server>,
    /// The directories of versions that stayed when the others were last removed.
    pub(super) tidied: Option<BTreeSet<PathBuf>>,
    /// Workers that load other versions of their models while they run.
    pub(super) reloads: BTreeMap<WorkerName, Reloading>,
    /// What each was told last.
    pub(super) told: BTreeMap<WorkerName, ModelReload>,
    pub(super) tidied_workers: Option<BTreeSet<PathBuf>>,
    pub(super) resync: Resync,
    pub(super) rejected: Rejected,
    pub(super) unheard: Unheard,
    pub(super) engine: Engine,
    pub(super) is_up: bool,
    pub(super) address: Option<String>,
    pub(super) heartbeat_at: Option<Instant>,
    /// Something that the plan depends on changed.
    pub(super) is_stale: bool,
    pub(super) plan_at: Option<Instant>,
    pub(super) ask_at: Option<Instant>,
    pub(super) report_at: Option<Instant>,
}

impl State {
    pub fn new(now: Instant) -> Self {
        Self {
            desired: Desired::default(),
            tracks: BTreeMap::new(),
            health: BTreeMap::new(),
            servers: BTreeMap::new(),
            tidied: None,
            reloads: BTreeMap::new(),
            told: BTreeMap::new(),
            tidied_workers: None,
            resync: Resync::default(),
            rejected: Rejected::default(),
            unheard: Unheard::default(),
            engine: Engine::new(now),
            is_up: false,
            address: None,
            heartbeat_at: None,
            is_stale: true,
            plan_at: None,
            ask_at: None,
            report_at: None,
        }
    }
}

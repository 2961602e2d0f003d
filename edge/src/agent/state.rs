//! What the agent's loop knows beside what is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Instant,
};

use neptune_wire::{ModelReload, ObjectKey, WorkerName};

use crate::{
    agent::dropped::DroppedMessages,
    desired::{Desired, resync::Resync},
    domain::health::WorkerHealth,
    engine::observer::EngineObserver,
    model_server::instance::ModelServerInstance,
    plan::attempts::Attempts,
    worker::{pending_messages::PendingMessages, reload::ReloadState},
};

/// All of it belongs to one run of the agent.
pub struct AgentState {
    pub(super) desired: Desired,
    pub(super) tracks: BTreeMap<WorkerName, Attempts>,
    pub(super) health: BTreeMap<WorkerName, WorkerHealth>,
    pub(super) servers: BTreeMap<ObjectKey, ModelServerInstance>,
    /// The directories of versions that stayed when the others were last removed.
    pub(super) tidied: Option<BTreeSet<PathBuf>>,
    /// Workers that load other versions of their models while they run.
    pub(super) reloads: BTreeMap<WorkerName, ReloadState>,
    /// What each was told last.
    pub(super) told: BTreeMap<WorkerName, ModelReload>,
    pub(super) tidied_workers: Option<BTreeSet<PathBuf>>,
    pub(super) resync: Resync,
    pub(super) rejected: DroppedMessages,
    pub(super) unheard: PendingMessages,
    pub(super) engine: EngineObserver,
    pub(super) is_up: bool,
    pub(super) address: Option<String>,
    pub(super) heartbeat_at: Option<Instant>,
    /// Something that the plan depends on changed.
    pub(super) is_stale: bool,
    pub(super) plan_at: Option<Instant>,
    pub(super) ask_at: Option<Instant>,
    pub(super) report_at: Option<Instant>,
}

impl AgentState {
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
            rejected: DroppedMessages::default(),
            unheard: PendingMessages::default(),
            engine: EngineObserver::new(now),
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

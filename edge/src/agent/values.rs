//! The Secrets and `ConfigMap`s of the workers and the model servers: opens them when a task changes,
//! and has their files written and removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use neptune_agent_core::{
    desired::{Desired, WantedWorker},
    domain::{
        health::WorkerHealth, node_context::NodeContext, observed_container::ObservedContainer,
        problem::Problem,
    },
    values::resolve::WorkerValues,
};
use neptune_pinned_tls::TlsKey;
use neptune_wire::{NodeName, NodeProblem, SealKeyReport, WorkerName};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::model_servers::ModelServers;
use crate::values::{
    opened::{OpenedValues, ServerValues, add_files},
    runtime_files::{RuntimeFiles, WantedFiles},
    seal_key::NodeSealKey,
};

/// Interval between two attempts to write files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The opened Secrets and the `ConfigMap`s of the workers and the model servers.
pub struct NodeValues {
    key: NodeSealKey,
    workers: OpenedValues<WorkerName>,
    servers: ServerValues,
    files: Arc<RuntimeFiles>,
    /// The files that containers need now.
    wanted: WantedFiles,
    /// Whether files are being written.
    is_writing: Arc<AtomicBool>,
    retry_at: Option<Instant>,
    /// What of the files was removed the last time: volumes that containers mount.
    mounted: Option<BTreeSet<PathBuf>>,
}

impl NodeValues {
    pub fn new(key: NodeSealKey, files: Arc<RuntimeFiles>) -> Self {
        Self {
            key,
            workers: OpenedValues::default(),
            servers: OpenedValues::default(),
            files,
            wanted: WantedFiles::new(),
            is_writing: Arc::default(),
            retry_at: None,
            mounted: None,
        }
    }

    /// The values of the workers that have some, or why they cannot be read.
    pub fn of_workers(&self) -> &BTreeMap<WorkerName, Result<WorkerValues, Problem>> {
        self.workers.all()
    }

    /// The values of the model servers.
    pub fn of_servers(&self) -> &ServerValues {
        &self.servers
    }

    /// Tries to read the seal key again if there is none. Returns whether there is one since.
    pub fn retry_key(&mut self, now: Instant) -> bool {
        let is_new = self.key.retry(now);
        if is_new {
            self.workers.forget();
            self.servers.forget();
        }
        is_new
    }

    /// The seal key as the node reports it.
    pub fn key_report(&self, node: &NodeName, key: Option<&TlsKey>) -> Option<Box<SealKeyReport>> {
        self.key.report(node, key)
    }

    /// Why there is no seal key.
    pub fn key_problem(&self) -> Option<NodeProblem> {
        self.key.get().err().cloned()
    }

    /// Opens the values of workers and model servers that are new or changed. Returns whether those of
    /// a model server changed.
    pub fn open(&mut self, desired: &Desired, servers: &ModelServers, node: &NodeName) -> bool {
        let workers = desired.workers.iter();
        let workers = workers.map(|(name, wanted)| (name.clone(), wanted.node_program()));
        self.workers.open(workers, node, self.key.get());
        self.servers.open(servers.programs(desired), node, self.key.get())
    }

    /// Starts to write the files of the containers that must run. Returns when to do so again.
    pub fn provide_files(
        &mut self,
        desired: &Desired,
        servers: &ModelServers,
        context: &NodeContext,
        now: Instant,
    ) -> Option<Instant> {
        let wanted = self.wanted_files(desired, servers, context);
        let is_changed = self.wanted != wanted;
        if is_changed {
            self.wanted = wanted.clone();
            // Files that are no longer wanted are removed, although no container changed.
            self.mounted = None;
        }
        let is_unwritten = self.files.set_wanted(wanted);
        if !is_unwritten {
            self.retry_at = None;
            return None;
        }
        if is_changed || self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = Some(now + RETRY_INTERVAL);
            self.write();
        }
        self.retry_at
    }

    fn wanted_files(
        &self,
        desired: &Desired,
        servers: &ModelServers,
        context: &NodeContext,
    ) -> WantedFiles {
        let mut files = WantedFiles::new();
        let key = self.key.get().ok();
        let workers = self.workers.all().iter().filter_map(|(name, values)| {
            let wanted: &WantedWorker = desired.workers.get(name)?;
            Some((wanted.node_program(), values.as_ref().ok()?))
        });
        let servers = servers.running_programs(desired).filter_map(|program| {
            let values = self.servers.of_program(program.name, program.program)?;
            Some((program, values.ok()?))
        });
        for (program, values) in workers.chain(servers) {
            add_files(&mut files, (program, values), context, key);
        }
        files
    }

    /// Writes the changed files, in the background: a start of a container writes its own.
    fn write(&self) {
        if self.is_writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (files, is_writing) = (Arc::clone(&self.files), Arc::clone(&self.is_writing));
        spawn_blocking(move || {
            let written = files.write_changed();
            is_writing.store(false, Ordering::Release);
            if let Err(error) = written {
                warn!(error, "failed to write files of Secrets or ConfigMaps; retrying");
            }
        });
    }

    /// Removes the files that are neither wanted nor mounted by one of these containers. Called while
    /// no step is in flight, and after the first plan.
    pub fn gc(&mut self, containers: &[ObservedContainer], context: &NodeContext) {
        let root = context.node_files_dir();
        let sources = containers.iter().flat_map(|it| &it.sources).map(PathBuf::from);
        let mounted: BTreeSet<PathBuf> = sources.filter(|path| path.starts_with(&root)).collect();
        if self.mounted.as_ref() == Some(&mounted) {
            return;
        }
        self.mounted = Some(mounted.clone());
        let files = Arc::clone(&self.files);
        spawn_blocking(move || {
            if let Err(error) = files.remove_unused(&mounted) {
                warn!(%error, "failed to remove files of Secrets or ConfigMaps");
            }
        });
    }

    /// Returns a text of a worker or a model server without the values of its Secrets.
    pub fn mask(&self, worker: &str, text: String) -> String {
        let Ok(name) = worker.parse::<WorkerName>() else { return text };
        match self.workers.all().get(&name) {
            Some(Ok(values)) => values.mask.apply(text),
            _ => self.servers.mask(&name, text),
        }
    }

    /// Removes the values of Secrets from the messages of workers.
    pub fn mask_health(&self, health: &mut BTreeMap<WorkerName, WorkerHealth>) {
        for (name, values) in self.workers.all() {
            if let (Ok(values), Some(health)) = (values, health.get_mut(name)) {
                health.message = values.mask.apply(std::mem::take(&mut health.message));
            }
        }
    }
}

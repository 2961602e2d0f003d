//! The Secrets and `ConfigMap`s of the workers: opens them when a task changes, and has their files
//! written and removed.

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
    volumes::mounts::files_dir,
};
use neptune_pinned_tls::TlsKey;
use neptune_wire::{NodeName, NodeProblem, SealKeyReport, WorkerName};
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::values::{
    opener::{open_values, version},
    runtime_files::{RuntimeFiles, VersionedFiles},
    seal_key::NodeSealKey,
};

/// Interval between two attempts to write files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The opened Secrets and the `ConfigMap`s of the workers.
pub struct NodeValues {
    key: NodeSealKey,
    /// The workers whose values were opened, as they were wanted then.
    sources: BTreeMap<WorkerName, WantedWorker>,
    opened: BTreeMap<WorkerName, Result<WorkerValues, Problem>>,
    files: Arc<RuntimeFiles>,
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
            sources: BTreeMap::new(),
            opened: BTreeMap::new(),
            files,
            is_writing: Arc::default(),
            retry_at: None,
            mounted: None,
        }
    }

    /// The values of the workers that have some, or why they cannot be read.
    pub fn opened(&self) -> &BTreeMap<WorkerName, Result<WorkerValues, Problem>> {
        &self.opened
    }

    /// Tries to read the seal key again if there is none. Returns whether there is one since.
    pub fn retry_key(&mut self, now: Instant) -> bool {
        let is_new = self.key.retry(now);
        if is_new {
            self.sources.clear();
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

    /// Opens the values of workers that are new or changed, and starts to write their files. Returns
    /// when to do so again.
    pub fn decide(
        &mut self,
        desired: &Desired,
        context: &NodeContext,
        now: Instant,
    ) -> Option<Instant> {
        let has_values = |wanted: &&WantedWorker| wanted.worker.program.has_values();
        let wanted: BTreeMap<&WorkerName, &WantedWorker> = desired
            .workers
            .values()
            .filter(has_values)
            .map(|wanted| (&wanted.worker.name, wanted))
            .collect();
        let count = self.sources.len();
        self.sources.retain(|name, source| wanted.get(name) == Some(&&*source));
        let mut is_changed = self.sources.len() != count;
        self.opened.retain(|name, _| wanted.contains_key(name));
        for (name, wanted) in wanted {
            if !self.sources.contains_key(name) {
                let opened = open_values(&context.node, wanted, self.key.get());
                self.opened.insert(name.clone(), opened);
                self.sources.insert(name.clone(), wanted.clone());
                is_changed = true;
            }
        }
        if is_changed {
            // Files that are no longer wanted are removed, although no container changed.
            self.mounted = None;
        }
        let is_unwritten = self.files.set_wanted(self.wanted_files(context));
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

    fn wanted_files(&self, context: &NodeContext) -> BTreeMap<PathBuf, VersionedFiles> {
        let mut all = BTreeMap::new();
        for (name, values) in &self.opened {
            let (Ok(values), Some(wanted)) = (values, self.sources.get(name)) else { continue };
            for mount in &wanted.worker.program.mounts {
                if let Some(files) = values.files.get(&mount.name) {
                    let version = version(files, self.key.get().ok());
                    let files = VersionedFiles { version, files: Arc::clone(files) };
                    all.insert(files_dir(wanted, mount, context), files);
                }
            }
        }
        all
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

    /// Returns a text of a worker without the values of its Secrets.
    pub fn mask(&self, worker: &str, text: String) -> String {
        let name = worker.parse::<WorkerName>().ok();
        match name.and_then(|name| self.opened.get(&name)) {
            Some(Ok(values)) => values.mask.apply(text),
            _ => text,
        }
    }

    /// Removes the values of Secrets from the messages of workers.
    pub fn mask_health(&self, health: &mut BTreeMap<WorkerName, WorkerHealth>) {
        for (name, values) in &self.opened {
            if let (Ok(values), Some(health)) = (values, health.get_mut(name)) {
                health.message = values.mask.apply(std::mem::take(&mut health.message));
            }
        }
    }
}

//! The node's gateways: hands the wanted files to the task that writes them, and records its
//! results.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use neptune_agent_core::{
    desired::{Desired, WantedWorker},
    domain::{
        gateway_files::{GatewayDir, GatewayFiles, WantedGateways, WrittenGateways},
        health::WorkerHealth,
        node_context::{GATEWAYS_DIR, NodeContext},
        observed_container::ObservedContainer,
        problem::Problem,
    },
    gateway::{directories::gateway_dir, files::gateway_files},
    values::resolve::WorkerValues,
    worker::container::NodeInputs,
};
use neptune_wire::{ObjectKey, Resource, WorkerName};
use tokio::sync::watch;

use super::model_servers::ModelServers;
use crate::artifacts::{datasets::Datasets, models::Models};

/// The gateways of the node.
#[derive(Default)]
pub struct Gateways {
    wanted: watch::Sender<WantedGateways>,
    /// Whether the wanted files were set since the agent started.
    is_set: bool,
    dirs: BTreeMap<WorkerName, GatewayDir>,
    /// The revision since which each directory is wanted. An older result may be about a directory
    /// that was removed since.
    since: BTreeMap<GatewayDir, u64>,
    /// The newest result of the task that writes the files.
    result: WrittenGateways,
    /// The result per gateway, if it is about the wanted directory: its directory for captured
    /// samples.
    written: BTreeMap<WorkerName, Result<Option<PathBuf>, String>>,
}

impl Gateways {
    /// The models, datasets, files and values that are available to workers.
    pub fn inputs<'a>(
        &'a self,
        models: &'a Models,
        datasets: &'a Datasets,
        values: &'a BTreeMap<WorkerName, Result<WorkerValues, Problem>>,
    ) -> NodeInputs<'a> {
        NodeInputs {
            models: models.availability(),
            datasets: datasets.availability(),
            gateways: self.written(),
            values,
        }
    }

    /// The wanted files, for the task that writes them and for those who read the sockets.
    pub fn subscribe(&self) -> watch::Receiver<WantedGateways> {
        self.wanted.subscribe()
    }

    /// The gateways whose files were written, each with its directory for captured samples, or why
    /// they could not be.
    pub fn written(&self) -> &BTreeMap<WorkerName, Result<Option<PathBuf>, String>> {
        &self.written
    }

    /// Sets the files of all gateways, with the versions that the model servers serve now.
    pub fn set_wanted(&mut self, desired: &Desired, servers: &ModelServers, context: &NodeContext) {
        let wanted = desired.workers.values().filter_map(|wanted| {
            let files = files(wanted, servers)?;
            Some((wanted.worker.name.clone(), gateway_dir(wanted, context), files))
        });
        self.is_set = true;
        let mut gateways = BTreeMap::new();
        self.dirs.clear();
        for (name, dir, files) in wanted {
            gateways.insert(dir.clone(), files);
            self.dirs.insert(name, dir);
        }
        self.replace(gateways);
        self.refresh();
    }

    fn replace(&mut self, gateways: BTreeMap<GatewayDir, GatewayFiles>) {
        if self.wanted.borrow().gateways == gateways {
            return;
        }
        let revision = self.wanted.borrow().revision + 1;
        self.since.retain(|dir, _| gateways.contains_key(dir));
        for dir in gateways.keys() {
            self.since.entry(dir.clone()).or_insert(revision);
        }
        // The next garbage collection waits for an observation without steps in flight.
        self.wanted.send_replace(WantedGateways { revision, gateways, mounted: None });
    }

    /// Records the result of the task.
    pub fn on_written(&mut self, result: WrittenGateways) {
        self.result = result;
        self.refresh();
    }

    fn refresh(&mut self) {
        let written = self.dirs.iter().filter_map(|(name, dir)| {
            let is_current = *self.since.get(dir)? <= self.result.revision;
            let files = self.result.gateways.get(dir).filter(|_| is_current)?;
            Some((name.clone(), files.written.clone().map(|()| files.capture.clone())))
        });
        self.written = written.collect();
    }

    /// Adds what is wrong with the secrets to the health of running gateways.
    pub fn add_notes(&self, health: &mut BTreeMap<WorkerName, WorkerHealth>) {
        for (name, dir) in &self.dirs {
            let (Some(health), Some(files)) = (health.get_mut(name), self.result.gateways.get(dir))
            else {
                continue;
            };
            for note in &files.notes {
                health.add_note(note);
            }
        }
    }

    /// Lets the task remove the directories that neither a gateway nor one of these containers
    /// uses: nothing before the first plan, because the directory of a gateway without a container
    /// has its counters. Called while no step is in flight.
    pub fn gc(&mut self, containers: &[ObservedContainer], data_dir: &Path) {
        if !self.is_set {
            return;
        }
        let root = data_dir.join(GATEWAYS_DIR);
        let mounted = containers.iter().flat_map(|it| &it.sources).map(PathBuf::from);
        let mounted: BTreeSet<PathBuf> = mounted.filter(|path| path.starts_with(&root)).collect();
        self.wanted.send_if_modified(|wanted| {
            let is_changed = wanted.mounted.as_ref() != Some(&mounted);
            if is_changed {
                wanted.revision += 1;
                wanted.mounted = Some(mounted);
            }
            is_changed
        });
    }
}

/// The files of a gateway; `None` for another worker.
fn files(wanted: &WantedWorker, servers: &ModelServers) -> Option<GatewayFiles> {
    let spec = wanted.worker.gateway.as_deref()?;
    let server = ObjectKey {
        namespace: wanted.owner.namespace.clone(),
        resource: Resource::InferenceModels,
        name: spec.server.clone(),
    };
    let version = servers.get(&server).and_then(|it| it.report.serving_version.as_deref());
    Some(gateway_files(wanted, spec, version))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::{
        domain::gateway_files::WrittenFiles,
        fixtures::{node_context, observed_container, wanted_gateway, wanted_worker},
    };
    use neptune_wire::WorkerState;

    use super::*;

    fn desired(workers: &[WantedWorker]) -> Desired {
        let named = workers.iter().map(|wanted| (wanted.worker.name.clone(), wanted.clone()));
        Desired { workers: named.collect(), ..Desired::default() }
    }

    /// The result of the task for what is wanted now.
    fn result(gateways: &Gateways, notes: &[&str]) -> WrittenGateways {
        let wanted = gateways.wanted.borrow();
        let files = WrittenFiles {
            written: Ok(()),
            capture: None,
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        };
        let written = wanted.gateways.keys().map(|dir| (dir.clone(), files.clone()));
        WrittenGateways { revision: wanted.revision, gateways: written.collect() }
    }

    fn set(gateways: &mut Gateways, workers: &[WantedWorker]) {
        gateways.set_wanted(&desired(workers), &ModelServers::default(), &node_context());
    }

    #[test]
    fn result_of_an_earlier_directory_of_the_gateway_does_not_count() {
        let mut gateways = Gateways::default();
        set(&mut gateways, &[wanted_gateway()]);
        let first = result(&gateways, &[]);
        assert!(gateways.written().is_empty());
        gateways.on_written(first.clone());
        assert_eq!(gateways.written().len(), 1);

        // It is deleted, its directory is removed, and it comes back.
        set(&mut gateways, &[]);
        gateways.gc(&[], &node_context().data_dir);
        set(&mut gateways, &[wanted_gateway()]);
        gateways.on_written(first);
        assert!(gateways.written().is_empty());
        gateways.on_written(result(&gateways, &[]));
        assert_eq!(gateways.written().len(), 1);
    }

    #[test]
    fn other_files_keep_the_gateway_ready() {
        let mut gateways = Gateways::default();
        set(&mut gateways, &[wanted_gateway(), WantedWorker { ..wanted_worker() }]);
        set(&mut gateways, &[wanted_gateway()]);
        gateways.on_written(result(&gateways, &[]));
        let mut changed = wanted_gateway();
        changed.worker.gateway.as_mut().unwrap().token_file = None;
        let before = gateways.wanted.borrow().revision;
        set(&mut gateways, &[changed.clone()]);
        assert_eq!((gateways.wanted.borrow().revision, gateways.written().len()), (before + 1, 1));
        set(&mut gateways, &[changed]);
        assert_eq!(gateways.wanted.borrow().revision, before + 1, "nothing changed");
    }

    #[test]
    fn nothing_is_removed_between_a_change_and_the_next_observation() {
        let mut gateways = Gateways::default();
        let data_dir = node_context().data_dir;
        let mut container = observed_container("1");
        let mounted = data_dir.join("gateways/0/state");
        container.sources = vec![mounted.display().to_string(), "/code".into()];
        set(&mut gateways, &[]);
        gateways.gc(&[container], &data_dir);
        assert_eq!(gateways.wanted.borrow().mounted, Some([mounted].into()));
        set(&mut gateways, &[wanted_gateway()]);
        assert_eq!(gateways.wanted.borrow().mounted, None);
    }

    /// The containers are observed before the first plan. A gateway whose container was removed
    /// while the agent did not run continues its counters.
    #[test]
    fn nothing_is_removed_before_the_first_plan() {
        let mut gateways = Gateways::default();
        gateways.gc(&[], &node_context().data_dir);
        assert_eq!(gateways.wanted.borrow().mounted, None);
    }

    #[test]
    fn running_gateway_without_its_token_is_degraded() {
        let mut gateways = Gateways::default();
        set(&mut gateways, &[wanted_gateway()]);
        gateways.on_written(result(&gateways, &["file llm not found"]));
        let running = WorkerHealth {
            state: WorkerState::Running,
            reason: None,
            message: String::new(),
            restarts: 0,
        };
        let mut health = [(wanted_gateway().worker.name, running)].into();
        gateways.add_notes(&mut health);
        let health = health.into_values().next().unwrap();
        assert_eq!(health.reason, Some(neptune_wire::WorkerReason::WorkerDegraded));
        assert_eq!(health.message, "file llm not found");
    }
}

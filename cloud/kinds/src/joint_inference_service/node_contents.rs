//! What the nodes of a service should have: its task, models and dataset. Nodes with the same
//! workers and values share one text. A part of `plan`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use neptune_api::{JointInferenceService, JointInferenceServiceSpec, Model};
use neptune_wire::{EncodedContent, NodeName, ObjectContent, ObjectKey, Resource, Role, Worker};
use serde_json::Value;

use crate::{
    dataset,
    fleet::NodeContents,
    joint_inference_service::{
        resolved::{CloudSide, EdgeSide, ValidService},
        worker::task::object_name,
    },
    kubernetes::identity::content,
    model,
    worker::{
        config::{resolved::ResolvedConfig, seal::Seals},
        restart::Restart,
    },
};

/// A worker, and the Model that its node needs for it.
pub type PlannedWorker<'a> = (Worker, Option<&'a Model>);

/// The workers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Workers {
    /// Whether the node has the edge worker.
    pub edge: bool,
    /// Whether its agent runs the cloud worker.
    pub cloud: bool,
}

/// What differs between the contents of nodes beside their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Difference {
    workers: Workers,
    /// Whether the node has the source of the dataset.
    is_source: bool,
    /// Whether the workers are restarted there.
    is_restarted: bool,
}

/// Makes the contents of the nodes of a service, each distinct one once.
pub struct ContentsOfNodes<'a> {
    valid: &'a ValidService,
    spec: Value,
    edge: PlannedWorker<'a>,
    cloud: Option<PlannedWorker<'a>>,
    /// The restart that a person requested.
    restart: Option<Restart>,
    /// The contents without values per node, by what differs otherwise.
    common: HashMap<Difference, NodeContents>,
    /// The models and datasets, by whether the node has the source.
    shared: HashMap<(ObjectKey, bool), EncodedContent>,
    /// The values that have to be sealed.
    seals: Seals,
}

impl<'a> ContentsOfNodes<'a> {
    /// The contents with this edge worker, and this cloud worker if an agent runs it.
    pub fn new(
        service: &JointInferenceService,
        valid: &'a ValidService,
        edge: PlannedWorker<'a>,
        cloud: Option<PlannedWorker<'a>>,
    ) -> Self {
        // Settings of the controller, which reach no node.
        let mut spec = JointInferenceServiceSpec { rollout: None, ..service.spec.clone() };
        spec.edge_worker.silent_after_seconds = None;
        let spec = serde_json::to_value(&spec).expect("a spec came from JSON");
        let restart = Restart::requested(&service.metadata);
        let (common, shared) = (HashMap::new(), HashMap::new());
        Self { valid, spec, edge, cloud, restart, common, shared, seals: Seals::new() }
    }

    /// The values that have to be sealed for the nodes.
    pub fn into_seals(self) -> Seals {
        self.seals
    }

    /// The contents of a node with these workers. `env` has the variables of the edge worker that
    /// differ per node.
    pub fn on(
        &mut self,
        node: &NodeName,
        workers: Workers,
        env: Option<&BTreeMap<String, String>>,
    ) -> NodeContents {
        let data = self.valid.dataset.as_deref();
        let is_source = data.is_some_and(|data| data.spec.node_name == node.as_str());
        let restarted = |role| self.restart.as_ref()?.on_node(node, role).cloned();
        let [edge_restart, cloud_restart] = [Role::Edge, Role::Cloud].map(restarted);
        let is_restarted = edge_restart.is_some() || cloud_restart.is_some();
        let place = Difference { workers, is_source, is_restarted };
        let is_common = env.is_none() && !self.has_secrets(workers);
        if let Some(common) = self.common.get(&place).filter(|_| is_common) {
            return Arc::clone(common);
        }
        let mut planned = Vec::new();
        if workers.edge {
            let (mut worker, model) = self.edge.clone();
            self.add_config(&mut worker, node, env);
            worker
                .program
                .env
                .extend(env.into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
            worker.restarted_at = edge_restart;
            planned.push((worker, model));
        }
        if let Some((mut worker, model)) = self.cloud.clone().filter(|_| workers.cloud) {
            worker.restarted_at = cloud_restart;
            self.add_config(&mut worker, node, None);
            planned.push((worker, model));
        }
        let contents = Arc::new(self.encoded(node, is_source, planned));
        if is_common {
            self.common.insert(place, Arc::clone(&contents));
        }
        contents
    }

    /// What the edge or the cloud worker gets of its Secrets and `ConfigMap`s.
    fn config(&self, role: Role) -> Option<&'a ResolvedConfig> {
        match (role, &self.valid.edge, &self.valid.cloud) {
            (Role::Edge, EdgeSide::Worker(worker), _) => worker.config.ready(),
            (Role::Cloud, _, CloudSide::Worker(cloud)) => cloud.worker.config.ready(),
            _ => None,
        }
    }

    /// Whether these workers have Secrets: each node gets its own ciphertexts.
    fn has_secrets(&self, workers: Workers) -> bool {
        let roles = [(Role::Edge, workers.edge), (Role::Cloud, workers.cloud)].into_iter();
        let mut configs =
            roles.filter(|(_, is_there)| *is_there).map(|(role, _)| self.config(role));
        configs.any(|config| config.is_some_and(|config| !config.secrets.is_empty()))
    }

    /// Adds what a worker gets of its Secrets and `ConfigMap`s.
    fn add_config(
        &mut self,
        worker: &mut Worker,
        node: &NodeName,
        env: Option<&BTreeMap<String, String>>,
    ) {
        let Some(config) = self.config(worker.role) else { return };
        let key = self.valid.seal_keys.get(node);
        let container = (&worker.name, &mut worker.program);
        config.add_on_node(container, env, (node, key), &mut self.seals);
    }

    fn encoded(
        &mut self,
        node: &NodeName,
        is_source: bool,
        workers: Vec<PlannedWorker>,
    ) -> BTreeMap<ObjectKey, EncodedContent> {
        let valid = self.valid;
        let mut contents = BTreeMap::new();
        for model in workers.iter().filter_map(|(_, model)| *model) {
            let key = model_key(model, valid);
            let content = self.shared(&key, is_source, || model::content(model, &key));
            contents.insert(key, content);
        }
        if let Some(data) = valid.dataset.as_deref() {
            for (worker, _) in &workers {
                let Some(name) = &worker.dataset else { continue };
                let key = dataset::object_key(&valid.key, name.clone());
                let content = self.shared(&key, is_source, || dataset::content(data, &key, node));
                contents.insert(key, content);
            }
        }
        let workers = workers.into_iter().map(|(worker, _)| worker).collect();
        let task = ObjectContent {
            workers,
            ..content::<JointInferenceService>(valid.metadata.clone(), &self.spec)
        };
        contents.insert(valid.key.clone(), EncodedContent::new(&task));
        contents
    }

    fn shared(
        &mut self,
        key: &ObjectKey,
        is_source: bool,
        content: impl FnOnce() -> ObjectContent,
    ) -> EncodedContent {
        let place = (key.clone(), is_source);
        let encode = || EncodedContent::new(&content());
        self.shared.entry(place).or_insert_with(encode).clone()
    }
}

/// The key of a Model that a service uses.
pub fn model_key(model: &Model, valid: &ValidService) -> ObjectKey {
    let (namespace, name) = (valid.metadata.namespace.clone(), object_name(&model.metadata));
    ObjectKey { namespace, resource: Resource::Models, name }
}

//! Derives the desired state of this node from the received objects: workers by name, models, model
//! servers and datasets by object.

pub mod dataset;
pub mod model;
pub mod model_server;
pub mod resync;
pub mod training;

use std::collections::BTreeMap;

use neptune_wire::{
    ModelServer, ObjectKey, ObjectName, Replica, Resource, RestartPolicy, Worker, WorkerName,
};

pub use self::{
    dataset::WantedDataset,
    model::{ModelSource, WantedModel},
    model_server::WantedServer,
    training::{WantedTask, WantedTraining},
};
use self::{dataset::wanted_dataset, model::wanted_model, model_server::refusal};
use crate::domain::{
    aggregator::WantedAggregator,
    artifact,
    node_program::NodeProgram,
    server_part::{ServerPart, part_name},
};

/// Everything that the received objects want from this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    pub workers: BTreeMap<WorkerName, WantedWorker>,
    pub models: BTreeMap<ObjectKey, WantedModel>,
    pub servers: BTreeMap<ObjectKey, WantedServer>,
    pub datasets: BTreeMap<ObjectKey, WantedDataset>,
    pub training: WantedTraining,
    /// The aggregators that this node runs, by the UID of the `TrainingModel`.
    pub aggregators: BTreeMap<String, WantedAggregator>,
    /// Workers whose name another object already uses: the owner, the worker, and the other object.
    pub clashes: Vec<(ObjectKey, Worker, ObjectKey)>,
}

impl Desired {
    /// Adds a worker, unless another object has a worker of that name on this node.
    fn add_worker(&mut self, owner: &ObjectKey, uid: &str, worker: &Worker) {
        if let Some(other) = self.workers.get(&worker.name) {
            self.clashes.push((owner.clone(), worker.clone(), other.owner.clone()));
            return;
        }
        let named = |resource, name: &ObjectName| ObjectKey {
            namespace: owner.namespace.clone(),
            resource,
            name: name.clone(),
        };
        let wanted = WantedWorker {
            owner: owner.clone(),
            uid: uid.to_owned(),
            worker: worker.clone(),
            model: worker.model.as_ref().map(|name| named(Resource::Models, name)),
            dataset: worker.dataset.as_ref().map(|name| named(Resource::Datasets, name)),
        };
        self.workers.insert(worker.name.clone(), wanted);
    }

    /// Whether a worker or a part of a model server has this name. A server whose spec has no
    /// transformer may still run the one of its last good version.
    pub fn contains(&self, name: &WorkerName) -> bool {
        self.workers.contains_key(name) || self.part_named(name).is_some()
    }

    /// The object and the part of its model server that has this name, unless a worker has it.
    pub fn part_named(&self, name: &WorkerName) -> Option<(&ObjectKey, ServerPart)> {
        if self.workers.contains_key(name) {
            return None;
        }
        ServerPart::ALL.into_iter().find_map(|part| {
            let has_name = |server: &WantedServer| part_name(&server.serving.name, part) == *name;
            let mut servers = self.servers.iter().filter(|(_, server)| has_name(server));
            servers.next().map(|(key, _)| (key, part))
        })
    }

    /// The object whose model server has this name, unless a worker has the name.
    pub fn server_named(&self, name: &WorkerName) -> Option<&ObjectKey> {
        let mut servers = self.servers.iter().filter(|(_, server)| server.serving.name == *name);
        servers.next().map(|(key, _)| key).filter(|_| !self.workers.contains_key(name))
    }
}

/// The desired state of a worker, with its owner.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedWorker {
    pub owner: ObjectKey,
    pub uid: String,
    pub worker: Worker,
    /// The model object that it needs. A gateway needs none.
    pub model: Option<ObjectKey>,
    /// The dataset object that it needs, if it names one.
    pub dataset: Option<ObjectKey>,
}

impl WantedWorker {
    /// Returns the program with its name and the UID of its object.
    pub fn node_program(&self) -> NodeProgram<'_> {
        let Worker { name, program, .. } = &self.worker;
        NodeProgram { uid: &self.uid, name, program }
    }

    /// When the worker is started again after it exits. A gateway serves as long as it exists.
    pub fn restart_policy(&self) -> RestartPolicy {
        match self.worker.gateway {
            Some(_) => RestartPolicy::Always,
            None => self.worker.effective_restart_policy(),
        }
    }
}

/// Derives the desired state from the objects. An invalid object is kept with the reason. Of two
/// objects with a worker of one name, the older one has it: names of containers are hashes, and a
/// newer object must not take over the container of an older one.
pub fn from_replica(replica: &Replica) -> Desired {
    let mut desired = Desired::default();
    let mut by_age: Vec<_> = replica.objects().iter().collect();
    by_age.sort_by_key(|(_, object)| &object.content.metadata.created);
    for (key, object) in &by_age {
        match key.resource {
            Resource::Models => {
                desired.models.insert((*key).clone(), wanted_model(&object.content));
            }
            Resource::Datasets => {
                let dataset = wanted_dataset(&object.content, &object.hash);
                desired.datasets.insert((*key).clone(), dataset);
            }
            Resource::JointInferenceServices
            | Resource::InferenceModels
            | Resource::TrainingModels
            | Resource::Peers => {}
        }
        for worker in &object.content.workers {
            desired.add_worker(key, &object.content.metadata.uid, worker);
        }
    }
    for (key, object) in &by_age {
        if let Some(serving) = &object.content.serving {
            let server = wanted_server(&desired, &object.content.metadata.uid, serving);
            desired.servers.insert((*key).clone(), server);
        }
    }
    let mut training = WantedTraining::default();
    for (key, object) in &by_age {
        if let Some(content) = object.content.training.as_deref() {
            training
                .add((key, &object.content.metadata.uid), content, |name| desired.contains(name));
        }
    }
    desired.training = training;
    for (key, object) in replica.objects() {
        let uid = &object.content.metadata.uid;
        if let Some(content) = object.content.aggregator.as_deref()
            && is_directory_name(uid)
        {
            let (owner, uid, content) = (key.clone(), uid.clone(), content.clone());
            desired.aggregators.insert(uid.clone(), WantedAggregator { owner, uid, content });
        }
    }
    desired
}

/// Whether the UID can name a directory. Those of Kubernetes can.
fn is_directory_name(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn wanted_server(desired: &Desired, uid: &str, serving: &ModelServer) -> WantedServer {
    let has_name = |other: &&WantedServer| other.serving.name == serving.name;
    let name_taken = || {
        let is_worker = |part| desired.workers.contains_key(&part_name(&serving.name, part));
        let is_taken = ServerPart::ALL.into_iter().any(is_worker)
            || desired.servers.values().any(|other| has_name(&other));
        is_taken.then(|| {
            format!("container name {} is already used by another object on this node; rename one of the two", serving.name)
        })
    };
    let source = || {
        let model = serving.model.as_ref()?;
        artifact::check(&model.url, model.sha256.as_deref()).err()
    };
    WantedServer {
        uid: uid.to_owned(),
        serving: Box::new(serving.clone()),
        refusal: refusal(uid, serving).or_else(name_taken).or_else(source),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{Insert, ObjectContent, Revision};
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::artifact::ArtifactSource;

    fn replica(objects: &[(&str, Value)]) -> Replica {
        let mut replica = Replica::default();
        for (n, (key, fields)) in objects.iter().enumerate() {
            let key: ObjectKey = key.parse().unwrap();
            let mut content = json!({
                "apiVersion": "v", "kind": "k",
                "metadata": {"namespace": key.namespace, "name": key.name, "uid": format!("uid-{n}")},
            });
            content.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let content: ObjectContent = serde_json::from_value(content).unwrap();
            let insert = Insert { revision: Revision(1), hash: content.hash(), content };
            replica.insert(&key, insert).unwrap();
        }
        replica
    }

    #[test]
    fn worker_uses_the_model_of_its_namespace_and_a_unique_name() {
        let worker =
            json!({"workers": [{"name": "w", "role": "edge", "image": "i", "model": "m"}]});
        let desired = from_replica(&replica(&[("shop/jointinferenceservices/s", worker.clone())]));
        let wanted = &desired.workers[&"w".parse().unwrap()];
        assert_eq!(wanted.model.as_ref().unwrap().to_string(), "shop/models/m");
        assert_eq!(wanted.dataset, None);
        assert_eq!(wanted.uid, "uid-0");

        let both = [
            ("a/jointinferenceservices/s", worker.clone()),
            ("b/jointinferenceservices/s", worker),
        ];
        let desired = from_replica(&replica(&both));
        assert_eq!(desired.workers.len(), 1);
        assert_eq!(desired.clashes[0].0.to_string(), "b/jointinferenceservices/s");
        assert_eq!(desired.clashes[0].2.to_string(), "a/jointinferenceservices/s");
    }

    #[test]
    fn aggregator_is_wanted_if_its_uid_can_name_a_directory() {
        for (uid, is_wanted) in [("3f2a-01", true), ("", false), ("../a", false)] {
            let training = json!({
                "metadata": {"namespace": "a", "name": "t", "uid": uid},
                "aggregator": {"container": "c", "image": "i", "port": 8418},
            });
            let desired = from_replica(&replica(&[("a/trainingmodels/t", training)]));
            assert_eq!(desired.aggregators.contains_key(uid), is_wanted, "{uid:?}");
        }
    }

    #[test]
    fn older_object_keeps_the_name_of_its_worker() {
        let object = |created: Value, namespace: &str| {
            json!({
                "metadata": {"namespace": namespace, "name": "s", "uid": "u", "created": created},
                "workers": [{"name": "w", "role": "edge", "image": "i", "model": "m"}],
            })
        };
        let (old, new) = (json!("2026-01-02T03:04:05Z"), json!("2026-01-02T03:04:06Z"));
        for (first, second, expected) in [
            (&new, &old, "b/jointinferenceservices/s"),
            (&old, &new, "a/jointinferenceservices/s"),
            // An older controller does not tell.
            (&new, &json!(null), "b/jointinferenceservices/s"),
        ] {
            let desired = from_replica(&replica(&[
                ("a/jointinferenceservices/s", object(first.clone(), "a")),
                ("b/jointinferenceservices/s", object(second.clone(), "b")),
            ]));
            assert_eq!(desired.workers[&"w".parse().unwrap()].owner.to_string(), expected);
            assert_eq!(desired.clashes.len(), 1);
        }
    }

    #[test]
    fn gateway_needs_no_model_and_always_restarts() {
        let gateway = json!({"config": {}, "server": "m"});
        let content = json!({"workers": [
            {"name": "w", "role": "edge", "image": "i", "gateway": gateway},
            {"name": "x", "role": "edge", "image": "i", "model": "m"},
        ]});
        let desired = from_replica(&replica(&[("d/jointinferenceservices/s", content)]));
        let worker = |name: &str| &desired.workers[&name.parse().unwrap()];
        assert_eq!(
            (&worker("w").model, worker("w").restart_policy()),
            (&None, RestartPolicy::Always)
        );
        assert_eq!(worker("x").restart_policy(), RestartPolicy::OnFailure);
    }

    #[test]
    fn model_url_is_remote_or_local_or_invalid_with_the_field() {
        let model_from = |spec: Value| {
            from_replica(&replica(&[("d/models/m", json!({"model": spec}))]))
                .models
                .pop_first()
                .unwrap()
                .1
        };
        let http = model_from(json!({"url": "https://h/m.bin", "sha256": "AB".repeat(32)}));
        let remote = |url: &str, sha256| {
            let namespace = "d".parse().unwrap();
            ModelSource::Remote(ArtifactSource { namespace, url: url.into(), sha256 })
        };
        assert_eq!(http.source, Ok(remote("https://h/m.bin", Some("ab".repeat(32)))));
        let s3 = model_from(json!({"url": "s3://bucket/m"}));
        assert_eq!(s3.source, Ok(remote("s3://bucket/m", None)));
        assert_eq!(http.sha256, Some("ab".repeat(32)));
        let mirrors = json!(["s3://bucket/m", "later://m"]);
        let mirrored = model_from(json!({
            "url": "https://h/m.bin", "sha256": "ab".repeat(32), "mirrors": mirrors,
        }));
        assert_eq!(mirrored.mirrors, ["s3://bucket/m", "later://m"]);
        assert_eq!((&mirrored.source, &mirrored.content_key), (&http.source, &http.content_key));
        for url in ["/models/m.bin", "file:///models/m.bin"] {
            assert_eq!(
                model_from(json!({"url": url})).source,
                Ok(ModelSource::Local("/models/m.bin".into()))
            );
        }
        for (spec, field) in [
            (json!(null), "typed content"),
            (json!({}), "spec.modelUrl"),
            (json!({"url": "s3://b/m"}), "spec.modelUrl"),
            (json!({"url": "ftp://host/m"}), "spec.modelUrl"),
            (json!({"url": "file://host/m"}), "spec.modelUrl"),
            (json!({"url": "m.bin"}), "spec.modelUrl"),
            (json!({"url": "/m", "sha256": "12"}), "spec.sha256sum"),
        ] {
            let why = model_from(spec.clone()).source.unwrap_err();
            assert!(why.contains(field), "{spec}: {why}");
        }
        assert_ne!(
            model_from(json!({"url": "/a"})).content_key,
            model_from(json!({"url": "/b"})).content_key
        );
    }
}

//! Decides what this node should run, from the objects it was told of: workers by name, models,
//! model servers and datasets by object.

use std::{collections::BTreeMap, path::PathBuf};

use neptune_models::{Digest, Want};
use neptune_wire::{
    ContentHash, ModelServer, ObjectContent, ObjectKey, ObjectName, Replica, Resource, ServedModel,
    Worker, WorkerName,
};
use serde_json::Value;

use crate::{
    dataset::{self, WantedDataset},
    edition::refusal,
};

/// All that the node should have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    pub workers: BTreeMap<WorkerName, Wanted>,
    pub models: BTreeMap<ObjectKey, WantedModel>,
    pub servers: BTreeMap<ObjectKey, WantedServer>,
    pub datasets: BTreeMap<ObjectKey, WantedDataset>,
    /// Workers whose name another object has already taken, with that object.
    pub clashes: Vec<(ObjectKey, Worker, ObjectKey)>,
}

/// A model server as this node has to run it.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedServer {
    pub uid: String,
    pub serving: Box<ModelServer>,
    /// Why it cannot be served before the spec is changed.
    pub refusal: Option<String>,
}

/// Where a model is to come from. Equal sources are one model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    pub url: String,
    pub sha256: Option<String>,
}

impl Source {
    /// Where a served model is to come from.
    pub fn of(model: &ServedModel) -> Self {
        Self { url: model.url.clone(), sha256: model.sha256.clone() }
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the URL or the digest, for a person.
    pub fn want(&self) -> Result<Want, String> {
        let sha256 = self.sha256.as_ref().map(|text| text.parse::<Digest>()).transpose();
        let sha256 = sha256.map_err(|error| {
            format!("{error}; write what `sha256sum FILE` prints, or leave it out")
        })?;
        Want::parse(&self.url, sha256).map_err(|error| error.to_string())
    }
}

impl Desired {
    /// Whether a worker or a model server of this name is wanted.
    pub fn names(&self, name: &WorkerName) -> bool {
        self.workers.contains_key(name) || self.server_named(name).is_some()
    }

    /// The object whose server has this name.
    pub fn server_named(&self, name: &WorkerName) -> Option<&ObjectKey> {
        let mut servers = self.servers.iter().filter(|(_, server)| server.serving.name == *name);
        servers.next().map(|(key, _)| key).filter(|_| !self.workers.contains_key(name))
    }
}

/// A worker and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub owner: ObjectKey,
    pub uid: String,
    pub worker: Worker,
    /// The model object that it needs.
    pub model: ObjectKey,
    /// The dataset object that it needs, if it names one.
    pub dataset: Option<ObjectKey>,
}

/// A model object as this node has to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedModel {
    /// Where it is, or why that cannot be: for a person, naming the field and what helps.
    pub source: Result<ModelSource, String>,
    /// `spec.modelUrl`.
    pub url: String,
    /// 64 lower-case hex digits.
    pub sha256: Option<String>,
    /// Tells this content from any other that the object ever named.
    pub content_key: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// To be fetched.
    Remote(Source),
    /// On the node already: an absolute path.
    Local(PathBuf),
}

/// Reads the objects. An object that cannot be right is kept with the reason.
pub fn desired(replica: &Replica) -> Desired {
    let mut desired = Desired::default();
    for (key, held) in replica.objects() {
        match key.resource {
            Resource::Models => {
                desired.models.insert(key.clone(), model(&held.content));
            }
            Resource::Datasets => {
                desired.datasets.insert(key.clone(), dataset::wanted(&held.content, &held.hash));
            }
            Resource::JointInferenceServices | Resource::InferenceModels => {}
        }
        for worker in &held.content.workers {
            if let Some(other) = desired.workers.get(&worker.name) {
                desired.clashes.push((key.clone(), worker.clone(), other.owner.clone()));
                continue;
            }
            let named = |resource, name: &ObjectName| ObjectKey {
                namespace: key.namespace.clone(),
                resource,
                name: name.clone(),
            };
            let wanted = Wanted {
                owner: key.clone(),
                uid: held.content.metadata.uid.clone(),
                worker: worker.clone(),
                model: named(Resource::Models, &worker.model),
                dataset: worker.dataset.as_ref().map(|name| named(Resource::Datasets, name)),
            };
            desired.workers.insert(worker.name.clone(), wanted);
        }
    }
    for (key, held) in replica.objects() {
        if let Some(serving) = &held.content.serving {
            let server = server(&desired, &held.content.metadata.uid, serving);
            desired.servers.insert(key.clone(), server);
        }
    }
    desired
}

fn server(desired: &Desired, uid: &str, serving: &ModelServer) -> WantedServer {
    let has_name = |other: &&WantedServer| other.serving.name == serving.name;
    let name_taken = || {
        let is_taken = desired.workers.contains_key(&serving.name)
            || desired.servers.values().any(|other| has_name(&other));
        is_taken.then(|| {
            format!("another object's container on this node is named {} already; rename one of the two", serving.name)
        })
    };
    let source = || serving.model.as_ref().and_then(|model| Source::of(model).want().err());
    WantedServer {
        uid: uid.to_owned(),
        serving: Box::new(serving.clone()),
        refusal: refusal(uid, serving).or_else(name_taken).or_else(source),
    }
}

fn model(content: &ObjectContent) -> WantedModel {
    let text = |field: &str| {
        content.spec.get(field).and_then(Value::as_str).unwrap_or_default().trim().to_owned()
    };
    let url = text("modelUrl");
    let sha256 = text("sha256sum").to_ascii_lowercase();
    let content_key = ContentHash::of(&[&url, &sha256]).to_string();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = is_digest.then(|| sha256.clone());
    let source = if !sha256.is_empty() && !is_digest {
        Err(format!(
            "spec.sha256sum {sha256:?} is not 64 hex digits; write what `sha256sum FILE` prints, or leave it out"
        ))
    } else {
        source(&url, digest.as_ref())
    };
    WantedModel { source, url, sha256: digest, content_key }
}

fn source(url: &str, sha256: Option<&String>) -> Result<ModelSource, String> {
    let remedy = "write http://..., https://..., s3://bucket/key, file:///... or the absolute path of a file on the node";
    match url.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(ModelSource::Local(path.into())),
        None if url.starts_with('/') => Ok(ModelSource::Local(url.into())),
        None if url.is_empty() => Err(format!("spec.modelUrl is missing; {remedy}")),
        Some(("http" | "https" | "s3", _)) => {
            let source = Source { url: url.to_owned(), sha256: sha256.cloned() };
            source.want().map_err(|why| format!("spec.modelUrl: {why}"))?;
            Ok(ModelSource::Remote(source))
        }
        _ => Err(format!("spec.modelUrl {url:?} cannot be used on a node; {remedy}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{Insert, Revision};
    use serde_json::json;

    use super::*;

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
    fn a_worker_needs_the_model_of_its_own_namespace() {
        let worker =
            json!({"workers": [{"name": "w", "role": "edge", "image": "i", "model": "m"}]});
        let found = desired(&replica(&[("shop/jointinferenceservices/s", worker.clone())]));
        let wanted = &found.workers[&"w".parse().unwrap()];
        assert_eq!(wanted.model.to_string(), "shop/models/m");
        assert_eq!(wanted.dataset, None);
        assert_eq!(wanted.uid, "uid-0");

        let both = [
            ("a/jointinferenceservices/s", worker.clone()),
            ("b/jointinferenceservices/s", worker),
        ];
        let found = desired(&replica(&both));
        assert_eq!(found.workers.len(), 1);
        assert_eq!(found.clashes[0].0.to_string(), "b/jointinferenceservices/s");
        assert_eq!(found.clashes[0].2.to_string(), "a/jointinferenceservices/s");
    }

    #[test]
    fn a_model_is_downloaded_or_taken_from_the_node_or_refused_with_the_field() {
        let of = |spec: Value| {
            desired(&replica(&[("d/models/m", json!({"spec": spec}))]))
                .models
                .pop_first()
                .unwrap()
                .1
        };
        let http = of(json!({"modelUrl": "https://h/m.bin", "sha256sum": "AB".repeat(32)}));
        let remote = |url: &str, sha256| ModelSource::Remote(Source { url: url.into(), sha256 });
        assert_eq!(http.source, Ok(remote("https://h/m.bin", Some("ab".repeat(32)))));
        let s3 = of(json!({"modelUrl": "s3://bucket/m"}));
        assert_eq!(s3.source, Ok(remote("s3://bucket/m", None)));
        assert_eq!(http.sha256, Some("ab".repeat(32)));
        for url in ["/models/m.bin", "file:///models/m.bin"] {
            assert_eq!(
                of(json!({"modelUrl": url})).source,
                Ok(ModelSource::Local("/models/m.bin".into()))
            );
        }
        for (spec, field) in [
            (json!({}), "spec.modelUrl"),
            (json!({"modelUrl": "s3://b/m"}), "spec.modelUrl"),
            (json!({"modelUrl": "ftp://host/m"}), "spec.modelUrl"),
            (json!({"modelUrl": "file://host/m"}), "spec.modelUrl"),
            (json!({"modelUrl": "m.bin"}), "spec.modelUrl"),
            (json!({"modelUrl": "/m", "sha256sum": "12"}), "spec.sha256sum"),
        ] {
            let why = of(spec.clone()).source.unwrap_err();
            assert!(why.contains(field), "{spec}: {why}");
        }
        assert_ne!(
            of(json!({"modelUrl": "/a"})).content_key,
            of(json!({"modelUrl": "/b"})).content_key
        );
    }
}

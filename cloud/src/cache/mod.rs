//! Watches what services depend on, keeps copies of it, and says what changed. What a change means
//! is the controllers'.

pub mod framework_table;

use std::fmt::Debug;

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Node, Pod, Service},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store, store::Writer},
        watcher::{self, watcher},
    },
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model};
use neptune_wire::Resource as Plural;
use serde::de::DeserializeOwned;

use crate::{
    controllers::runtime::controller::Kind,
    kubernetes::workloads::{INFERENCE_MODEL_ANNOTATION, MANAGED_BY, SERVICE_ANNOTATION},
    worker::frameworks::CONFIG_MAP,
};

/// Copies of what the API server has.
#[derive(Debug, Clone)]
pub struct Caches {
    /// The services.
    pub joint_inference_services: Store<JointInferenceService>,
    /// The inference models.
    pub inference_models: Store<InferenceModel>,
    /// The datasets.
    pub datasets: Store<Dataset>,
    /// All models.
    pub models: Store<Model>,
    /// All nodes.
    pub nodes: Store<Node>,
    /// The Deployments that this program made.
    pub deployments: Store<Deployment>,
    /// The Services that this program made.
    pub services: Store<Service>,
    /// Their Pods. Only for better messages: without the right to read Pods it stays empty.
    pub pods: Store<Pod>,
    /// The framework table, if there is one.
    pub frameworks: Store<ConfigMap>,
}

/// Something is not as it was.
#[derive(Debug, Clone)]
pub enum Change {
    /// A service was made or changed.
    Service(Box<JointInferenceService>),
    /// A service is gone.
    ServiceGone(Box<JointInferenceService>),
    /// An inference model was made or changed.
    InferenceModel(Box<InferenceModel>),
    /// An inference model is gone.
    InferenceModelGone(Box<InferenceModel>),
    /// A dataset was made or changed.
    Dataset(Box<Dataset>),
    /// A dataset is gone.
    DatasetGone(Box<Dataset>),
    /// A model was made or changed.
    Model(Box<Model>),
    /// A model is gone.
    ModelGone(Box<Model>),
    /// A node came, changed or went.
    Node(String),
    /// A Deployment, Service or Pod that we made came, changed or went.
    Owned {
        /// The owner's kind.
        owner: Plural,
        /// The owner's namespace.
        namespace: String,
        /// The owner's name.
        name: String,
        /// Whether it went.
        gone: bool,
    },
    /// The framework table came, changed or went.
    Frameworks,
    /// A watch began anew: anything may have come, changed or gone unseen.
    Relisted,
}

impl Caches {
    /// Starts to watch. The watches end when `changes` has no receiver any more.
    ///
    /// `only` is the one namespace whose objects are watched, all of them if there is none; `namespace`
    /// is where the framework table is.
    pub fn watch(
        client: &Client,
        only: Option<&str>,
        namespace: &str,
        changes: &UnboundedSender<Change>,
    ) -> Self {
        let ours = watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        let table = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let all = watcher::Config::default;
        Self {
            joint_inference_services: follow(
                scoped(client, only),
                all(),
                changes,
                |service: &JointInferenceService, gone| {
                    let service = Box::new(service.clone());
                    Some(if gone { Change::ServiceGone(service) } else { Change::Service(service) })
                },
            ),
            inference_models: follow(
                scoped(client, only),
                all(),
                changes,
                |model: &InferenceModel, gone| {
                    let model = Box::new(model.clone());
                    Some(if gone {
                        Change::InferenceModelGone(model)
                    } else {
                        Change::InferenceModel(model)
                    })
                },
            ),
            datasets: follow(scoped(client, only), all(), changes, |dataset: &Dataset, gone| {
                let dataset = Box::new(dataset.clone());
                Some(if gone { Change::DatasetGone(dataset) } else { Change::Dataset(dataset) })
            }),
            models: follow(scoped(client, only), all(), changes, |model: &Model, gone| {
                let model = Box::new(model.clone());
                Some(if gone { Change::ModelGone(model) } else { Change::Model(model) })
            }),
            nodes: follow(Api::all(client.clone()), all(), changes, |node: &Node, _| {
                Some(Change::Node(node.name_any()))
            }),
            deployments: follow_owned::<Deployment>(scoped(client, only), ours.clone(), changes),
            services: follow_owned::<Service>(scoped(client, only), ours.clone(), changes),
            pods: follow(scoped(client, only), ours, changes, |pod: &Pod, _| {
                let owners = [
                    (Plural::JointInferenceServices, SERVICE_ANNOTATION),
                    (Plural::InferenceModels, INFERENCE_MODEL_ANNOTATION),
                ];
                let (owner, name) = owners.into_iter().find_map(|(owner, annotation)| {
                    Some((owner, pod.annotations().get(annotation)?.clone()))
                })?;
                let namespace = pod.namespace().unwrap_or_default();
                Some(Change::Owned { owner, namespace, name, gone: false })
            }),
            frameworks: follow(
                Api::namespaced(client.clone(), namespace),
                table,
                changes,
                |_: &ConfigMap, _| Some(Change::Frameworks),
            ),
        }
    }

    /// Resolves when each copy is whole.
    pub async fn ready(&self) {
        // The writers live in tasks of their own, so the only error, a dropped writer, means the end.
        let _ = self.joint_inference_services.wait_until_ready().await;
        let _ = self.inference_models.wait_until_ready().await;
        let _ = self.datasets.wait_until_ready().await;
        let _ = self.models.wait_until_ready().await;
        let _ = self.nodes.wait_until_ready().await;
        let _ = self.deployments.wait_until_ready().await;
        let _ = self.services.wait_until_ready().await;
        let _ = self.frameworks.wait_until_ready().await;
    }
}

fn scoped<K>(client: &Client, only: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match only {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn follow_owned<K>(
    api: Api<K>,
    config: watcher::Config,
    changes: &UnboundedSender<Change>,
) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    follow(api, config, changes, |object: &K, gone| {
        let owner =
            object.owner_references().iter().find(|owner| owner.controller == Some(true))?;
        let namespace = object.namespace().unwrap_or_default();
        let kind = owner_kind(&owner.kind)?;
        Some(Change::Owned { owner: kind, namespace, name: owner.name.clone(), gone })
    })
}

fn owner_kind(kind: &str) -> Option<Plural> {
    fn named<K: Kind>(kind: &str) -> Option<Plural> {
        (K::kind(&()) == kind).then_some(K::RESOURCE)
    }
    named::<JointInferenceService>(kind).or_else(|| named::<InferenceModel>(kind))
}

fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    changes: &UnboundedSender<Change>,
    change: impl Fn(&K, bool) -> Option<Change> + Send + 'static,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    tokio::spawn(run(api, config, writer, changes.clone(), change));
    store
}

async fn run<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    changes: UnboundedSender<Change>,
    change: impl Fn(&K, bool) -> Option<Change>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let kind = K::kind(&()).into_owned();
    let events = watcher(api, config)
        // Who wrote which field is of no use here, and large.
        .modify(|object| object.managed_fields_mut().clear())
        .default_backoff();
    let mut events = std::pin::pin!(reflector::reflector(writer, events));
    let mut failing = false;
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(event) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(kind, "watching again");
                }
                match &event {
                    watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                        change(object, false)
                    }
                    watcher::Event::Delete(object) => change(object, true),
                    watcher::Event::Init => None,
                    watcher::Event::InitDone => Some(Change::Relisted),
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(kind, %error, "cannot watch; trying again (are the CRDs applied? kubectl apply -f crds/)");
                }
                None
            }
        };
        if let Some(change) = change
            && changes.unbounded_send(change).is_err()
        {
            return;
        }
    }
}

//! For tests: what an API server says of a spec by the schemas and rules of the CRDs. They may refuse less
//! than a controller, which knows the cluster, but nothing that it takes.
#![allow(clippy::panic)]

use std::fmt::Debug;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, Error,
    api::PostParams,
    core::NamespaceResourceScope,
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// How often the two judges said what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Both took the spec.
    pub accepted: usize,
    /// Both refused it.
    pub rejected: usize,
    /// The API server took it, and the controller says in a condition what is wrong.
    pub rejected_later: usize,
}

/// Has both judge the sample with each of the changes (RFC 7386) made to its spec.
///
/// Panics at a spec that the API server refuses and the controller would take.
pub async fn compare<K>(sample: &K, changes: &[Value], takes: impl Fn(&K) -> bool) -> Tally
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let api: Api<K> = Api::default_namespaced(cluster().await);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut tally = Tally::default();
    for change in changes {
        let mut object = serde_json::to_value(sample).expect("a sample is JSON");
        merge(&mut object["spec"], change);
        let object: K = serde_json::from_value(object).expect("the change fits the type");
        let refusal = match api.create(&dry_run, &object).await {
            Ok(_) => None,
            Err(Error::Api(status)) if status.code == 422 => Some(status.message),
            Err(error) => panic!("{change}: {error}"),
        };
        match (takes(&object), refusal) {
            (true, None) => tally.accepted += 1,
            (false, Some(_)) => tally.rejected += 1,
            (false, None) => tally.rejected_later += 1,
            (true, Some(message)) => panic!("{change} is refused, and could work: {message}"),
        }
    }
    tally
}

/// A client of an API server in this process that has the CRDs.
pub async fn cluster() -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(devcluster::serve(listener, std::future::pending()));
    let client = Client::try_from(Config::new(url.parse().expect("a URL"))).expect("a client");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in neptune_api::crdgen::crds() {
        let name = crd.metadata.name.clone().expect("a CRD has a name");
        crds.create(&PostParams::default(), &crd).await.expect("the CRD is valid");
        await_condition(crds.clone(), &name, is_crd_established()).await.expect("it is served");
    }
    client
}

fn merge(value: &mut Value, change: &Value) {
    match (value.as_object_mut(), change.as_object()) {
        (Some(fields), Some(changes)) => {
            for (name, change) in changes {
                if change.is_null() {
                    fields.remove(name);
                } else {
                    merge(fields.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        _ => *value = change.clone(),
    }
}

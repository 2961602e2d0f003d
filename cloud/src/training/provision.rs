//! Creates the aggregator's Secret with its key, and its volume, unless they exist.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::core::v1::{PersistentVolumeClaim, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams};
use neptune_pinned_tls::TlsKey;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

use super::KEY;
use crate::{
    error::{Class, Error},
    finding::Finding,
    reason::Reason,
};

/// The key of the aggregator. Makes one if the Secret does not exist; a Secret is never changed.
///
/// # Errors
/// The API server rejects a request, or the Secret has another owner or no usable key.
pub async fn key(client: &Client, metadata: &ObjectMeta) -> Result<TlsKey, Finding> {
    let made = TlsKey::generate();
    let pem = ByteString(made.to_pem().as_bytes().to_vec());
    let secret = Secret {
        metadata: metadata.clone(),
        data: Some(BTreeMap::from([(KEY.to_owned(), pem)])),
        // Neither a person nor a program can replace the key that nodes have pinned.
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    };
    let held = get_or_create(client, &secret).await?;
    let name = format!("Secret {}/{}", held.namespace().unwrap_or_default(), held.name_any());
    let data = held.data.as_ref().and_then(|data| data.get(KEY));
    let pem = data.and_then(|pem| std::str::from_utf8(&pem.0).ok()).unwrap_or_default();
    TlsKey::from_pem(pem, &name).map_err(|error| {
        Finding::new(Reason::AggregatorRefused, format!("{error}: kubectl delete {name}"))
    })
}

/// Creates the volume unless it exists.
///
/// # Errors
/// The API server rejects a request, or the volume has another owner.
pub async fn volume(client: &Client, volume: &PersistentVolumeClaim) -> Result<(), Finding> {
    get_or_create(client, volume).await.map(|_| ())
}

async fn get_or_create<K>(client: &Client, desired: &K) -> Result<K, Finding>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let name = desired.name_any();
    let namespace = desired.namespace().unwrap_or_default();
    let what = format!("{} {namespace}/{name}", K::kind(&()));
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let get = async || api.get_opt(&name).await.map_err(|error| failed("get", &what, error));
    let held = match get().await? {
        Some(held) => Some(held),
        None => match api.create(&PostParams::default(), desired).await {
            Ok(created) => {
                tracing::info!(object = what, "object created");
                return Ok(created);
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => get().await?,
            Err(error) => return Err(failed("create", &what, error)),
        },
    };
    let owner = |object: &K| {
        let owners = object.owner_references().iter();
        owners.filter(|it| it.controller == Some(true)).map(|it| it.uid.clone()).next()
    };
    match held {
        Some(held) if owner(&held) == owner(desired) => Ok(held),
        _ => {
            let message = format!("{what} exists and has another owner; delete it");
            Err(Finding::new(Reason::NameTaken, message))
        }
    }
}

fn failed(verb: &str, what: &str, error: kube::Error) -> Finding {
    let error = Error::api(format!("{verb} {what}"))(error);
    if error.class() == Class::Refused {
        let message = format!("the API server rejected {what}: {}", error.answer());
        return Finding::new(Reason::AggregatorRefused, message);
    }
    Finding::new(Reason::WaitingForAggregator, format!("{error}; retrying"))
}

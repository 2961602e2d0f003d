//! Reads the Secrets and `ConfigMap`s that an object refers to: each by its name, with `get` only.
//! Their contents are in memory while a plan is made; between two plans only their versions are.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, ResourceExt as _};
use neptune_cloud_kinds::worker::config::{
    objects::{ConfigObject, ConfigObjects, ReadObject},
    references::{ConfigKind, ConfigName},
};

use super::{context::Context, controller::Controller};

/// The time for one read. A review at admission waits for it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the objects that an object refers to.
pub async fn read_config<K: Controller>(object: &K, context: &Context) -> ConfigObjects {
    let references = object.config_references(context);
    read_references(object, references, context).await
}

/// Reads these objects in the namespace of an object.
pub async fn read_references<K: Controller>(
    object: &K,
    references: BTreeSet<ConfigName>,
    context: &Context,
) -> ConfigObjects {
    let namespace = object.namespace().unwrap_or_default();
    let reads = references.into_iter().map(|name| async {
        let read = read(context.client(), &namespace, &name).await;
        (name, read)
    });
    let read = join_all(reads).await.into_iter().collect();
    ConfigObjects { read, controller: context.controller().clone() }
}

async fn read(client: &Client, namespace: &str, reference: &ConfigName) -> ReadObject {
    let (client, name) = (client.clone(), &*reference.name);
    let object = async {
        match reference.kind {
            ConfigKind::Secret => {
                let secret = Api::<Secret>::namespaced(client, namespace).get_opt(name).await?;
                Ok(secret.map(ConfigObject::from_secret))
            }
            ConfigKind::ConfigMap => {
                let map = Api::<ConfigMap>::namespaced(client, namespace).get_opt(name).await?;
                Ok::<_, kube::Error>(map.map(ConfigObject::from_config_map))
            }
        }
    };
    let what = match tokio::time::timeout(TIMEOUT, object).await {
        Ok(Ok(Some(object))) => return ReadObject::Present(object.into()),
        Ok(Ok(None)) => return ReadObject::Missing,
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => return ReadObject::Forbidden,
        // The text of an error may have a part of the answer.
        Ok(Err(kube::Error::Api(status))) => format!("status {}", status.code),
        Ok(Err(_)) => "no valid answer".to_owned(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(%reference, what, "cannot read; nodes keep what they have");
    ReadObject::Unknown
}

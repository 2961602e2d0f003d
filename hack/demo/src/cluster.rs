//! The demo's Kubernetes client. It applies files like `kubectl apply --server-side`.

use std::path::Path;

use anyhow::Context;
use kube::{
    Client, Config, ResourceExt,
    api::{Api, DynamicObject, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    discovery,
};
use serde::Deserialize;

/// Returns a client for the kubeconfig's current context.
pub async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Applies every document of a YAML text, server-side, and takes over conflicting fields.
pub async fn apply(client: &Client, yaml: &str) -> anyhow::Result<()> {
    for object in documents(yaml)? {
        let types = object.types.clone().context("a YAML document lacks apiVersion and kind")?;
        let kind = kube::core::GroupVersionKind::try_from(&types)?;
        let (resource, capabilities) = discovery::pinned_kind(client, &kind)
            .await
            .with_context(|| format!("{} {}", types.kind, object.name_any()))?;
        let api: Api<DynamicObject> = if capabilities.scope == discovery::Scope::Namespaced {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        } else {
            Api::all_with(client.clone(), &resource)
        };
        let name = object.name_any();
        api.patch(&name, &PatchParams::apply("neptune-demo").force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("{} {name}", types.kind))?;
    }
    Ok(())
}

fn documents(yaml: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for text in yaml.split("\n---") {
        let value: serde_json::Value = serde_saphyr::from_str(text)?;
        if !value.is_null() {
            objects.push(DynamicObject::deserialize(value)?);
        }
    }
    Ok(objects)
}

//! Applies manifests like `kubectl apply --server-side`, without kubectl.

use anyhow::Context;
use kube::{
    Client, ResourceExt,
    api::{Api, DynamicObject, Patch, PatchParams},
    discovery,
};
use serde::Deserialize;

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

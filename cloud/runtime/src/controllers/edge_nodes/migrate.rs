//! Moves the trusted keys from the `ConfigMap` of earlier versions to `EdgeNodes`. The steps are
//! decided by `nodes::migration`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource as _,
    api::{Patch, PatchParams},
};
use neptune_cloud_kinds::{
    nodes::migration::{MIGRATED, NODE_KEYS, Step, steps},
    steps::ObjectEvent,
};
use serde_json::json;

use crate::{
    controllers::runtime::{Context, publish_event_about},
    error::Error,
    kubernetes::edge_node_writes::{create, patch_status},
};

/// The pause after a failed attempt.
const RETRY: Duration = Duration::from_secs(10);

/// Migrates, and repeats that until it is done. Until then no reported key is recorded.
pub async fn migrate(context: &Context, namespace: &str) {
    let mut is_failing = false;
    while let Err(error) = attempt(context, namespace).await {
        if !std::mem::replace(&mut is_failing, true) {
            tracing::warn!(%error, "cannot migrate the keys of nodes to EdgeNodes; retrying");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn attempt(context: &Context, namespace: &str) -> Result<(), Error> {
    let (client, nodes) = (context.client(), &context.caches().nodes);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let source = format!("ConfigMap {namespace}/{NODE_KEYS}");
    let config_map = api.get_opt(NODE_KEYS).await.map_err(Error::api(format!("get {source}")))?;
    let is_required = context.fleet().requires_known_keys();
    let steps = steps(
        config_map.as_ref(),
        |node| nodes.has_node_object(node),
        |node| nodes.keys(node.as_str()),
        is_required,
    );
    for next in steps {
        match next {
            Step::Create(node, spec) => drop(create(client, &node, spec).await?),
            Step::Record(node, [seen, waiting]) => {
                let status = json!({"trustedKey": seen, "reportedKey": waiting});
                patch_status(client, &node, None, status).await?;
            }
            Step::Report(text) => {
                tracing::warn!("{text}");
                if let Some(config_map) = &config_map {
                    let event = ObjectEvent::warning("NodeKeysNotMigrated", text);
                    publish_event_about(config_map.object_ref(&()), event, context).await;
                }
            }
            Step::Finish => {
                let patch = json!({"metadata": {"annotations": {MIGRATED: "true"}}});
                let patched =
                    api.patch(NODE_KEYS, &PatchParams::default(), &Patch::Merge(&patch)).await;
                patched.map_err(Error::api(format!("annotate {source}")))?;
                tracing::info!("the keys of nodes were migrated from {source} to EdgeNodes");
            }
        }
    }
    Ok(())
}

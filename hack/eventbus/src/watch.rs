//! Watches Rules and RuleEndpoints in a Kubernetes cluster, as cloudcore's informers do.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;

use crate::Emulator;

/// Pause between attempts: the CRDs may be created after the emulator starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Applies the cluster's objects and their changes to the emulator until the future is dropped.
pub async fn follow(emulator: &Emulator, client: &Client) {
    // In parallel: as in cloudcore, a Rule may arrive before its RuleEndpoint, and is then retried
    // after 5 s.
    tokio::join!(
        follow_kind(emulator, client, "RuleEndpoint"),
        follow_kind(emulator, client, "Rule")
    );
}

async fn follow_kind(emulator: &Emulator, client: &Client, kind: &str) -> Infallible {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rules.kubeedge.io", "v1", kind));
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut listed: BTreeMap<String, Value> = BTreeMap::new();
    loop {
        match events.next().await {
            Some(Ok(Event::Init)) => listed.clear(),
            Some(Ok(Event::InitApply(object))) => {
                let (name, object) = read(kind, object);
                apply(emulator, &object);
                listed.insert(name, object);
            }
            Some(Ok(Event::InitDone)) => {
                let before = std::mem::replace(&mut known, std::mem::take(&mut listed));
                for (_, gone) in before.into_iter().filter(|(name, _)| !known.contains_key(name)) {
                    delete(emulator, gone);
                }
            }
            Some(Ok(Event::Apply(object))) => {
                let (name, object) = read(kind, object);
                apply(emulator, &object);
                known.insert(name, object);
            }
            Some(Ok(Event::Delete(object))) => {
                let (name, object) = read(kind, object);
                known.remove(&name);
                delete(emulator, object);
            }
            Some(Err(error)) => {
                tracing::debug!(kind, %error, "watch failed");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            // The stream of a watcher never ends.
            None => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// The unique name, and the object with its type, which list items lack.
fn read(kind: &str, object: DynamicObject) -> (String, Value) {
    let metadata = &object.metadata;
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let name = format!("{}/{}", part(&metadata.namespace), part(&metadata.name));
    let mut value = object.data;
    value["apiVersion"] = "rules.kubeedge.io/v1".into();
    value["kind"] = kind.into();
    value["metadata"] = serde_json::json!({
        "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid,
    });
    (name, value)
}

fn apply(emulator: &Emulator, object: &Value) {
    if let Err(error) = emulator.apply(object.clone()) {
        tracing::warn!(%error, "ignoring an invalid object");
    }
}

fn delete(emulator: &Emulator, object: Value) {
    if let Err(error) = emulator.delete(object) {
        tracing::warn!(%error, "ignoring an invalid object");
    }
}

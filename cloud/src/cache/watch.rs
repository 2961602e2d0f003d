//! One watch: keeps a cache up to date, and sends a [`Change`] per event. Reconnects by itself.

use std::fmt::Debug;

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store, store::Writer},
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;

use super::Change;

/// Starts to watch. `change` maps an event to a [`Change`]; its second argument is whether the
/// object was deleted. The watch ends when `changes` has no receiver any more.
pub fn watch<K>(
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
        // Large, and not used here.
        .modify(|object| object.managed_fields_mut().clear())
        .default_backoff();
    let mut events = std::pin::pin!(reflector::reflector(writer, events));
    let mut failing = false;
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(event) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(kind, "watch recovered");
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
                    tracing::warn!(kind, %error, "watch failed; retrying (check that the CRDs are applied: kubectl apply -f crds/)");
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

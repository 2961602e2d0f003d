//! One watch: keeps a cache and its index up to date, and sends a [`Change`] per event. Reconnects
//! by itself, a few seconds after the API server answers again.

use std::{
    fmt::Debug,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, store::Writer},
        utils::Backoff as WatchBackoff,
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;

use neptune_backoff::{Backoff, Retries};

use super::{Change, Indexed, IndexedStore, outage::ApiServer};

/// The pause before a failed watch is started again. The longest one bounds how long a cache stays
/// outdated after an outage.
const RESTART: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

struct Restarts(Retries);

impl Iterator for Restarts {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // The standard library's only source of randomness.
        Some(self.0.failed(RandomState::new().build_hasher().finish()))
    }
}

impl WatchBackoff for Restarts {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// A kind that can be watched and found by its keys.
pub trait Watched:
    Indexed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Indexed
        + Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Starts to watch. `api_server` is informed of failures. `change` maps an event to a [`Change`];
/// its second argument is whether the object was deleted. The watch ends when `changes` has no
/// receiver any more.
pub fn watch<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    (changes, api_server): (&UnboundedSender<Change>, &Arc<ApiServer>),
    change: impl Fn(&K, bool) -> Option<Change> + Send + 'static,
) -> IndexedStore<K> {
    let (store, writer) = reflector::store();
    let store = IndexedStore::new(store);
    let outputs = (store.clone(), changes.clone(), Arc::clone(api_server));
    tokio::spawn(run(api, config, writer, outputs, change));
    store
}

async fn run<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    (store, changes, api_server): (IndexedStore<K>, UnboundedSender<Change>, Arc<ApiServer>),
    change: impl Fn(&K, bool) -> Option<Change>,
) {
    let kind = K::kind(&()).into_owned();
    let events = watcher(api, config)
        // Large, and not used here.
        .modify(|object| object.managed_fields_mut().clear())
        .backoff(Restarts(Retries::new(RESTART)));
    let mut events = std::pin::pin!(reflector::reflector(writer, events));
    let mut failing = false;
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(event) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(kind, "watch recovered");
                }
                api_server.answered();
                match &event {
                    watcher::Event::Apply(object) => {
                        store.apply(object);
                        change(object, false)
                    }
                    watcher::Event::Delete(object) => {
                        store.delete(object);
                        change(object, true)
                    }
                    // The objects of a list take effect together, with its end.
                    watcher::Event::Init | watcher::Event::InitApply(_) => None,
                    watcher::Event::InitDone => {
                        store.rebuild();
                        Some(Change::Relisted)
                    }
                }
            }
            Err(error) => {
                if api_server.failed(&format!("watch {kind}"), &error) {
                    // One line for all watches.
                } else if !std::mem::replace(&mut failing, true) {
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

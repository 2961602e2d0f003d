//! One watch: keeps a cache and its index up to date, and sends a [`Change`] per event. Reconnects
//! by itself, a few seconds after the API server answers again, and lists the objects of a missing
//! kind once its CRD is there. What is logged is decided by `listing`.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, store::Writer},
        watcher::{self, watcher},
    },
};
use neptune_cloud_kinds::{index_key::Indexed, kind::crd_name};
use serde::de::DeserializeOwned;
use tokio::sync::watch::Sender;

use neptune_backoff::{Backoff, Retries};
use neptune_program::random::random;

use super::{
    Change, IndexedStore, Update,
    listing::{Failure, Listing, Transition, WatchState, is_success},
};
use crate::kubernetes::outage::ApiServer;

/// The pause before a failed watch is started again. The longest one bounds how long a cache stays
/// outdated after an outage.
const RESTART: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

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

/// Starts to watch. `api_server` is informed of failures. `change` maps an event to a [`Change`]. The
/// watch ends when `changes` has no receiver any more.
pub fn watch<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    changes: (&UnboundedSender<Change>, &Arc<ApiServer>),
    change: impl Fn(&K, Update<K>) -> Option<Change> + Send + 'static,
) -> IndexedStore<K> {
    let (store, watch) = prepare(changes);
    watch.start(api, config, change, |_| {}, |_| {});
    store
}

/// A watch that has not started, and its cache.
pub fn prepare<K: Watched>(
    (changes, api_server): (&UnboundedSender<Change>, &Arc<ApiServer>),
) -> (IndexedStore<K>, PreparedWatch<K>) {
    let (store, writer) = reflector::store();
    let (sender, listing) = tokio::sync::watch::channel(Listing::default());
    let store = IndexedStore::new(store, listing);
    let output = Output {
        writer,
        store: store.clone(),
        listing: sender,
        changes: changes.clone(),
        api_server: Arc::clone(api_server),
    };
    (store, PreparedWatch(output))
}

/// A watch that has not started.
pub struct PreparedWatch<K: Watched>(Output<K>);

impl<K: Watched> PreparedWatch<K> {
    /// Starts to watch. `stored` is called after the cache has the object, or without an object
    /// after the cache has all of a list, and before the change is sent. `trim` drops what nobody
    /// reads before an object is cached.
    pub fn start(
        self,
        api: Api<K>,
        config: watcher::Config,
        change: impl Fn(&K, Update<K>) -> Option<Change> + Send + 'static,
        stored: impl Fn(Option<&K>) + Send + 'static,
        trim: fn(&mut K),
    ) {
        tokio::spawn(run(api, config, self.0, (change, stored), trim));
    }
}

/// The stores, channels and gauges that a watch updates.
struct Output<K: Watched> {
    writer: Writer<K>,
    store: IndexedStore<K>,
    listing: Sender<Listing>,
    changes: UnboundedSender<Change>,
    api_server: Arc<ApiServer>,
}

async fn run<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    mut output: Output<K>,
    (change, stored): (impl Fn(&K, Update<K>) -> Option<Change>, impl Fn(Option<&K>)),
    trim: fn(&mut K),
) {
    let mut state = WatchState::default();
    // Not kube's own backoff: it takes the beginning of each list for a success.
    let mut retries = Retries::new(RESTART);
    let start = || {
        let events = watcher(api.clone(), config.clone());
        // Large, and not used here.
        Box::pin(events.modify(move |object| {
            object.managed_fields_mut().clear();
            trim(object);
        }))
    };
    let mut events = start();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let change = output.apply(&event, &change, &stored);
                if is_success(&event) {
                    retries.reset();
                    log::<K>(state.on_success(&event), None);
                    output.api_server.answered();
                    output.listing.send_if_modified(|held| replace(held, state.listing()));
                }
                // Only now: who handles the change sees the listing.
                if let Some(change) = change {
                    // Without a receiver the watch ends.
                    let _ = output.changes.unbounded_send(change);
                }
                if output.changes.is_closed() {
                    return;
                }
            }
            Err(error) => {
                output.api_server.failed(&format!("watch {}", K::kind(&())), &error);
                let failure = Failure::from_error(&error);
                let transition = state.on_failure(failure);
                log::<K>(transition, Some(&error));
                output.listing.send_if_modified(|held| replace(held, state.listing()));
                if transition == Transition::Missing
                    && output.changes.unbounded_send(Change::KindMissing).is_err()
                {
                    return;
                }
                if failure == Failure::Expired {
                    // The API server answered: the pause is short, and all watches pause differently.
                    retries.reset();
                }
                tokio::time::sleep(retries.failed(random())).await;
                if failure.needs_list() {
                    events = start();
                }
            }
        }
    }
}

/// Returns whether that changes the value.
fn replace<T: PartialEq>(held: &mut T, new: T) -> bool {
    let differs = *held != new;
    *held = new;
    differs
}

impl<K: Watched> Output<K> {
    /// Updates the cache and its index. Returns what has changed.
    fn apply(
        &mut self,
        event: &watcher::Event<K>,
        change: &impl Fn(&K, Update<K>) -> Option<Change>,
        stored: &impl Fn(Option<&K>),
    ) -> Option<Change> {
        let before = match event {
            watcher::Event::Apply(object) => self.store.get(&ObjectRef::from_obj(object)),
            _ => None,
        };
        self.writer.apply_watcher_event(event);
        match event {
            watcher::Event::Apply(object) => {
                self.store.apply(object);
                stored(Some(object));
                change(object, Update::Applied { before })
            }
            watcher::Event::Delete(object) => {
                self.store.delete(object);
                stored(Some(object));
                change(object, Update::Deleted)
            }
            // The objects of a list take effect together, with its end.
            watcher::Event::Init | watcher::Event::InitApply(_) => None,
            watcher::Event::InitDone => {
                self.store.rebuild();
                stored(None);
                Some(Change::Relisted)
            }
        }
    }
}

fn log<K: Watched>(transition: Transition, error: Option<&watcher::Error>) {
    let kind = K::kind(&());
    let error = error.map(tracing::field::display);
    match transition {
        Transition::None => {}
        Transition::Missing => tracing::warn!(
            %kind,
            crd = crd_name::<K>(),
            "the CRD is missing; the controller works without this kind until the CRD is applied (kubectl apply -f crds/)"
        ),
        Transition::Appeared => {
            tracing::info!(%kind, crd = crd_name::<K>(), "the missing CRD was applied");
        }
        Transition::Failed => tracing::warn!(%kind, error, "watch failed; retrying"),
        Transition::Recovered => tracing::info!(%kind, "watch recovered"),
    }
}

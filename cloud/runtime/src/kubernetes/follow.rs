//! Watches one object by its name.

use std::fmt::Debug;

use futures::{Stream, StreamExt as _};
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;

/// Returns each version of an object, and `None` while it does not exist. It needs the rights to
/// list and watch the object by its name. Failed watches are repeated with a growing delay.
pub fn follow<K>(api: Api<K>, name: &str) -> impl Stream<Item = Option<K>> + Send + use<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let object = name.to_owned();
    watcher::watch_object(api, name).default_backoff().filter_map(move |watched| {
        let watched =
            watched.inspect_err(|error| tracing::debug!(%error, object, "watch failed; retrying"));
        std::future::ready(watched.ok())
    })
}

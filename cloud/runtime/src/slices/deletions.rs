//! Follows the metadata of the slices while this replica leads. A slice that a person deletes is
//! created again from memory.

use std::{collections::HashSet, time::Duration};

use futures::{StreamExt as _, pin_mut};
use kube::{
    core::PartialObjectMeta,
    runtime::watcher::{Config, Event, watcher},
};
use neptune_api::NodeReportSlice;

use super::api::{SliceId, managed};
use crate::{cache::scoped, controllers::runtime::Context};

/// The pause after a failed watch.
const RETRY: Duration = Duration::from_secs(5);

/// Marks deleted slices, indefinitely. Follows those in the namespace `only`, or in all.
pub async fn follow_deletions(context: &Context, only: Option<&str>) {
    let api = scoped::<PartialObjectMeta<NodeReportSlice>>(context.client(), only);
    let events = watcher(api, Config::default().labels(&managed()));
    pin_mut!(events);
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Delete(slice)) => {
                if let Some(id) = SliceId::new(&slice.metadata) {
                    delete(&id, context);
                }
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(slice)) => {
                listed.extend(SliceId::new(&slice.metadata).map(|id| (id.uid, id.index)));
            }
            Ok(Event::InitDone) => delete_others(&std::mem::take(&mut listed), context),
            Ok(Event::Apply(_)) => {}
            // It lists again, which finds what was deleted meanwhile.
            Err(error) => {
                tracing::debug!(%error, "the watch of NodeReportSlices failed; retrying");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn delete(id: &SliceId, context: &Context) {
    if let Some(rows) = context.fleet().known_rows(&id.uid) {
        rows.deleted(id.index);
    }
    context.slice_changes().notify_one();
}

/// Slices that are not listed were deleted without an event. One that was created meanwhile is read
/// again.
fn delete_others(listed: &HashSet<(String, u32)>, context: &Context) {
    for (uid, rows) in context.fleet().sliced() {
        for index in rows.stored_slices() {
            if !listed.contains(&(uid.clone(), index)) {
                rows.deleted(index);
            }
        }
    }
    context.slice_changes().notify_one();
}

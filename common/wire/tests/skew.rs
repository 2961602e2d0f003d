//! Messages of the neighbouring minor versions, as files in `golden`: those of the next one contain
//! fields, resources and enum values that this version does not know, those of the previous one
//! lack every field that was added since.
#![allow(clippy::unwrap_used)]

use neptune_wire::{
    DatasetState, Index, Insert, Phase, PresenceState, Role, ServerUpdateMode, StatusReport, Sync,
    Transition, WorkerReason, WorkerState, WorkerUpdateMode, decode,
};

#[test]
fn index_with_unknown_resource_is_applied() {
    let index: Index = decode(include_bytes!("golden/index-next.json")).unwrap();
    assert_eq!(index.revision.0, 7);
    let keys: Vec<_> = index.objects.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["default/models/m"]);
    let kept: Vec<_> = index.keep.iter().map(ToString::to_string).collect();
    assert_eq!(kept, ["default/datasets/d"]);
}

#[test]
fn sync_with_unknown_resource_is_answered() {
    let sync: Sync = decode(include_bytes!("golden/sync-next.json")).unwrap();
    let keys: Vec<_> = sync.objects.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["default/models/m"]);
}

#[test]
fn report_with_unknown_values_still_counts() {
    let report: StatusReport = decode(include_bytes!("golden/status-next.json")).unwrap();
    assert_eq!(report.phase, Phase::Pending, "neither running nor failed, as far as is known");
    assert_eq!(report.output.task_info.unwrap().inference_number, 9);
    let [worker] = &report.workers[..] else {
        unreachable!("a worker of an unknown role is skipped")
    };
    assert_eq!((worker.role, worker.state), (Role::Edge, WorkerState::Pending));
    assert_eq!(worker.reason, Some(WorkerReason::Unknown));
    assert_eq!(report.serving.unwrap().transition, Transition::InProgress);
    assert_eq!(report.model.unwrap().state, PresenceState::Downloading);
    assert_eq!(report.dataset.unwrap().state, DatasetState::Counting);
}

#[test]
fn insert_with_unknown_values_is_applied() {
    let insert: Insert = decode(include_bytes!("golden/insert-next.json")).unwrap();
    let [worker] = &insert.content.workers[..] else { unreachable!("an unknown role is skipped") };
    assert_eq!((worker.role, worker.model_update), (Role::Edge, WorkerUpdateMode::Restart));
    assert_eq!(insert.content.serving.unwrap().reload, ServerUpdateMode::Replace);
}

#[test]
fn messages_of_the_previous_version_are_complete() {
    let index: Index = decode(include_bytes!("golden/index-previous.json")).unwrap();
    let sync: Sync = decode(include_bytes!("golden/sync-previous.json")).unwrap();
    assert_eq!(index.objects, sync.objects);
    let report: StatusReport = decode(include_bytes!("golden/status-previous.json")).unwrap();
    assert_eq!((report.phase, report.workers.len()), (Phase::Running, 0));
    let insert: Insert = decode(include_bytes!("golden/insert-previous.json")).unwrap();
    assert_eq!(insert.content.workers.len(), 1);
}

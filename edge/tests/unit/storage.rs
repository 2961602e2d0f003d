//! The database of the agent. Every test opens it again, like a restarted agent.

#![allow(clippy::unwrap_used)]
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use neptune_agent_core::domain::{
    artifact::ArtifactSource,
    pulled_image::{PulledImage, PulledImages},
    rollout::RolloutState,
    worker_count::{WorkerCount, WorkerRun},
};
use neptune_edge::{
    Error,
    storage::{Store, dataset_record::DatasetRecord, replica::ReceiveOutcome},
};
use neptune_link::Message;
use neptune_wire::{
    Counters, Delete, Index, Insert, ObjectKey, Replica, Revision, RunReport, Topic, TopicPrefix,
    encode,
};
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::json;

const NODE: &str = "edge0";

/// The database as it is on disk.
#[expect(clippy::disallowed_methods, reason = "reads the database as another process")]
fn database(dir: &Path) -> Connection {
    Connection::open(dir.join("neptune.db")).unwrap()
}

fn message(topic: &Topic, payload: Vec<u8>) -> Message {
    Message { topic: topic.under(&TopicPrefix::default()), payload: payload.into(), retain: false }
}

fn key(name: u8) -> ObjectKey {
    format!("d/models/m{name}").parse().unwrap()
}

fn insert(name: u8, revision: u64, value: u8) -> Insert {
    let content: neptune_wire::ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "Model", "spec": value,
            "metadata": {"namespace": "d", "name": format!("m{name}"), "uid": format!("uid-{}", value / 2)},
        }))
        .unwrap();
    Insert { revision: Revision(revision), hash: content.hash(), content }
}

fn receive_one(message: &Message, replica: &mut Replica, store: &mut Store) -> ReceiveOutcome {
    store.receive(message, &NODE.parse().unwrap(), &TopicPrefix::default(), replica).unwrap()
}

fn downstream_message() -> impl Strategy<Value = Message> {
    let node = || NODE.parse().unwrap();
    let revision = 0..12u64;
    let inserted = (0..3u8, revision.clone(), 0..4u8).prop_map(move |(name, revision, value)| {
        message(&Topic::Insert(node(), key(name)), encode(&insert(name, revision, value)))
    });
    let deleted = (0..3u8, revision.clone()).prop_map(move |(name, revision)| {
        message(&Topic::Delete(node(), key(name)), encode(&Delete { revision: Revision(revision) }))
    });
    let index = (
        prop::collection::btree_map(0..3u8, (0..12u64, 0..4u8), 0..3),
        prop::collection::btree_set(0..3u8, 0..2),
        revision,
    )
        .prop_map(move |(objects, keep, revision)| {
            let listed = objects.into_iter().map(|(name, (at, value))| {
                let Insert { revision, hash, .. } = insert(name, at, value);
                (key(name), neptune_wire::IndexEntry { revision, hash })
            });
            let index = Index {
                revision: Revision(revision),
                objects: listed.collect(),
                keep: keep.into_iter().map(key).collect(),
                ..Index::default()
            };
            message(&Topic::Index(node()), encode(&index))
        });
    prop_oneof![3 => inserted, 1 => deleted, 1 => index]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// The process may be killed after any message.
    #[test]
    fn stored_replica_equals_the_replica_in_memory(messages in prop::collection::vec(downstream_message(), 1..16)) {
        let dir = tempfile::tempdir().unwrap();
        let mut replica = Replica::default();
        for message in &messages {
            // Opened again per message and never closed, as after a kill.
            let mut store = Store::open(dir.path()).unwrap();
            prop_assert_eq!(&store.replica().unwrap(), &replica);
            receive_one(message, &mut replica, &mut store);
            std::mem::forget(store);
        }
        let store = Store::open(dir.path()).unwrap();
        prop_assert_eq!(store.replica().unwrap(), replica);
    }
}

#[test]
fn unknown_fields_stay_in_the_stored_payload() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
    let mut payload = serde_json::to_value(insert(1, 5, 1)).unwrap();
    payload["later"] = json!("field");
    let topic = Topic::Insert(NODE.parse().unwrap(), key(1));
    receive_one(&message(&topic, payload.to_string().into_bytes()), &mut replica, &mut store);
    let stored: Vec<u8> = database(dir.path())
        .query_row("SELECT payload FROM objects", [], |row| row.get(0))
        .unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&stored).unwrap()["later"], "field");
}

#[test]
fn start_keeps_the_instance_and_increments_the_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path()).unwrap().start_epoch("a").unwrap();
    let second = Store::open(dir.path()).unwrap().start_epoch("b").unwrap();
    assert_eq!((first.instance.0.as_str(), first.epoch), ("a", 1));
    assert_eq!((second.instance.0.as_str(), second.epoch), ("a", 2));
}

#[test]
fn replaced_instance_starts_at_epoch_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    store.start_epoch("a").unwrap();
    store.start_epoch("a").unwrap();
    store.replace_instance("b", &BTreeMap::new()).unwrap();
    drop(store);
    let identity = Store::open(dir.path()).unwrap().start_epoch("c").unwrap();
    assert_eq!((identity.instance.0.as_str(), identity.epoch), ("b", 1));
}

#[test]
fn counts_are_kept_until_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
    let object: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
    let mut service = |store: &mut Store, revision: u64, uid: &str| {
        let content: neptune_wire::ObjectContent = serde_json::from_value(json!({
            "apiVersion": "v", "kind": "k", "metadata": {"namespace": "d", "name": "s", "uid": uid},
        }))
        .unwrap();
        let insert = Insert { revision: Revision(revision), hash: content.hash(), content };
        let topic =
            Topic::Insert(NODE.parse().unwrap(), "d/jointinferenceservices/s".parse().unwrap());
        receive_one(&message(&topic, encode(&insert)), &mut replica, store);
    };
    let mut count = WorkerCount {
        object: object.clone(),
        tally: neptune_wire::RunTotals::default(),
        run: WorkerRun::default(),
        status: "running".into(),
        first_start: String::new(),
        models: serde_json::from_value(json!([{
            "output": {"model": "m", "uid": "u", "metrics": [{"key": "accuracy", "value": "0.9"}]},
            "said": "/models/m/m.pb", "container": "c",
        }]))
        .unwrap(),
        departed: 0,
        cloud_unreachable: false,
    };
    let counters = Counters { inference: u64::MAX, hard: 1, ..Counters::default() };
    let report = RunReport { run: Some("c@s"), start: "t", counters, is_inherited: false };
    count.tally.observe(&report);
    let entry = (("uid-1".to_owned(), "w".parse().unwrap()), count);
    service(&mut store, 1, "uid-1");
    store.save_counts(&[(&entry.0, Some(&entry.1))]).unwrap();
    store.sync().unwrap();
    drop(store);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!(store.counts().unwrap(), [entry.clone()].into());
    service(&mut store, 2, "uid-2");
    assert_eq!(store.counts().unwrap(), [entry.clone()].into(), "the cloud may not have them");
    store.save_counts(&[(&entry.0, None)]).unwrap();
    assert_eq!(store.counts().unwrap(), BTreeMap::new());
}

#[test]
fn pending_clear_of_a_removed_object_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
    let object: ObjectKey = "d/jointinferenceservices/s".parse().unwrap();
    let mut inserted = insert(1, 1, 1);
    inserted.content.metadata.name = "s".parse().unwrap();
    let node = || NODE.parse().unwrap();
    receive_one(
        &message(&Topic::Insert(node(), object.clone()), encode(&inserted)),
        &mut replica,
        &mut store,
    );
    let deleted = encode(&Delete { revision: Revision(2) });
    receive_one(
        &message(&Topic::Delete(node(), object.clone()), deleted),
        &mut replica,
        &mut store,
    );
    drop(store);
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!(store.pending_clears().unwrap(), [object.clone()].into());
    store.delete_pending_clears(&[object].into()).unwrap();
    assert_eq!(store.pending_clears().unwrap(), BTreeSet::new());
}

#[test]
fn damaged_database_is_an_error_and_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let path = dir.path().join("neptune.db");
    for content in
        [b"not a database".repeat(1000), b"SQLite format 3\0 and then nonsense".repeat(500)]
    {
        std::fs::write(&path, &content).unwrap();
        let error = Store::open(dir.path()).err().unwrap();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
}

#[test]
fn newer_database_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    let layout = |row: &rusqlite::Row<'_>| row.get::<_, u32>(0);
    let layout = database(dir.path()).query_row("PRAGMA user_version", [], layout).unwrap();
    database(dir.path()).pragma_update(None, "user_version", layout + 1).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(Error::NewerStore { .. })));
}

#[test]
fn database_of_an_earlier_layout_is_upgraded() {
    let fourth = "DROP TABLE training; PRAGMA user_version = 4;";
    let third = "DROP TABLE training; DROP TABLE images; PRAGMA user_version = 3;";
    let second =
        "DROP TABLE training; DROP TABLE images; DROP TABLE datasets; PRAGMA user_version = 2;";
    let first = "DROP TABLE training; DROP TABLE images; DROP TABLE datasets; DROP TABLE servings; DROP TABLE models;
         CREATE TABLE models (object TEXT, content_key TEXT, PRIMARY KEY (object, content_key)) WITHOUT ROWID;
         PRAGMA user_version = 1;";
    for earlier in [first, second, third, fourth] {
        let dir = tempfile::tempdir().unwrap();
        let identity = Store::open(dir.path()).unwrap().start_epoch("a").unwrap();
        database(dir.path()).execute_batch(earlier).unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        assert_eq!(store.start_epoch("b").unwrap().instance, identity.instance);
        let namespace = key(1).namespace;
        let source = ArtifactSource { namespace, url: "http://h/m".into(), sha256: None };
        store.save_model_in_use(&key(1), &source).unwrap();
        assert_eq!(store.models_in_use().unwrap(), [(key(1), source)].into());
        store.save_dataset_record(&key(1), "uid", &DatasetRecord::default()).unwrap();
        assert_eq!(store.pulled_images().unwrap(), PulledImages::new());
    }
}

/// The database of an agent of version 0.2, which is never changed.
#[test]
fn database_of_0_2_keeps_identity_objects_and_rollouts() {
    let dir = tempfile::tempdir().unwrap();
    database(dir.path()).execute_batch(include_str!("golden/agent-0.2.sql")).unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    let replica = store.replica().unwrap();
    let objects: Vec<_> = replica.objects().keys().map(ToString::to_string).collect();
    let names =
        ["default/inferencemodels/digits-edge", "default/jointinferenceservices/digits-joint"];
    assert_eq!(objects.iter().map(String::as_str).collect::<BTreeSet<_>>(), names.into());
    let rollout = store.rollout("e806b7e7-1ba5-4a06-ba80-15c47eea5a19").unwrap();
    assert_ne!(rollout, RolloutState::default());
    let identity = store.start_epoch("new").unwrap();
    assert_eq!(identity.instance.0, "069ed81c599bd562a242525535c94268");
}

#[test]
fn pulled_images_survive_a_restart_until_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let image =
        |id: &str, unused| PulledImage { id: id.into(), unused: Duration::from_secs(unused) };
    let mut images: PulledImages =
        [("r/a:1".to_owned(), image("sha256:1", 7)), ("r/b@sha256:2".into(), image("sha256:2", 0))]
            .into();
    Store::open(dir.path()).unwrap().save_pulled_images(&images).unwrap();
    let mut store = Store::open(dir.path()).unwrap();
    assert_eq!(store.pulled_images().unwrap(), images);
    images.remove("r/a:1");
    images.insert("r/b@sha256:2".into(), image("sha256:3", 9));
    store.save_pulled_images(&images).unwrap();
    drop(store);
    assert_eq!(Store::open(dir.path()).unwrap().pulled_images().unwrap(), images);
}

#[test]
fn rollout_is_deleted_with_its_object() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, mut replica) = (Store::open(dir.path()).unwrap(), Replica::default());
    let topic = || Topic::Insert(NODE.parse().unwrap(), key(1));
    receive_one(&message(&topic(), encode(&insert(1, 1, 1))), &mut replica, &mut store);
    let rollout = RolloutState { blocked: Some("version".into()), ..RolloutState::default() };
    store.save_rollout(&key(1), "uid-0", &rollout).unwrap();
    assert_eq!(store.rollout("uid-0").unwrap(), rollout);
    receive_one(&message(&topic(), encode(&insert(1, 2, 0))), &mut replica, &mut store);
    assert_eq!(store.rollout("uid-0").unwrap(), rollout, "another revision of the same object");
    receive_one(&message(&topic(), encode(&insert(1, 3, 2))), &mut replica, &mut store);
    assert_eq!(
        store.rollout("uid-0").unwrap(),
        RolloutState::default(),
        "another object of the same name"
    );
}

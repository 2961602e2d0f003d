//! The controllers of a cluster that the API itself needs: definitions become established, and the
//! content of deleted namespaces, definitions and owners is deleted. Changes the state under its
//! lock; `run` waits for changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::cluster::{Cluster, State};
use crate::crd;
use crate::object::{self, ObjectKey, set_meta};
use crate::store::{Change, ChangeKind};

const NAMESPACES: &str = "/namespaces";

/// Processes changes until the cluster closes.
pub async fn run(cluster: Arc<Cluster>) {
    let mut versions = cluster.changes();
    let mut closing = cluster.closing();
    let mut seen = 0;
    loop {
        versions.borrow_and_update();
        let is_needed = cluster.read(|state| {
            let since = std::mem::replace(&mut seen, state.store.version());
            state.store.since(since).map_or(true, |mut changes| changes.any(is_relevant))
        });
        if is_needed {
            cluster.write(|state| settle(state, Timestamp::now()));
        }
        tokio::select! {
            moved = versions.changed() => if moved.is_err() { return },
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}

/// Whether a change can require work. Most writes do not, and a pass over all objects takes time.
fn is_relevant(change: &Change) -> bool {
    change.kind == ChangeKind::Deleted
        || *change.storage == *crd::STORAGE
        || object::is_deleting(&change.object)
        || !owners(&change.object).is_empty()
}

/// Runs all controllers until none of them changes anything.
pub fn settle(state: &mut State, now: Timestamp) {
    loop {
        let before = state.store.version();
        reconcile_definitions(state, now);
        reconcile_namespaces(state, now);
        collect_garbage(state, now);
        if state.store.version() == before {
            return;
        }
    }
}

/// Establishes new definitions, and deletes the objects of deleted ones.
fn reconcile_definitions(state: &mut State, now: Timestamp) {
    let all: Vec<Arc<Value>> = state.store.list(crd::STORAGE, None).cloned().collect();
    for definition in &all {
        let mut value = Value::clone(definition);
        if object::is_deleting(&value) {
            if object::finalizers(&value).contains(&crd::FINALIZER) {
                let storage = crd::storage(&value);
                let status =
                    crd::terminating(definition, crd::Deletion::InProgress, &object::stamp(now));
                if status != value["status"] {
                    value["status"] = status;
                    value = state.put(crd::STORAGE, value);
                }
                if delete_all(state, &storage, None, now) {
                    object::remove_finalizer(&mut value, crd::FINALIZER);
                    finish(state, crd::STORAGE, value);
                }
            }
            continue;
        }
        let status = crd::established(definition, &object::stamp(now));
        if status != definition["status"] {
            value["status"] = status;
            state.put(crd::STORAGE, value);
        }
    }
}

/// Deletes the content of deleted namespaces, then the namespaces.
fn reconcile_namespaces(state: &mut State, now: Timestamp) {
    let deleting: Vec<Arc<Value>> = state
        .store
        .list(NAMESPACES, None)
        .filter(|namespace| object::is_deleting(namespace))
        .cloned()
        .collect();
    for namespace in deleting {
        let name = object::name(&namespace);
        let kinds: HashSet<Arc<str>> = state
            .store
            .all()
            .filter(|(_, stored)| object::meta_str(stored, "namespace") == name)
            .map(|(storage, _)| storage.clone())
            .collect();
        let mut empty = true;
        for storage in kinds {
            empty &= delete_all(state, &storage, Some(name), now);
        }
        if empty && object::finalizers(&namespace).is_empty() {
            state.remove(NAMESPACES, &ObjectKey::new("", name));
        }
    }
}

/// Deletes all objects of a kind; true when none is left.
fn delete_all(state: &mut State, storage: &str, namespace: Option<&str>, now: Timestamp) -> bool {
    let objects: Vec<Arc<Value>> = state.store.list(storage, namespace).cloned().collect();
    for object in &objects {
        delete(state, storage, object, now);
    }
    state.store.list(storage, namespace).next().is_none()
}

/// Removes an object, or marks it as deleted while it has finalizers.
fn delete(state: &mut State, storage: &str, current: &Value, now: Timestamp) {
    if object::finalizers(current).is_empty() {
        state.remove(storage, &ObjectKey::from_object(current));
    } else if !object::is_deleting(current) {
        let mut value = current.clone();
        set_meta(&mut value, "deletionTimestamp", Some(object::stamp(now).into()));
        set_meta(&mut value, "deletionGracePeriodSeconds", Some(0.into()));
        if let Some(generation) = current["metadata"]["generation"].as_i64() {
            set_meta(&mut value, "generation", Some((generation + 1).into()));
        }
        state.put(storage, value);
    }
}

/// Stores an object from which a finalizer was removed, or removes the object after its last
/// finalizer.
fn finish(state: &mut State, storage: &str, value: Value) {
    if object::finalizers(&value).is_empty() {
        state.remove(storage, &ObjectKey::from_object(&value));
    } else {
        state.put(storage, value);
    }
}

fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Deletes objects whose last owner is gone, and removes references to owners that are gone.
fn collect_garbage(state: &mut State, now: Timestamp) {
    let mut scopes: HashMap<String, String> = HashMap::new();
    let mut dependents: Vec<(Arc<str>, Arc<Value>)> = Vec::new();
    for (storage, stored) in state.store.all() {
        let namespace = object::meta_str(stored, "namespace").to_owned();
        scopes.insert(object::uid(stored).to_owned(), namespace);
        if !owners(stored).is_empty() {
            dependents.push((storage.clone(), stored.clone()));
        }
    }
    for (storage, dependent) in &dependents {
        // An owner is identified by its uid. It is in the same namespace or cluster-scoped.
        let namespace = object::meta_str(dependent, "namespace");
        let exists = |reference: &&Value| {
            reference["uid"]
                .as_str()
                .and_then(|uid| scopes.get(uid))
                .is_some_and(|scope| scope.is_empty() || scope == namespace)
        };
        let remaining: Vec<Value> = owners(dependent).iter().filter(exists).cloned().collect();
        if remaining.is_empty() {
            delete(state, storage, dependent, now);
        } else if remaining.len() < owners(dependent).len() {
            let mut value = Value::clone(dependent);
            set_meta(&mut value, "ownerReferences", Some(remaining.into()));
            state.put(storage, value);
        }
    }
}

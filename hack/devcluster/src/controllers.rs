//! What the controllers of a cluster do beside the API: definitions become served, namespaces and owners take their content along.
//! Works on the state under its lock; `run` waits for changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::admit;
use crate::cluster::{Cluster, State};
use crate::crd;
use crate::object::{self, ObjectKey, set_meta};
use crate::store::{Change, ChangeKind};

const NAMESPACES: &str = "/namespaces";

/// Follows the cluster until it closes.
pub async fn run(cluster: Arc<Cluster>) {
    let mut versions = cluster.changes();
    let mut closing = cluster.closing();
    let mut seen = 0;
    loop {
        versions.borrow_and_update();
        let stirred = cluster.read(|state| {
            let since = std::mem::replace(&mut seen, state.store.version());
            state.store.since(since).map_or(true, |mut changes| changes.any(concerns))
        });
        if stirred {
            cluster.write(|state| settle(state, Timestamp::now()));
        }
        tokio::select! {
            moved = versions.changed() => if moved.is_err() { return },
            _ = closing.wait_for(|closing| *closing) => return,
        }
    }
}

/// Whether a change can leave anything to do: most writes do not, and a look at everything costs time.
fn concerns(change: &Change) -> bool {
    change.kind == ChangeKind::Deleted
        || *change.storage == *crd::STORAGE
        || object::is_deleting(&change.object)
        || !owners(&change.object).is_empty()
}

/// Works until nothing is left to do.
pub fn settle(state: &mut State, now: Timestamp) {
    loop {
        let before = state.store.version();
        definitions(state, now);
        namespaces(state, now);
        garbage(state, now);
        if state.store.version() == before {
            return;
        }
    }
}

fn definitions(state: &mut State, now: Timestamp) {
    let all: Vec<Arc<Value>> = state.store.list(crd::STORAGE, None).cloned().collect();
    for definition in &all {
        let group = &definition["spec"]["group"];
        let others: Vec<&Value> = all
            .iter()
            .filter(|other| !Arc::ptr_eq(other, definition) && other["spec"]["group"] == *group)
            .map(AsRef::as_ref)
            .collect();
        let mut value = Value::clone(definition);
        if object::is_deleting(&value) {
            if object::finalizers(&value).contains(&crd::FINALIZER) {
                let storage = crd::storage(&value);
                if delete_all(state, &storage, None, now) {
                    object::remove_finalizer(&mut value, crd::FINALIZER);
                    finish(state, crd::STORAGE, value);
                }
            }
            continue;
        }
        let status = crd::established(definition, &others, &admit::stamp(now));
        if status != definition["status"] {
            value["status"] = status;
            state.put(crd::STORAGE, value);
        }
    }
}

fn namespaces(state: &mut State, now: Timestamp) {
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
            .filter(|(_, held)| object::meta_str(held, "namespace") == name)
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

/// Deletes everything of a kind; true once nothing is left.
fn delete_all(state: &mut State, storage: &str, namespace: Option<&str>, now: Timestamp) -> bool {
    let found: Vec<Arc<Value>> = state.store.list(storage, namespace).cloned().collect();
    for object in &found {
        delete(state, storage, object, now);
    }
    state.store.list(storage, namespace).next().is_none()
}

/// Removes an object, or marks it while it has finalizers.
fn delete(state: &mut State, storage: &str, current: &Value, now: Timestamp) {
    if object::finalizers(current).is_empty() {
        state.remove(storage, &ObjectKey::of(current));
    } else if !object::is_deleting(current) {
        let mut value = current.clone();
        set_meta(&mut value, "deletionTimestamp", Some(admit::stamp(now).into()));
        set_meta(&mut value, "deletionGracePeriodSeconds", Some(0.into()));
        state.put(storage, value);
    }
}

/// Stores an object that lost a finalizer, or removes it with its last one.
fn finish(state: &mut State, storage: &str, value: Value) {
    if object::finalizers(&value).is_empty() {
        state.remove(storage, &ObjectKey::of(&value));
    } else {
        state.put(storage, value);
    }
}

fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Owner references: dependents go with their last owner, owners wait for their dependents or let them go.
fn garbage(state: &mut State, now: Timestamp) {
    let version = state.store.version();
    let mut scopes: HashMap<String, String> = HashMap::new();
    let mut dependents: Vec<(Arc<str>, Arc<Value>)> = Vec::new();
    let mut waiting: Vec<(Arc<str>, Arc<Value>)> = Vec::new();
    for (storage, held) in state.store.all() {
        scopes.insert(object::uid(held).to_owned(), object::meta_str(held, "namespace").to_owned());
        if !owners(held).is_empty() {
            dependents.push((storage.clone(), held.clone()));
        }
        if object::is_deleting(held)
            && object::finalizers(held)
                .iter()
                .any(|name| matches!(*name, "foregroundDeletion" | "orphan"))
        {
            waiting.push((storage.clone(), held.clone()));
        }
    }
    for (storage, owner) in waiting {
        let mine: Vec<&(Arc<str>, Arc<Value>)> = dependents
            .iter()
            .filter(|(_, held)| {
                owners(held).iter().any(|reference| reference["uid"] == object::uid(&owner))
            })
            .collect();
        if object::finalizers(&owner).contains(&"orphan") {
            release(state, &storage, &owner, &mine);
        } else {
            await_dependents(state, &storage, &owner, &mine, now);
        }
        if state.store.version() != version {
            // What was collected is out of date; the next turn sees the rest.
            return;
        }
    }
    for (storage, held) in &dependents {
        // An owner is known by its uid, and stands in the same namespace or outside of all.
        let namespace = object::meta_str(held, "namespace");
        let lives = |reference: &&Value| {
            reference["uid"]
                .as_str()
                .and_then(|uid| scopes.get(uid))
                .is_some_and(|scope| scope.is_empty() || scope == namespace)
        };
        let living: Vec<Value> = owners(held).iter().filter(lives).cloned().collect();
        if living.is_empty() {
            delete(state, storage, held, now);
        } else if living.len() < owners(held).len() {
            let mut value = Value::clone(held);
            set_meta(&mut value, "ownerReferences", Some(living.into()));
            state.put(storage, value);
        }
    }
}

fn release(state: &mut State, storage: &str, owner: &Value, mine: &[&(Arc<str>, Arc<Value>)]) {
    for (storage, held) in mine {
        let kept: Vec<Value> = owners(held)
            .iter()
            .filter(|reference| reference["uid"] != object::uid(owner))
            .cloned()
            .collect();
        let mut value = Value::clone(held);
        set_meta(&mut value, "ownerReferences", (!kept.is_empty()).then(|| kept.into()));
        state.put(storage, value);
    }
    let mut value = owner.clone();
    object::remove_finalizer(&mut value, "orphan");
    finish(state, storage, value);
}

fn await_dependents(
    state: &mut State,
    storage: &str,
    owner: &Value,
    mine: &[&(Arc<str>, Arc<Value>)],
    now: Timestamp,
) {
    let blocks = |held: &Value| {
        owners(held).iter().any(|reference| {
            reference["uid"] == object::uid(owner) && reference["blockOwnerDeletion"] == true
        })
    };
    for (storage, held) in mine {
        delete(state, storage, held, now);
    }
    let blocked = mine.iter().any(|(storage, held)| {
        blocks(held) && state.store.get(storage, &ObjectKey::of(held)).is_some()
    });
    if !blocked {
        let mut value = owner.clone();
        object::remove_finalizer(&mut value, "foregroundDeletion");
        finish(state, storage, value);
    }
}

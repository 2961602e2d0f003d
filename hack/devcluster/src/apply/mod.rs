//! Server-side apply: field ownership and merging, after the structured-merge-diff of API servers.
//! Pure.

pub mod compare;
pub mod managed;
pub mod merge;
pub mod path;
pub mod remove;
pub mod typed;

use serde_json::Value;

use crate::object;
use crate::schema::Schema;
use crate::status::ApiError;

use compare::compare;
use managed::{Entry, Operation, conflict_error, decode, encode};
use path::FieldSet;

/// The manager, endpoint and time of a write.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub api_version: &'a str,
    /// "" for the main resource.
    pub subresource: &'a str,
    /// RFC 3339 with second precision.
    pub now: &'a str,
    /// Top-level fields that the endpoint does not change, such as `status` on the main resource.
    pub ignored: &'a [&'a str],
}

impl Writer<'_> {
    fn entry(&self, operation: Operation, set: FieldSet) -> Entry {
        Entry {
            manager: self.manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: self.now.to_owned(),
            set,
        }
    }

    fn strip(&self, set: &mut FieldSet) {
        managed::strip(set);
        for field in self.ignored {
            set.remove_tree(&path::Element::field(field));
        }
        set.compact();
    }
}

fn without_managed(object: &Value) -> Value {
    let mut object = object.clone();
    object::set_meta(&mut object, "managedFields", None);
    object
}

/// Records the ownership of the fields that a create, replace or patch changed. `old` is none for a
/// create.
pub fn record_update(
    old: Option<&Value>,
    new: &mut Value,
    schema: Schema<'_>,
    writer: &Writer<'_>,
) -> Result<(), ApiError> {
    // A client that sends no owners keeps them; a client that sends an empty list clears them.
    let given = &new["metadata"]["managedFields"];
    let source = match (old, given.is_array()) {
        (Some(old), false) => &old["metadata"]["managedFields"],
        _ => given,
    };
    let mut entries = decode(source)?;
    let bare_new = without_managed(new);
    let bare_old = old.map_or_else(|| serde_json::json!({}), without_managed);
    let mut changes = compare(&bare_old, &bare_new, schema);
    for set in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
        writer.strip(set);
    }
    let taken = changes.added.union(&changes.modified);
    for entry in &mut entries {
        entry.set = entry.set.difference(&taken).difference(&changes.removed);
    }
    if !taken.is_empty() {
        let mut mine = writer.entry(Operation::Update, taken);
        if let Some(known) = entries.iter_mut().find(|entry| entry.same_writer(&mine)) {
            mine.set = mine.set.union(&known.set);
            *known = mine;
        } else {
            entries.push(mine);
        }
    }
    object::set_meta(new, "managedFields", encode(entries));
    Ok(())
}

/// Merges an applied configuration into the live object. `live` is none when the apply creates the
/// object.
///
/// # Errors
/// An invalid configuration, or a conflict with another manager unless `force` is set.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    schema: Schema<'_>,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApiError> {
    check_config(config, schema, writer)?;
    let bare_live = live.map_or_else(|| serde_json::json!({}), without_managed);
    let mut entries = decode(live.map_or(&Value::Null, |live| &live["metadata"]["managedFields"]))?;
    if live.is_some() && entries.is_empty() {
        entries.push(before_first_apply(&bare_live, schema, writer));
    }
    let mut set = typed::field_set(config, schema);
    writer.strip(&mut set);
    let mut mine = writer.entry(Operation::Apply, set);
    let position = entries.iter().position(|entry| entry.same_writer(&mine));
    let last = position.map(|position| entries.remove(position));

    let merged = merge::merge(&bare_live, config, schema);
    let merged = match &last {
        Some(last) => remove::prune(&merged, &last.set, &mine.set, &entries, schema),
        None => merged,
    };
    let mut changes = compare(&bare_live, &merged, schema);
    for set in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
        writer.strip(set);
    }
    let taken = changes.added.union(&changes.modified);
    let conflicts: Vec<(usize, FieldSet)> = entries
        .iter()
        .enumerate()
        .map(|(position, entry)| (position, entry.set.intersection(&taken)))
        .filter(|(_, set)| !set.is_empty())
        .collect();
    if !force && !conflicts.is_empty() {
        let conflicts = conflicts.iter().map(|(position, set)| (&entries[*position], set));
        return Err(conflict_error(conflicts));
    }
    for entry in &mut entries {
        entry.set = entry.set.difference(&taken).difference(&changes.removed);
    }
    // An apply without changes keeps its time, so that the object is unchanged.
    if let Some(last) = last
        && last.set == mine.set
        && changes.is_empty()
    {
        mine.time = last.time;
    }
    entries.push(mine);
    let mut result = merged;
    object::set_meta(&mut result, "managedFields", encode(entries));
    Ok(result)
}

/// Checks that an applied configuration has no owners and matches the schema.
fn check_config(config: &Value, schema: Schema<'_>, writer: &Writer<'_>) -> Result<(), ApiError> {
    if !config["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    typed::check(config, schema).map_err(|faults| {
        let (namespace, name) = (object::meta_str(config, "namespace"), object::name(config));
        // The API server shows the core group as an empty text.
        let slash = if writer.api_version.contains('/') { "" } else { "/" };
        let version = writer.api_version;
        let kind = config["kind"].as_str().unwrap_or_default();
        ApiError::untyped(format!(
            "failed to create typed patch object ({namespace}/{name}; {slash}{version}, Kind={kind}): {faults}"
        ))
    })
}

/// The entry that owns all fields of an object without entries.
fn before_first_apply(live: &Value, schema: Schema<'_>, writer: &Writer<'_>) -> Entry {
    let mut set = typed::field_set(live, schema);
    writer.strip(&mut set);
    let writer = Writer { manager: "before-first-apply", subresource: "", ..*writer };
    writer.entry(Operation::Update, set)
}

#[cfg(test)]
mod tests;

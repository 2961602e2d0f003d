//! A served kind in one version: names, scope, schema and subresources. Pure data.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::schema::Schema;
use crate::status::GroupName;
use crate::table::Column;

/// The rule for the names of a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    ServiceLabel,
    PathSegment,
}

/// The fields of an object that its Scale shows: dotted paths without the leading dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent properties of a kind")]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub has_status: bool,
    /// The fields of the scale endpoint, if there is one.
    pub scale: Option<ScalePaths>,
    /// Whether a create sets the status although the kind has a status endpoint.
    pub status_on_create: bool,
    /// Whether changes of the desired state increment `metadata.generation`.
    pub counts_generation: bool,
    pub name_rule: NameRule,
    /// Dotted paths for field selectors, in addition to those of the metadata.
    pub selectable: Vec<String>,
    /// An `OpenAPI` schema of the whole object.
    pub schema: Value,
    /// Whether a `CustomResourceDefinition` defines the kind.
    pub custom: bool,
    pub columns: Vec<Column>,
    /// The key of the kind in the store; both groups of Event have the same.
    pub storage: Arc<str>,
    /// The apiVersion of stored objects.
    pub storage_version: String,
}

impl Resource {
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub fn schema(&self) -> Schema<'_> {
        Schema::new(&self.schema).expect("every resource has a schema that resolves")
    }

    /// The plural with its group, for errors.
    pub fn as_plural(&self) -> GroupName<'_> {
        GroupName { group: &self.group, name: &self.plural }
    }

    /// The kind with its group, for errors.
    pub fn as_kind(&self) -> GroupName<'_> {
        GroupName { group: &self.group, name: &self.kind }
    }

    /// Converts a stored object into this version.
    pub fn in_version(&self, object: &Value) -> Value {
        let mut object = object.clone();
        self.convert(&mut object, &self.api_version());
        object
    }

    /// Converts an object of this version into the stored form.
    pub fn to_storage(&self, mut object: Value) -> Value {
        self.convert(&mut object, &self.storage_version);
        object
    }

    fn convert(&self, object: &mut Value, to: &str) {
        if object["apiVersion"] == to {
            return;
        }
        if self.kind == "Event" && !self.custom {
            rename_event_fields(object, to == "v1");
        }
        object["apiVersion"] = to.into();
        object["kind"] = self.kind.as_str().into();
    }

    /// A list of objects of this kind.
    pub fn list(&self, items: Vec<Value>, version: u64) -> Value {
        let mut list = json!({
            "kind": self.list_kind, "apiVersion": self.api_version(),
            "metadata": {"resourceVersion": version.to_string()},
        });
        list["items"] = items.into();
        list
    }
}

/// `group/version`, or the version alone in the core group.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// The field names of events in the core group and in `events.k8s.io`, which are the same objects.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename_event_fields(object: &mut Value, to_core: bool) {
    let fields = crate::object::fields(object);
    for (core, events) in EVENT_FIELDS {
        let (from, to) = if to_core { (events, core) } else { (core, events) };
        if let Some(value) = fields.remove(*from) {
            fields.insert((*to).to_owned(), value);
        }
    }
}

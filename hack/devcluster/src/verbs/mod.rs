//! The verbs of the API on the shared state, one file per verb. They run under the cluster's lock
//! and never wait.

pub mod create;
pub mod delete;
pub mod patch;
pub mod read;
pub mod scale;
pub mod update;

use std::sync::Arc;

use serde_json::Value;

use crate::admit::{self, Endpoint};
use crate::apply::Writer;
use crate::cluster::State;
use crate::object::{self, ObjectKey};
use crate::request::{FieldValidation, Options};
use crate::resource::Resource;
use crate::status::ApiError;

/// A request for objects of one kind.
#[derive(Debug, Clone)]
pub struct Call {
    pub resource: Arc<Resource>,
    pub endpoint: Endpoint,
    /// "" for cluster-scoped kinds, and for lists over all namespaces.
    pub namespace: String,
    /// "" for requests on collections.
    pub name: String,
    pub options: Options,
    /// The uid of a new object, and the suffix of a generated name.
    pub identity: (String, String),
}

/// An answer in the version of the request, before `render`.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Reply {
    pub fn ok(body: Value) -> Self {
        Self { code: 200, body, warnings: Vec::new() }
    }
}

impl Call {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// The options with the current time, for events long after the request.
    pub fn options_now(&self) -> Options {
        let mut options = self.options.clone();
        options.now = jiff::Timestamp::now();
        options
    }

    /// The named object in the version of the request.
    fn current(&self, state: &State) -> Result<Value, ApiError> {
        let stored = state.store.get(&self.resource.storage, &self.key());
        stored.map(|object| self.resource.in_version(&object)).ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> ApiError {
        ApiError::not_found(self.resource.as_plural(), &self.name)
    }

    /// Handles unknown fields as the client requests: returns warnings, refuses, or ignores them.
    fn report_unknown(
        &self,
        findings: &[String],
        refuse: impl FnOnce(String) -> ApiError,
    ) -> Result<Vec<String>, ApiError> {
        if findings.is_empty() {
            return Ok(Vec::new());
        }
        match self.options.field_validation()? {
            FieldValidation::Ignore => Ok(Vec::new()),
            FieldValidation::Warn => Ok(findings.to_vec()),
            FieldValidation::Strict => {
                Err(refuse(format!("strict decoding error: {}", findings.join(", "))))
            }
        }
    }

    /// Decodes the body of a create or replace; returns the object and the warnings for the client.
    fn decode(&self, mut value: Value) -> Result<(Value, Vec<String>), ApiError> {
        admit::check_kind(&self.resource, &value)?;
        let unusable = |why: String| {
            let kind = &self.resource.kind;
            ApiError::bad_request(format!(
                "{kind} in version {:?} cannot be handled as a {kind}: {why}",
                self.resource.version
            ))
        };
        let findings = admit::decode(&self.resource, &mut value).map_err(unusable)?;
        let warnings = self.report_unknown(&findings, unusable)?;
        Ok((value, warnings))
    }

    fn with_writer<R>(&self, run: impl FnOnce(&Writer<'_>) -> R) -> R {
        let (manager, api_version, now) = (
            self.options.field_manager(),
            self.resource.api_version(),
            object::stamp(self.options.now),
        );
        run(&Writer {
            manager: &manager,
            api_version: &api_version,
            subresource: self.endpoint.subresource(),
            now: &now,
            ignored: self.endpoint.ignored(&self.resource),
        })
    }

    /// Stores an object of the request's version unless this is a dry run. A deleted object without
    /// finalizers is removed: watches get its last stored state, and no modification before.
    fn store(&self, state: &mut State, value: Value) -> Result<Value, ApiError> {
        if self.options.dry_run()? {
            return Ok(value);
        }
        let key = ObjectKey::from_object(&value);
        let removed = object::is_deleting(&value)
            && object::finalizers(&value).is_empty()
            && self.resource.plural != "namespaces";
        if removed {
            state.remove(&self.resource.storage, &key);
            return Ok(value);
        }
        let stored = state.put(&self.resource.storage, self.resource.to_storage(value));
        Ok(self.resource.in_version(&stored))
    }
}

/// A new uid, and the random suffix of a generated name.
pub fn fresh_identity() -> (String, String) {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let suffix = uuid::Uuid::new_v4().as_bytes()[..5]
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
        .collect();
    (uuid::Uuid::new_v4().to_string(), suffix)
}

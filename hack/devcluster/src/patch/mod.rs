//! JSON patch, merge patch and strategic merge patch. Pure; `apply` is server-side apply.

pub mod strategic;

use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiError;

pub const JSON: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// A patch of an object.
#[derive(Debug, Clone)]
pub enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Decodes the body of a patch request.
    pub fn parse(media: &str, body: Value) -> Result<Self, ApiError> {
        match media {
            JSON => serde_json::from_value(body)
                .map(Self::Json)
                .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}"))),
            MERGE if body.is_object() => Ok(Self::Merge(body)),
            STRATEGIC if body.is_object() => Ok(Self::Strategic(body)),
            _ => Err(ApiError::bad_request(
                "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
            )),
        }
    }

    pub fn apply(&self, current: &Value, schema: Schema<'_>) -> Result<Value, ApiError> {
        let mut object = current.clone();
        match self {
            Self::Json(patch) => {
                json_patch::patch(&mut object, patch).map_err(|_| ApiError::unprocessable())?;
            }
            Self::Merge(patch) => json_patch::merge(&mut object, patch),
            Self::Strategic(patch) => {
                object = strategic::merge(&object, patch, schema).map_err(ApiError::bad_request)?;
            }
        }
        Ok(object)
    }
}

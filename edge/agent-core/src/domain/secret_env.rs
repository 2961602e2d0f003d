//! Environment variables with values of Secrets.

use std::{collections::BTreeMap, sync::Arc};

use neptune_wire::SecretBytes;
use serde::Serialize;

/// Environment variables with values of Secrets. Only the fingerprint is serialized: it changes with
/// the values, and does not tell them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SecretEnv {
    pub fingerprint: String,
    #[serde(skip)]
    pub variables: Arc<BTreeMap<String, SecretBytes>>,
}

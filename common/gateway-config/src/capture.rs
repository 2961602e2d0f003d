//! `capture`: which samples become records of a dataset, where and how many.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ConfigError;

/// The smallest permitted value of [`CaptureConfig::max_bytes`].
pub const MIN_CAPTURE_BYTES: u64 = 1024 * 1024;

/// Which samples become records of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CaptureConfig {
    /// The directory of the records, an absolute path. On a node, the agent sets it.
    pub directory: PathBuf,
    /// The maximum size of all records in bytes. The oldest segment is removed first.
    pub max_bytes: u64,
    /// The maximum number of records; 0 for no bound.
    pub max_samples: u64,
    /// The share of the samples to record, 0 to 1, chosen at random.
    pub share: f64,
    /// Selects the samples that are recorded.
    pub what: What,
    /// What the `label` of a record is.
    pub labels: Labels,
    /// The form of the records.
    pub format: Format,
    /// Whether requests that the client keeps at the edge are recorded.
    pub pinned: bool,
}

/// A selection of the samples that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum What {
    /// Hard samples that both model servers answered.
    #[default]
    Hard,
    /// Samples that the cloud answered, also while the edge's model server is down.
    Uploaded,
    /// Every sample that is decided, with the cloud's answer if there is one.
    All,
}

/// What the `label` of a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Labels {
    /// The answer of the cloud.
    #[default]
    Cloud,
    /// Records have no `label`.
    None,
}

/// The form of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    #[serde(rename = "jsonl")]
    JsonLines,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            directory: PathBuf::new(),
            max_bytes: 1024 * 1024 * 1024,
            max_samples: 0,
            share: 1.0,
            what: What::default(),
            labels: Labels::default(),
            format: Format::default(),
            pinned: false,
        }
    }
}

impl CaptureConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !self.directory.is_absolute() {
            return Err(ConfigError::CaptureDirectory(self.directory.clone()));
        }
        if !(0.0..=1.0).contains(&self.share) {
            return Err(ConfigError::Share { field: "capture.share", value: self.share });
        }
        if self.max_bytes < MIN_CAPTURE_BYTES {
            return Err(ConfigError::CaptureBytes {
                least: MIN_CAPTURE_BYTES,
                bytes: self.max_bytes,
            });
        }
        Ok(())
    }
}

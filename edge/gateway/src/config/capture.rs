//! `capture`: which samples become records of a dataset, where and how many.

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;

/// The least `maxBytes`.
const MIN_BYTES: u64 = 1024 * 1024;

/// Which samples become records of a dataset.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaptureConfig {
    /// The directory of the records.
    pub directory: PathBuf,
    /// The maximum size of all records in bytes. The oldest segment is removed first.
    #[serde(default = "max_bytes")]
    pub max_bytes: u64,
    /// The maximum number of records; 0 for no bound.
    #[serde(default)]
    pub max_samples: u64,
    /// The share of the samples to record, 0 to 1, chosen at random.
    #[serde(default = "all")]
    pub share: f64,
    /// Which samples.
    #[serde(default)]
    pub what: What,
    /// What the `label` of a record is.
    #[serde(default)]
    pub labels: Labels,
    /// The form of the records.
    #[serde(default)]
    pub format: Format,
    /// Whether requests that are pinned to the edge are recorded.
    #[serde(default)]
    pub pinned: bool,
}

/// See [`CaptureConfig::what`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum What {
    /// Hard samples that both model servers answered.
    #[default]
    Hard,
    /// Samples that the cloud answered, also while the edge's model server is down.
    Uploaded,
    /// Every sample that is decided, with the cloud's answer if there is one.
    All,
}

/// See [`CaptureConfig::labels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Labels {
    /// The answer of the cloud.
    #[default]
    Cloud,
    /// Records have none.
    None,
}

/// See [`CaptureConfig::format`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    #[serde(rename = "jsonl")]
    JsonLines,
}

impl CaptureConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !self.directory.is_absolute() {
            return Err(ConfigError::CaptureDirectory(self.directory.clone()));
        }
        if !(0.0..=1.0).contains(&self.share) {
            return Err(ConfigError::Share { field: "capture.share", value: self.share });
        }
        if self.max_bytes < MIN_BYTES {
            return Err(ConfigError::CaptureBytes { least: MIN_BYTES, found: self.max_bytes });
        }
        Ok(())
    }
}

const fn max_bytes() -> u64 {
    1024 * 1024 * 1024
}

const fn all() -> f64 {
    1.0
}

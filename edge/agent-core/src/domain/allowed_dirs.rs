//! The directories of the node that users may name in resources. Values only.

use std::path::{Path, PathBuf};

/// The directories that the operator allows, per use. An empty list allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedDirs {
    pub models: Vec<PathBuf>,
    pub scripts: Vec<PathBuf>,
    pub data: Vec<PathBuf>,
    /// Directories in which gateways write captured samples.
    pub captures: Vec<PathBuf>,
    /// Directories whose directories and files workers may mount as volumes.
    pub volumes: Vec<PathBuf>,
}

/// What a path of the node is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathUse {
    Model,
    Scripts,
    Dataset,
    Capture,
    Volume,
}

impl AllowedDirs {
    /// The directories for one use.
    pub fn for_use(&self, path_use: PathUse) -> &[PathBuf] {
        match path_use {
            PathUse::Model => &self.models,
            PathUse::Scripts => &self.scripts,
            PathUse::Dataset => &self.data,
            PathUse::Capture => &self.captures,
            PathUse::Volume => &self.volumes,
        }
    }

    /// Checks a path, as written or with all links resolved.
    ///
    /// # Errors
    /// The reason as text, with the allowed directories and the flag that changes them.
    pub fn check(&self, path_use: PathUse, path: &Path, dirs: &[PathBuf]) -> Result<(), String> {
        if dirs.iter().any(|dir| path.starts_with(dir)) {
            return Ok(());
        }
        let allowed = match self.for_use(path_use) {
            [] => "none".to_owned(),
            dirs => dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", "),
        };
        Err(format!(
            "is outside the allowed directories ({allowed}); use one of them, or allow its directory with {} of neptune-edge",
            path_use.flag()
        ))
    }
}

impl PathUse {
    fn flag(self) -> &'static str {
        match self {
            Self::Model => "--allow-model-dir",
            Self::Scripts => "--allow-script-dir",
            Self::Dataset => "--allow-data-dir",
            Self::Capture => "--allow-capture-dir",
            Self::Volume => "--allow-volume-dir",
        }
    }
}

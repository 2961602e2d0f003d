//! The file with what the policy learnt.

use std::{fs, io, path::Path};

use neptune_cascade::policy::PolicyState;
use neptune_transfer::json;
use serde::{Deserialize, Serialize};

/// The format that this program writes and reads.
const FORMAT: u32 = 1;

/// The content of the file, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    format: u32,
    /// The version of the edge's model; `None` if it is not known.
    pub model_version: Option<String>,
    /// What the policy learnt about that version.
    pub policy: PolicyState,
}

impl Saved {
    /// Returns the content for a state of the policy.
    pub fn new(model_version: Option<&str>, policy: PolicyState) -> Self {
        Self { format: FORMAT, model_version: model_version.map(str::to_owned), policy }
    }
}

/// Reads the file; `None` if there is none yet.
///
/// # Errors
/// It cannot be read, or is damaged, or of another format.
pub fn load(path: &Path) -> io::Result<Option<Saved>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let saved: Saved = serde_json::from_slice(&bytes)?;
    if saved.format != FORMAT {
        let text = format!("format {} is not {FORMAT}", saved.format);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Some(saved))
}

/// Replaces the file. Survives a power failure: an empty file would be damaged, and what the policy
/// learnt in weeks would be lost.
///
/// # Errors
/// It cannot be written.
pub fn save(path: &Path, saved: &Saved) -> io::Result<()> {
    json::write(path, saved)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_cascade::{
        Share,
        policy::{Goal, Policy, Settings},
    };

    use super::*;

    #[test]
    fn state_survives_and_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(load(&path).unwrap(), None);
        let policy = Policy::new(Settings::new(Goal::UploadRatio(Share::percent(20)), 0.5));
        let saved = Saved::new(Some("3"), policy.state().clone());
        save(&path, &saved).unwrap();
        save(&path, &saved).unwrap();
        assert_eq!(load(&path).unwrap(), Some(saved));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        fs::write(&path, r#"{"format":2"#).unwrap();
        assert!(load(&path).is_err());
    }
}

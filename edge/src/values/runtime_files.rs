//! The files of Secrets and `ConfigMap`s in the runtime directory: which are wanted and written, and
//! which are removed. Blocking.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use neptune_agent_core::{domain::node_context::NodeContext, values::files::VolumeFiles};
use parking_lot::Mutex;

use super::layout;

/// Only the agent enters.
const PRIVATE: u32 = 0o700;

/// The files of a volume, and the text that names them.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionedFiles {
    /// Other files have another text: a file name without a leading dot.
    pub version: String,
    pub files: Arc<VolumeFiles>,
}

/// The files of volumes, by directory.
pub type WantedFiles = BTreeMap<PathBuf, VersionedFiles>;

/// The files of all volumes of the node, by directory.
#[derive(Debug)]
pub struct RuntimeFiles {
    runtime_dir: PathBuf,
    /// The directory of this node in the runtime directory.
    node_dir: PathBuf,
    volumes: Mutex<Volumes>,
    /// Locked while a volume is written or removed: the latest wanted files win.
    disk: Mutex<()>,
}

#[derive(Debug, Default)]
struct Volumes {
    wanted: WantedFiles,
    /// The version that each volume has on the disk, as this process wrote it.
    written: BTreeMap<PathBuf, String>,
}

impl RuntimeFiles {
    pub fn new(context: &NodeContext) -> Self {
        Self {
            runtime_dir: context.runtime_dir.clone(),
            node_dir: context.node_files_dir(),
            volumes: Mutex::default(),
            disk: Mutex::default(),
        }
    }

    /// Sets the wanted files of all volumes. Returns whether some of them are not written.
    pub fn set_wanted(&self, wanted: WantedFiles) -> bool {
        let mut volumes = self.volumes.lock();
        volumes.wanted = wanted;
        !volumes.unwritten().is_empty()
    }

    /// Writes the volumes whose files changed. Each is tried, also after the error of another one.
    ///
    /// # Errors
    /// The first error, with its path.
    pub fn write_changed(&self) -> Result<(), String> {
        let changed = self.volumes.lock().unwritten();
        changed.iter().map(|volume| self.write(volume)).fold(Ok(()), Result::and)
    }

    /// Writes the wanted files of a volume, unless it has them.
    ///
    /// # Errors
    /// They cannot be written; the text has the path.
    pub fn write(&self, volume: &Path) -> Result<(), String> {
        let _disk = self.disk.lock();
        let Some(VersionedFiles { version, files }) =
            self.volumes.lock().wanted.get(volume).cloned()
        else {
            return Ok(());
        };
        let written = private_dir(&self.runtime_dir, &self.node_dir)
            .and_then(|()| layout::provide(volume, &version, &files));
        written.map_err(|error| format!("{}: {error}", volume.display()))?;
        self.volumes.lock().written.insert(volume.to_owned(), version);
        Ok(())
    }

    /// Removes the volumes that are neither wanted nor mounted by a container.
    ///
    /// # Errors
    /// A directory cannot be read or removed.
    pub fn remove_unused(&self, mounted: &BTreeSet<PathBuf>) -> io::Result<()> {
        let _disk = self.disk.lock();
        for volume in descend(descend(descend(vec![self.node_dir.clone()])?)?)? {
            let is_wanted = self.volumes.lock().wanted.contains_key(&volume);
            if is_wanted || mounted.contains(&volume) {
                continue;
            }
            layout::remove(&volume)?;
            self.volumes.lock().written.remove(&volume);
            // The directories of the worker, the object and the node, unless others are in them.
            for empty in volume.ancestors().skip(1).take(3) {
                if fs::remove_dir(empty).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Volumes {
    fn unwritten(&self) -> Vec<PathBuf> {
        let wanted = self.wanted.iter();
        let wanted = wanted.filter(|(volume, it)| self.written.get(*volume) != Some(&it.version));
        wanted.map(|(volume, _)| volume.clone()).collect()
    }
}

/// Makes the directory of a node, which only the agent enters. The one above may have been created by
/// others, such as a kubelet, with the mode that they chose.
fn private_dir(above: &Path, node: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE).create(above)?;
    DirBuilder::new().recursive(true).mode(PRIVATE).create(node)?;
    fs::set_permissions(node, Permissions::from_mode(PRIVATE))
}

/// The directories in these directories. Absent ones have none.
fn descend(dirs: Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for dir in dirs {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                below.push(entry.path());
            }
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::fixtures::node_context;
    use neptune_wire::SecretBytes;

    use super::*;

    fn files(dir: &Path) -> RuntimeFiles {
        RuntimeFiles::new(&NodeContext { runtime_dir: dir.join("run"), ..node_context() })
    }

    fn volume(text: &str) -> VersionedFiles {
        let file = ("a".to_owned(), SecretBytes::new(text.as_bytes().to_vec()));
        VersionedFiles {
            version: text.to_owned(),
            files: Arc::new(VolumeFiles { files: [file].into() }),
        }
    }

    #[test]
    fn latest_wanted_files_are_written_in_a_private_directory() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let path = dir.path().join("run/edge0/uid/w/v");
        assert!(!files.set_wanted(BTreeMap::new()));
        assert_eq!(files.write(&path), Ok(()), "nothing is wanted");
        assert!(!dir.path().join("run").exists());
        assert!(files.set_wanted([(path.clone(), volume("1"))].into()));
        files.write(&path).unwrap();
        assert!(!files.set_wanted([(path.clone(), volume("1"))].into()));
        assert!(files.set_wanted([(path.clone(), volume("2"))].into()));
        files.write_changed().unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
        for private in ["run", "run/edge0"] {
            let mode = fs::metadata(dir.path().join(private)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{private}");
        }

        // Emptied while the agent runs: the start of a container writes it again.
        layout::remove(&dir.path().join("run/edge0")).unwrap();
        files.write(&path).unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
    }

    #[test]
    fn volume_that_cannot_be_written_does_not_keep_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let node = dir.path().join("run/edge0");
        fs::create_dir_all(node.join("uid")).unwrap();
        fs::write(node.join("uid/blocked"), "").unwrap();
        let (blocked, free) = (node.join("uid/blocked/v"), node.join("uid/w/v"));
        files.set_wanted([(blocked, volume("1")), (free.clone(), volume("1"))].into());
        let error = files.write_changed().unwrap_err();
        assert!(error.contains("uid/blocked/v: "), "{error}");
        assert!(free.join("a").exists());
    }

    #[test]
    fn unused_volumes_are_removed_with_their_empty_directories() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        files.remove_unused(&BTreeSet::new()).unwrap();
        let node = dir.path().join("run/edge0");
        let [wanted, mounted, unused] =
            ["u/w/wanted", "u/w/mounted", "gone/w/v"].map(|path| node.join(path));
        let all = [&wanted, &mounted, &unused].map(|path| (path.clone(), volume("1")));
        files.set_wanted(all.into());
        files.write_changed().unwrap();
        files.set_wanted([(wanted.clone(), volume("1"))].into());
        files.remove_unused(&[mounted.clone()].into()).unwrap();
        assert!(wanted.exists() && mounted.exists() && !node.join("gone").exists());
        files.set_wanted(BTreeMap::new());
        files.remove_unused(&BTreeSet::new()).unwrap();
        assert!(!node.exists() && dir.path().join("run").exists());
    }
}

//! Detects that a dataset may have changed: inotify watches on the directories of its path. I/O.
//!
//! It watches directories instead of the file, so that it sees when the file is replaced by a
//! rename, deleted, or created again. The count decides what changed.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use notify::{
    Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::path_policy::PathPolicy;

/// How changes of a dataset are detected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeDetection {
    /// inotify reports the changes as they happen.
    Events,
    /// The data is polled, because inotify cannot be used.
    Polling {
        /// The reason why inotify cannot be used, for people.
        reason: String,
    },
}

/// File systems whose files can change without an inotify event on this node, by the magic number
/// of statfs(2).
const WITHOUT_EVENTS: [(u32, &str); 10] = [
    (0x0000_6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0000_517b, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

/// Watches one dataset for changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeWatcher {
    changed: Arc<Notify>,
    active: Option<ActiveWatch>,
}

#[derive(Debug)]
struct ActiveWatch {
    directories: Vec<WatchedDirectory>,
    /// Set when a watched directory was removed or renamed, or when events were lost. The watches
    /// must then be created again.
    stale: Arc<AtomicBool>,
    /// Dropping it ends the inotify watches.
    _watcher: RecommendedWatcher,
}

/// A watched directory. The inode distinguishes it from another directory of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchedDirectory {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Whether everything below it is watched too.
    recursive: bool,
}

impl ChangeWatcher {
    /// Is notified when the dataset may have changed since the last call of
    /// [`ChangeWatcher::update`].
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Adjusts the watches to the directories that `path` currently leads through. Blocking. Call
    /// it before each count.
    ///
    /// If directories of the path do not exist, it watches the existing ones above them. `real` is
    /// the path without links; the path itself if it cannot be resolved, or leads out of the allowed
    /// directories. `recursive`: it is a directory, and everything below it belongs to the dataset,
    /// but for what links below it lead to.
    pub(crate) fn update(
        &mut self,
        path: &Path,
        real: &Path,
        recursive: bool,
        policy: &PathPolicy,
    ) -> ChangeDetection {
        let directories = directories_of(path, real, recursive, policy);
        if let Some(name) =
            directories.iter().find_map(|directory| file_system_without_events(&directory.path))
        {
            self.active = None;
            let reason = format!("file system {name} does not report changes");
            return ChangeDetection::Polling { reason };
        }
        let is_current = |watch: &ActiveWatch| {
            watch.directories == directories && !watch.stale.load(Ordering::Relaxed)
        };
        if self.active.as_ref().is_some_and(is_current) {
            return ChangeDetection::Events;
        }
        self.active = None;
        match self.start(path, real, directories) {
            Ok(watch) => {
                self.active = Some(watch);
                ChangeDetection::Events
            }
            Err(error) => ChangeDetection::Polling { reason: format!("inotify: {error}") },
        }
    }

    fn start(
        &self,
        path: &Path,
        real: &Path,
        directories: Vec<WatchedDirectory>,
    ) -> notify::Result<ActiveWatch> {
        let stale = Arc::new(AtomicBool::new(false));
        let (changed, is_stale) = (self.changed.clone(), stale.clone());
        let (path, real, current) = (path.to_owned(), real.to_owned(), directories.clone());
        let handle = move |received: notify::Result<Event>| {
            // An error means that a limit was reached; creating the watches again reports which.
            // Lost events may have concerned anything.
            let is_lost = received.as_ref().map_or(true, Event::need_rescan);
            let event = received.unwrap_or_default();
            if is_lost || moves_any(&event, &current) {
                is_stale.store(true, Ordering::Relaxed);
            }
            if is_lost || concerns(&event, &path, &real) {
                changed.notify_one();
            }
        };
        // A link to a directory may lead anywhere, also to the root of the file system.
        let config = Config::default().with_follow_symlinks(false);
        let mut watcher = RecommendedWatcher::new(handle, config)?;
        for directory in &directories {
            let mode = if directory.recursive {
                RecursiveMode::Recursive
            } else {
                RecursiveMode::NonRecursive
            };
            watcher.watch(&directory.path, mode)?;
        }
        Ok(ActiveWatch { directories, stale, _watcher: watcher })
    }
}

/// The directories to watch for `path`, which resolves to `real`: all existing ancestors, because
/// each can be renamed, up to and including the first one outside the allowed directories, in which
/// these may be created. Those to which links lead out of the allowed directories are left out.
fn directories_of(
    path: &Path,
    real: &Path,
    recursive: bool,
    policy: &PathPolicy,
) -> Vec<WatchedDirectory> {
    let mut directories: Vec<WatchedDirectory> = Vec::new();
    if recursive {
        directories.extend(existing_directory(real, true));
    }
    for end in [path, real] {
        for ancestor in end.ancestors().skip(1) {
            let directory = existing_directory(ancestor, false);
            let is_last = directory.is_some() && policy.check(ancestor).is_err();
            if !is_last && policy.resolve(ancestor).is_err() {
                continue;
            }
            directories.extend(
                directory.filter(|above| directories.iter().all(|known| known.path != above.path)),
            );
            if is_last {
                break;
            }
        }
    }
    directories
}

fn existing_directory(path: &Path, recursive: bool) -> Option<WatchedDirectory> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_dir)?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    Some(WatchedDirectory { path: path.to_owned(), device, inode, recursive })
}

fn file_system_without_events(directory: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    // The type of the field differs between architectures; the magic numbers have 32 bits.
    WITHOUT_EVENTS
        .iter()
        .find(|(magic, _)| i128::from(kind) & 0xffff_ffff == i128::from(*magic))
        .map(|(_, name)| *name)
}

/// Whether an event removes or renames one of the watched directories.
fn moves_any(event: &Event, directories: &[WatchedDirectory]) -> bool {
    let moves = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
    let contains_watched =
        |path: &PathBuf| directories.iter().any(|directory| directory.path.starts_with(path));
    moves && event.paths.iter().any(contains_watched)
}

/// Whether an event changes the dataset, something below it, or a directory of its path. Read
/// access is ignored, because counting reads.
fn concerns(event: &Event, path: &Path, real: &Path) -> bool {
    let changes = match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    let about = |changed: &PathBuf| {
        [path, real].iter().any(|own| changed.starts_with(own) || own.starts_with(changed))
    };
    changes && event.paths.iter().any(about)
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, RemoveKind};

    use super::*;

    fn event(kind: EventKind, path: &str) -> Event {
        Event::new(kind).add_path(path.into())
    }

    #[test]
    fn only_changes_of_the_dataset_and_its_path_concern_it() {
        let (path, real) = (Path::new("/data/link/a.csv"), Path::new("/data/real/a.csv"));
        let modified = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        for (expected, kind, seen) in [
            (true, modified, "/data/real/a.csv"),
            (true, modified, "/data/link/a.csv"),
            (true, EventKind::Create(CreateKind::Folder), "/data/link"),
            (true, EventKind::Access(AccessKind::Close(AccessMode::Write)), "/data/real/a.csv"),
            (false, EventKind::Access(AccessKind::Close(AccessMode::Read)), "/data/real/a.csv"),
            (false, EventKind::Access(AccessKind::Open(AccessMode::Any)), "/data/real/a.csv"),
            (false, modified, "/data/real/b.csv"),
            (false, modified, "/data/real/a.csv.tmp"),
        ] {
            assert_eq!(concerns(&event(kind, seen), path, real), expected, "{kind:?} {seen}");
        }
    }

    #[test]
    fn removed_directory_makes_the_watches_stale() {
        let directories =
            [WatchedDirectory { path: "/data/x".into(), device: 1, inode: 2, recursive: false }];
        let removed = EventKind::Remove(RemoveKind::Folder);
        assert!(moves_any(&event(removed, "/data/x"), &directories));
        assert!(moves_any(&event(removed, "/data"), &directories));
        assert!(!moves_any(&event(removed, "/data/x/a.csv"), &directories));
    }
}

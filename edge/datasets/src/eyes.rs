//! Seeing that a dataset may have changed: inotify on the directories that its path goes through. I/O.
//!
//! Directories are watched and not the file, so that replacing it by renaming, deleting it and creating it again are
//! seen. What changed decides counting.

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
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::policy::Policy;

/// How changes are noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Watching {
    /// As they happen, by inotify.
    Events,
    /// By looking now and then, because inotify cannot be used.
    Polling { reason: String },
}

/// File systems whose files change without an event on this node, by the magic number of statfs(2).
const SILENT: [(u32, &str); 10] = [
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

/// The watch of one dataset.
#[derive(Debug, Default)]
pub(crate) struct Eyes {
    wake: Arc<Notify>,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    places: Vec<Place>,
    /// A watched directory was removed or renamed, or events were lost: these watches are worth nothing any more.
    stale: Arc<AtomicBool>,
    /// Watches for as long as it lives.
    _watcher: RecommendedWatcher,
}

/// A watched directory. With its inode, since a directory of the same name may be another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// With everything below it.
    deep: bool,
}

impl Eyes {
    /// Wakes when the dataset may have changed since the last call of `aim`.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Watches `path` as it lies on disk now; to be called before each count. Blocks. What does not exist is waited
    /// for in the directories that do. `deep`: the path is a directory, and all below it counts.
    pub(crate) fn aim(&mut self, path: &Path, deep: bool, policy: &Policy) -> Watching {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let places = places(path, &real, deep, policy);
        if let Some(name) = places.iter().find_map(|place| silent(&place.path)) {
            self.watch = None;
            return Watching::Polling { reason: format!("{name} has no events of changes") };
        }
        let good = |watch: &Watch| watch.places == places && !watch.stale.load(Ordering::Relaxed);
        if self.watch.as_ref().is_some_and(good) {
            return Watching::Events;
        }
        self.watch = None;
        match self.open(path, &real, places) {
            Ok(watch) => {
                self.watch = Some(watch);
                Watching::Events
            }
            Err(error) => Watching::Polling { reason: format!("inotify: {error}") },
        }
    }

    fn open(&self, path: &Path, real: &Path, places: Vec<Place>) -> notify::Result<Watch> {
        let stale = Arc::new(AtomicBool::new(false));
        let (wake, gone) = (self.wake.clone(), stale.clone());
        let (path, real, aims) = (path.to_owned(), real.to_owned(), places.clone());
        let handle = move |seen: notify::Result<Event>| {
            // An error is a limit that was met: watching anew tells which. Lost events may have been any.
            let lost = seen.as_ref().map_or(true, Event::need_rescan);
            let event = seen.unwrap_or_default();
            if lost || moves_any(&event, &aims) {
                gone.store(true, Ordering::Relaxed);
            }
            if lost || concerns(&event, &path, &real) {
                wake.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(handle)?;
        for place in &places {
            let mode =
                if place.deep { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            watcher.watch(&place.path, mode)?;
        }
        Ok(Watch { places, stale, _watcher: watcher })
    }
}

/// The directories to watch for a path that leads to `real`: those above it that exist, since each may be renamed, up
/// to the first that is outside the allowed ones, where these may be created.
fn places(path: &Path, real: &Path, deep: bool, policy: &Policy) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    if deep {
        places.extend(place(real, true));
    }
    for end in [path, real] {
        for directory in end.ancestors().skip(1) {
            let found = place(directory, false);
            let last = found.is_some() && policy.admits(directory).is_err();
            places
                .extend(found.filter(|above| places.iter().all(|known| known.path != above.path)));
            if last {
                break;
            }
        }
    }
    places
}

fn place(directory: &Path, deep: bool) -> Option<Place> {
    let metadata = fs::metadata(directory).ok().filter(fs::Metadata::is_dir)?;
    Some(Place { path: directory.to_owned(), device: metadata.dev(), inode: metadata.ino(), deep })
}

fn silent(directory: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    // The type of the field differs between architectures; the magic numbers have 32 bits.
    SILENT
        .iter()
        .find(|(magic, _)| i128::from(kind) & 0xffff_ffff == i128::from(*magic))
        .map(|(_, name)| *name)
}

fn moves_any(event: &Event, places: &[Place]) -> bool {
    let moves = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
    moves && event.paths.iter().any(|path| places.iter().any(|place| place.path.starts_with(path)))
}

/// Whether an event is about the dataset, something below it, or a directory on the way to it. Reading is no change,
/// and counting reads.
fn concerns(event: &Event, path: &Path, real: &Path) -> bool {
    let changes = match event.kind {
        EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    let about = |seen: &PathBuf| {
        [path, real].iter().any(|own| seen.starts_with(own) || own.starts_with(seen))
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
    fn only_changes_of_the_dataset_and_of_the_way_to_it_wake() {
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
    fn a_removed_directory_makes_the_watches_stale() {
        let places = [Place { path: "/data/x".into(), device: 1, inode: 2, deep: false }];
        let removed = EventKind::Remove(RemoveKind::Folder);
        assert!(moves_any(&event(removed, "/data/x"), &places));
        assert!(moves_any(&event(removed, "/data"), &places));
        assert!(!moves_any(&event(removed, "/data/x/a.csv"), &places));
    }
}

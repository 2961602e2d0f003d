//! A file without read permission. Tests may run as root, which can read every file, so the thread
//! drops that capability.

use std::{fs, os::unix::fs::PermissionsExt};

use neptune_datasets::{DatasetError, watch_dataset};
use neptune_sources::DatasetFormat;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::{
    DataDirs,
    watching::{intervals, until},
};

#[test]
fn unreadable_file_is_counted_after_permission_is_granted() {
    // Capabilities belong to a thread. The threads of the runtime inherit them from this one.
    let thread = std::thread::spawn(|| {
        let mut own = capabilities(None).unwrap();
        own.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, own).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(denied_then_granted());
    });
    thread.join().unwrap();
}

async fn denied_then_granted() {
    let dirs = DataDirs::new();
    let path = dirs.path("a.txt");
    fs::write(&path, "a\n").unwrap();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    let mut reports =
        watch_dataset(dirs.dataset("a.txt", DatasetFormat::Txt), dirs.policy(), intervals(), None);
    let denied = until(&mut reports, |report| report.error.is_some()).await;
    assert_eq!(denied.error, Some(DatasetError::PermissionDenied { path: path.clone() }));
    mode(0o600);
    let granted = until(&mut reports, |report| report.error.is_none()).await;
    assert_eq!(granted.counts.unwrap().samples, 1);
}

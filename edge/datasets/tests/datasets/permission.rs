//! A file that the agent may not read. Tests may run as root, who may read everything, so the thread gives that up.

use std::{fs, os::unix::fs::PermissionsExt};

use neptune_datasets::{Error, Format, watch};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::{
    Place,
    watching::{pace, until},
};

#[test]
fn a_file_without_permission_is_a_condition_that_heals_when_it_is_given() {
    // Capabilities are a thread's, and the runtime's threads get those of the one that starts them.
    let thread = std::thread::spawn(|| {
        let mut own = capabilities(None).unwrap();
        own.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, own).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(denied_and_healed());
    });
    thread.join().unwrap();
}

async fn denied_and_healed() {
    let place = Place::new();
    let path = place.path("a.txt");
    fs::write(&path, "a\n").unwrap();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o000);
    let mut reports = watch(place.spec("a.txt", Format::Txt), place.policy(), pace(), None);
    let denied = until(&mut reports, |report| report.condition.is_some()).await;
    assert_eq!(denied.condition, Some(Error::Denied { path: path.clone() }));
    mode(0o600);
    let healed = until(&mut reports, |report| report.condition.is_none()).await;
    assert_eq!(healed.tally.unwrap().samples, 1);
}

//! Follows which of the offered devices are present. The agent gets an event when that changes.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_agent_core::devices::{
    inventory::Inventory, offered::OfferedUnit, source::DeviceOffer,
};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use super::scan::scan;
use crate::event::AgentEvent;

/// Pause between two looks. A few names are looked up, nothing is opened.
const SCAN_INTERVAL: Duration = Duration::from_secs(2);

/// The devices that the operator of the node offers.
#[derive(Debug, Clone)]
pub struct DeviceSettings {
    pub offers: Vec<DeviceOffer>,
    /// The `/dev` of the node as the agent sees it.
    pub root: PathBuf,
}

/// The units of these offers, as they are now.
pub fn present(offers: Vec<DeviceOffer>, root: &Path) -> Vec<OfferedUnit> {
    let mut inventory = Inventory::new(offers);
    inventory.observe(scan(root, &inventory.paths()));
    inventory.units()
}

/// The units that are present now. A task reports each change.
pub fn start(settings: DeviceSettings, events: mpsc::Sender<AgentEvent>) -> Vec<OfferedUnit> {
    let DeviceSettings { offers, root } = settings;
    let mut inventory = Inventory::new(offers);
    let paths = inventory.paths();
    inventory.observe(scan(&root, &paths));
    let units = inventory.units();
    if paths.is_empty() {
        return units;
    }
    let mut known = units.clone();
    tokio::spawn(async move {
        let mut ticks = interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let (root, paths) = (root.clone(), paths.clone());
            let seen = spawn_blocking(move || scan(&root, &paths)).await;
            inventory.observe(seen.expect("looking up names does not panic"));
            let units = inventory.units();
            if units != known {
                known.clone_from(&units);
                // The receiver is dropped only when the process exits.
                let _ = events.send(AgentEvent::DevicesChanged(units)).await;
            }
        }
    });
    units
}

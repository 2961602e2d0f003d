//! The units that the node offers now, and the numbers that the agent reports of them.

use std::collections::{BTreeMap, BTreeSet};

use neptune_wire::{MAX_OFFERED_DEVICES, OfferedDevice};

use crate::domain::device::DeviceUnit;

/// A unit that the operator offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedUnit {
    pub name: String,
    pub resource: String,
    /// The unit, or the path or pattern that is not on the node.
    pub unit: Result<DeviceUnit, String>,
}

impl OfferedUnit {
    pub const fn is_present(&self) -> bool {
        self.unit.is_ok()
    }
}

/// The numbers of each resource. `used`: the units that containers have.
pub fn report(units: &[OfferedUnit], used: &BTreeSet<&str>) -> Vec<OfferedDevice> {
    let mut devices: BTreeMap<&str, OfferedDevice> = BTreeMap::new();
    for unit in units {
        let device = devices.entry(&unit.resource).or_insert_with(|| OfferedDevice {
            resource: unit.resource.clone(),
            total: 0,
            free: 0,
            missing: 0,
        });
        device.total += 1;
        device.missing += u32::from(!unit.is_present());
        device.free += u32::from(unit.is_present() && !used.contains(unit.name.as_str()));
    }
    devices.into_values().take(MAX_OFFERED_DEVICES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_present_free_and_missing_units() {
        let unit = |name: &str, resource: &str, is_present: bool| OfferedUnit {
            name: name.to_owned(),
            resource: resource.to_owned(),
            unit: if is_present {
                Ok(DeviceUnit {
                    name: name.to_owned(),
                    resource: resource.to_owned(),
                    identity: String::new(),
                    parts: Vec::new(),
                })
            } else {
                Err(name.to_owned())
            },
        };
        let units = [
            unit("a", "x/camera", true),
            unit("b", "x/camera", true),
            unit("c", "x/camera", false),
            unit("d", "x/gpu", true),
        ];
        let numbers = |used: &[&str]| {
            let report = report(&units, &used.iter().copied().collect());
            report.iter().map(|it| (it.total, it.free, it.missing)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&[]), [(3, 2, 1), (1, 1, 0)]);
        assert_eq!(numbers(&["a", "c", "d"]), [(3, 1, 1), (1, 0, 0)]);
        assert!(report(&[], &BTreeSet::new()).is_empty());
    }
}

//! Decides the findings about the devices that the node offers. Pure.

use std::collections::{BTreeMap, BTreeSet};

use neptune_agent_core::{
    devices::{
        engine_support::{depends_on_engine, unsuited},
        offered::{OfferedUnit, report},
    },
    domain::device::{DevicePart, DeviceUnit},
};

use neptune_wire::device_totals;

use crate::commands::doctor::{facts::DeviceFacts, report::Finding};

const CHECK: &str = "devices";

/// Whether the devices are there, the engine can pass them on, and each is in one unit.
pub fn devices(DeviceFacts { units, engine }: &DeviceFacts) -> Vec<Finding> {
    let units = match units {
        Ok(units) => units,
        Err(why) => {
            return vec![Finding::error(CHECK, why, "check the disk and mounts below --dev-root")];
        }
    };
    let mut findings = Vec::new();
    let present: Vec<&DeviceUnit> =
        units.iter().filter_map(|unit| unit.unit.as_ref().ok()).collect();
    for unit in &present {
        let unit = std::slice::from_ref(*unit);
        let engine = engine.as_ref().filter(|_| depends_on_engine(unit));
        match engine {
            Some(Ok(engine)) => {
                findings.extend(unsuited(engine, unit).map(|it| refused(&unit[0], &it.message)));
            }
            Some(Err(why)) => findings.push(Finding::warning(
                CHECK,
                format!("it is not known whether the engine passes on {}: {why}", unit[0].name),
                "make the engine answer; see the check engine",
            )),
            None => {}
        }
    }
    findings.extend(units.iter().filter_map(absent));
    findings.extend(shared(&present));
    findings.extend(present.iter().filter_map(|unit| of_root(unit)));
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, device_totals(&report(units, &BTreeSet::new()))));
    }
    findings
}

fn refused(unit: &DeviceUnit, message: &str) -> Finding {
    // The remedy follows the problem.
    let (seen, help) = message.split_once("; ").unwrap_or((message, "use another engine"));
    Finding::error(CHECK, format!("{}: {seen}", unit.name), help)
}

fn absent(unit: &OfferedUnit) -> Option<Finding> {
    let path = unit.unit.as_ref().err()?;
    Some(Finding::warning(
        CHECK,
        format!("{path} of {} is not there", unit.resource),
        "connect it, or correct --allow-device; in a container the agent needs --dev-root",
    ))
}

/// The devices that are in several units.
fn shared(units: &[&DeviceUnit]) -> Option<Finding> {
    let mut users: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for unit in units {
        for part in &unit.parts {
            let device = match part {
                DevicePart::Node { path, .. } => path.clone(),
                DevicePart::Cdi(name) => name.clone(),
                DevicePart::Nvidia(id) => format!("nvidia:{id}"),
                // All of its units may be on one GPU.
                DevicePart::Runtime { .. } => continue,
            };
            users.entry(device).or_default().push(&unit.name);
        }
    }
    let (device, names) = users.into_iter().find(|(_, names)| names.len() > 1)?;
    Some(Finding::warning(
        CHECK,
        format!("{device} is in several units: {}", names.join(", ")),
        "remove all but one, unless its containers are to share it",
    ))
}

/// A device that only root can open.
fn of_root(unit: &DeviceUnit) -> Option<Finding> {
    let path = unit.parts.iter().find_map(|part| match part {
        DevicePart::Node { path, group: Some(0), .. } => Some(path),
        _ => None,
    })?;
    Some(Finding::warning(
        CHECK,
        format!("{path} belongs to group 0, which no container gets"),
        "give it a group with a udev rule (GROUP=\"video\", MODE=\"0660\"), unless its containers run as root",
    ))
}

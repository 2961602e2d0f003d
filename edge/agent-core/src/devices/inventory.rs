//! Decides which units are present, from what is seen below `/dev` every few seconds.
//!
//! A path that is absent twice in a row is not there any more: udev replaces links in two steps. A
//! device that is connected again is another one, because its node has another inode.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    devices::{
        offered::OfferedUnit,
        source::{DeviceOffer, DeviceSource},
    },
    domain::device::{DevicePart, DeviceUnit},
};

/// Looks in a row without a path, after which it is gone.
const MAX_MISSES: u8 = 2;

/// A device node below `/dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// The path on the node, without links.
    pub path: String,
    /// The number of the device.
    pub device: u64,
    pub inode: u64,
    /// The group that a container needs to open it; `None` if everybody may, or only root.
    pub group: Option<u32>,
}

/// What one look below `/dev` saw: for each path or pattern of the offers, the nodes by path.
pub type Scan = BTreeMap<String, BTreeMap<String, DeviceNode>>;

/// The offers of the operator, and which of them are present.
#[derive(Debug)]
pub struct Inventory {
    offers: Vec<DeviceOffer>,
    /// By path or pattern, the nodes with the number of looks since one was seen.
    known: BTreeMap<String, BTreeMap<String, (DeviceNode, u8)>>,
}

impl Inventory {
    pub const fn new(offers: Vec<DeviceOffer>) -> Self {
        Self { offers, known: BTreeMap::new() }
    }

    /// The paths and patterns to look up.
    pub fn paths(&self) -> BTreeSet<String> {
        self.offers.iter().flat_map(DeviceOffer::paths).map(str::to_owned).collect()
    }

    /// Records what was seen.
    pub fn observe(&mut self, scan: Scan) {
        for nodes in self.known.values_mut() {
            nodes.retain(|_, (_, misses)| {
                *misses += 1;
                *misses < MAX_MISSES
            });
        }
        for (pattern, nodes) in scan {
            let seen = nodes.into_iter().map(|(path, node)| (path, (node, 0)));
            self.known.entry(pattern).or_default().extend(seen);
        }
    }

    /// The units in the order of the flags; the matches of a pattern by name.
    pub fn units(&self) -> Vec<OfferedUnit> {
        let mut units: Vec<OfferedUnit> = Vec::new();
        for offer in &self.offers {
            for unit in self.units_of(offer) {
                // A path may be a match of a pattern as well.
                if units.iter().all(|known| known.name != unit.name) {
                    units.push(unit);
                }
            }
        }
        units
    }

    fn units_of(&self, offer: &DeviceOffer) -> Vec<OfferedUnit> {
        let (Some(pattern), [DeviceSource::Node { target, .. }]) =
            (offer.pattern(), &offer.sources[..])
        else {
            return vec![self.unit(&offer.resource, &offer.sources)];
        };
        let matches = self.known.get(pattern).into_iter().flatten();
        let units = matches.map(|(path, (node, _))| {
            let part = node_part(path, target.as_ref(), node);
            offered(&offer.resource, path, Ok(vec![part]))
        });
        let units: Vec<OfferedUnit> = units.collect();
        if units.is_empty() {
            return vec![offered(&offer.resource, pattern, Err(pattern.to_owned()))];
        }
        units
    }

    fn unit(&self, resource: &str, sources: &[DeviceSource]) -> OfferedUnit {
        let names: Vec<String> = sources.iter().map(ToString::to_string).collect();
        let parts: Result<Vec<_>, String> =
            sources.iter().map(|source| self.part(source)).collect();
        offered(resource, &names.join("+"), parts)
    }

    /// The part with its identity; or the path that is not there.
    fn part(&self, source: &DeviceSource) -> Result<(DevicePart, String), String> {
        let part = match source {
            DeviceSource::Node { path, target } => {
                let node = self.known.get(path).and_then(|nodes| nodes.get(path));
                let (node, _) = node.ok_or_else(|| path.clone())?;
                return Ok(node_part(path, target.as_ref(), node));
            }
            DeviceSource::Cdi(name) => DevicePart::Cdi(name.clone()),
            DeviceSource::Nvidia(id) => DevicePart::Nvidia(id.clone()),
            DeviceSource::Runtime { name, id } => {
                DevicePart::Runtime { name: name.clone(), id: id.clone() }
            }
        };
        Ok((part, String::new()))
    }
}

fn node_part(path: &str, target: Option<&String>, node: &DeviceNode) -> (DevicePart, String) {
    let target = target.map_or_else(|| path.to_owned(), Clone::clone);
    let identity = format!("{}/{}:{target}", node.device, node.inode);
    (DevicePart::Node { path: node.path.clone(), target, group: node.group }, identity)
}

fn offered(
    resource: &str,
    sources: &str,
    parts: Result<Vec<(DevicePart, String)>, String>,
) -> OfferedUnit {
    let name = format!("{resource}={sources}");
    let unit = parts.map(|parts| {
        let (parts, identities): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let (name, resource) = (name.clone(), resource.to_owned());
        DeviceUnit { name, resource, identity: identities.join("+"), parts }
    });
    OfferedUnit { name, resource: resource.to_owned(), unit }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(path: &str, inode: u64) -> DeviceNode {
        DeviceNode { path: path.to_owned(), device: 5, inode, group: Some(44) }
    }

    fn scan(seen: &[(&str, &str, u64)]) -> Scan {
        let mut scan = Scan::new();
        for (pattern, path, inode) in seen {
            let nodes = scan.entry((*pattern).to_owned()).or_default();
            nodes.insert((*path).to_owned(), node("/dev/video0", *inode));
        }
        scan
    }

    fn inventory(offers: &[&str]) -> Inventory {
        Inventory::new(offers.iter().map(|offer| offer.parse().unwrap()).collect())
    }

    fn names(inventory: &Inventory) -> Vec<(String, Option<String>)> {
        let units = inventory.units().into_iter();
        units.map(|unit| (unit.name, unit.unit.ok().map(|unit| unit.identity))).collect()
    }

    #[test]
    fn path_is_gone_after_two_scans_and_another_device_on_return() {
        let mut inventory = inventory(&["a.b/c=/dev/cam:/dev/video0"]);
        let name = || "a.b/c=/dev/cam".to_owned();
        assert_eq!(names(&inventory), [(name(), None)], "before the first look");
        assert_eq!(inventory.units()[0].unit, Err("/dev/cam".to_owned()));
        let present = scan(&[("/dev/cam", "/dev/cam", 1)]);
        inventory.observe(present.clone());
        let first = Some("5/1:/dev/video0".to_owned());
        assert_eq!(names(&inventory), [(name(), first.clone())]);
        inventory.observe(Scan::new());
        assert_eq!(names(&inventory), [(name(), first.clone())], "one miss");
        inventory.observe(present);
        inventory.observe(Scan::new());
        assert_eq!(names(&inventory), [(name(), first)], "misses in a row count");
        inventory.observe(Scan::new());
        assert_eq!(names(&inventory), [(name(), None)]);
        inventory.observe(scan(&[("/dev/cam", "/dev/cam", 2)]));
        assert_eq!(names(&inventory), [(name(), Some("5/2:/dev/video0".to_owned()))]);
    }

    #[test]
    fn each_match_of_a_pattern_is_a_unit_and_the_pattern_stands_for_none() {
        let mut inventory = inventory(&["a.b/c=/dev/v*", "a.b/c=/dev/v1", "a.b/c=x.y/z=0"]);
        let cdi = ("a.b/c=x.y/z=0".to_owned(), Some(String::new()));
        let absent = ["a.b/c=/dev/v*", "a.b/c=/dev/v1"].map(|name| (name.to_owned(), None));
        assert_eq!(names(&inventory), [&absent[..], std::slice::from_ref(&cdi)].concat());
        let paths: Vec<String> = inventory.paths().into_iter().collect();
        assert_eq!(paths, ["/dev/v*", "/dev/v1"]);
        inventory.observe(scan(&[
            ("/dev/v*", "/dev/v2", 2),
            ("/dev/v*", "/dev/v1", 1),
            ("/dev/v1", "/dev/v1", 1),
        ]));
        let unit = |at: u64| (format!("a.b/c=/dev/v{at}"), Some(format!("5/{at}:/dev/v{at}")));
        assert_eq!(names(&inventory), [unit(1), unit(2), cdi]);
    }

    #[test]
    fn unit_of_several_sources_is_there_if_all_are() {
        let mut inventory = inventory(&["amd.com/gpu=/dev/kfd+/dev/render"]);
        inventory.observe(scan(&[("/dev/kfd", "/dev/kfd", 1)]));
        assert_eq!(inventory.units()[0].unit, Err("/dev/render".to_owned()));
        inventory.observe(scan(&[("/dev/kfd", "/dev/kfd", 1), ("/dev/render", "/dev/render", 2)]));
        let unit = inventory.units().remove(0);
        assert_eq!(unit.name, "amd.com/gpu=/dev/kfd+/dev/render");
        let unit = unit.unit.unwrap();
        assert_eq!((unit.parts.len(), &*unit.identity), (2, "5/1:/dev/kfd+5/2:/dev/render"));
    }
}

//! Looks which device nodes exist. Opens none of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use neptune_agent_core::devices::{
    inventory::{DeviceNode, Scan},
    source::{check_node, is_pattern, matches},
};

/// Maximum number of device nodes that are followed.
pub const MAX_NODES: usize = 64;

/// The device nodes of the machine.
const DEV: &str = "/dev";
/// The right of everybody to read and write.
const OPEN: u32 = 0o006;

/// Why a path is not one of a device that can be offered.
#[derive(Debug)]
pub enum NodeError {
    /// It does not exist now, or cannot be seen.
    Absent,
    /// Another kind of file, or a device that is not offered to anybody.
    Refused(String),
}

/// Looks up paths and patterns, in the order of their names. `root`: the `/dev` of the node as the
/// agent sees it.
pub fn scan(root: &Path, paths: &BTreeSet<String>) -> Scan {
    let mut scan = Scan::new();
    let mut number = 0;
    for pattern in paths {
        let mut nodes = BTreeMap::new();
        for path in expanded(root, pattern) {
            if number == MAX_NODES {
                break;
            }
            if let Ok(node) = node_at(root, &path) {
                nodes.insert(path, node);
                number += 1;
            }
        }
        scan.insert(pattern.clone(), nodes);
    }
    scan
}

/// The device node at a path below `/dev` of the node, without links.
///
/// # Errors
/// It does not exist, or may not be offered.
pub fn node_at(root: &Path, path: &str) -> Result<DeviceNode, NodeError> {
    let resolved = fs::canonicalize(below(root, path)).map_err(|_| NodeError::Absent)?;
    let metadata = fs::metadata(&resolved).map_err(|_| NodeError::Absent)?;
    let kind = metadata.file_type();
    if !kind.is_char_device() {
        let kind = if kind.is_dir() {
            "a directory"
        } else if kind.is_block_device() {
            "a block device"
        } else {
            "no device"
        };
        return Err(NodeError::Refused(format!("{path} is {kind}")));
    }
    let on_node = on_node(root, &resolved)
        .ok_or_else(|| NodeError::Refused(format!("{path} is a link to {}", resolved.display())))?;
    check_node(&on_node).map_err(|error| NodeError::Refused(error.to_string()))?;
    Ok(DeviceNode {
        path: on_node,
        device: metadata.rdev(),
        inode: metadata.ino(),
        group: (metadata.mode() & OPEN != OPEN).then(|| metadata.gid()),
    })
}

/// Where the agent sees a path below `/dev` of the node.
fn below(root: &Path, path: &str) -> PathBuf {
    let name = path.strip_prefix(DEV).unwrap_or(path);
    root.join(name.trim_start_matches('/'))
}

/// The path on the node of a device that the agent sees at this path without links.
fn on_node(root: &Path, resolved: &Path) -> Option<String> {
    let root = fs::canonicalize(root).ok()?;
    let path = match resolved.strip_prefix(&root) {
        Ok(name) => Path::new(DEV).join(name),
        Err(_) => resolved.to_owned(),
    };
    let path = path.to_str()?;
    path.starts_with("/dev/").then(|| path.to_owned())
}

/// The paths that match a pattern, by name; a plain path matches itself.
fn expanded(root: &Path, pattern: &str) -> Vec<String> {
    let mut paths = vec![DEV.to_owned()];
    let names = pattern.strip_prefix("/dev/").unwrap_or_default();
    for name in names.split('/') {
        let next = paths.iter().flat_map(|path| {
            let names = if is_pattern(name) {
                matching(&below(root, path), name)
            } else {
                vec![name.to_owned()]
            };
            names.into_iter().map(move |name| format!("{path}/{name}"))
        });
        paths = next.collect();
    }
    paths
}

/// The names in a directory that match, without hidden ones.
fn matching(dir: &Path, pattern: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| !name.starts_with('.') && matches(pattern, name)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(patterns: &[&str]) -> BTreeSet<String> {
        patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
    }

    #[test]
    fn links_below_the_root_are_the_devices_that_they_name() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v4l/by-id");
        fs::create_dir_all(&dir).unwrap();
        symlink("/dev/null", dir.join("usb-b-index0")).unwrap();
        symlink("/dev/zero", dir.join("usb-a-index0")).unwrap();
        symlink("/dev/zero", dir.join("usb-a-index1")).unwrap();
        symlink("/dev/nothing", dir.join("usb-c-index0")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let wanted = [
            "/dev/v4l/by-id/usb-*-index0",
            "/dev/file",
            "/dev/none",
            "/dev/v4l/by-id/usb-a-index1",
        ];
        let scan = scan(root.path(), &paths(&wanted));
        let cameras: Vec<_> =
            scan[wanted[0]].iter().map(|(path, node)| (&**path, &*node.path)).collect();
        let expected = [
            ("/dev/v4l/by-id/usb-a-index0", "/dev/zero"),
            ("/dev/v4l/by-id/usb-b-index0", "/dev/null"),
        ];
        assert_eq!(cameras, expected);
        assert!(scan["/dev/file"].is_empty() && scan["/dev/none"].is_empty());
        let zero = &scan[wanted[3]][wanted[3]];
        assert_eq!((zero.path.as_str(), zero.group), ("/dev/zero", None), "open to everybody");
        let metadata = fs::metadata("/dev/zero").unwrap();
        assert_eq!((zero.device, zero.inode), (metadata.rdev(), metadata.ino()));
    }

    #[test]
    fn files_that_are_no_devices_are_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("dir")).unwrap();
        symlink("/etc/hostname", root.path().join("link")).unwrap();
        let why = |path: &str| match node_at(root.path(), path) {
            Err(NodeError::Refused(why)) => why,
            other => format!("{other:?}"),
        };
        assert_eq!(why("/dev/dir"), "/dev/dir is a directory");
        assert_eq!(why("/dev/link"), "/dev/link is no device");
        assert!(matches!(node_at(root.path(), "/dev/none"), Err(NodeError::Absent)));
        assert_eq!(node_at(Path::new("/dev"), "/dev/null").unwrap().path, "/dev/null");
    }
}

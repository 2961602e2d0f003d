//! Whether the user of a container may use a file of the node. I/O: looks for access control lists.

use std::{fs::Metadata, os::unix::fs::MetadataExt as _, path::Path};

/// Permission to list a directory or to read a file.
pub const READ: u32 = 0o4;
/// Permission to create and remove files of a directory.
pub const WRITE: u32 = 0o2;
/// Permission to open the files of a directory.
pub const SEARCH: u32 = 0o1;

/// Whether a process of this user has the permissions `needed` of a file. It has the group of the
/// same number, no other groups and no capabilities, as the containers of the agent. A file with an
/// access control list counts as permitted: the list may say so.
pub fn permits(path: &Path, metadata: &Metadata, user: u32, needed: u32) -> bool {
    by_mode((metadata.mode(), metadata.uid(), metadata.gid()), user, needed)
        || rustix::fs::getxattr_query(path, "system.posix_acl_access").is_ok()
}

fn by_mode((mode, owner, group): (u32, u32, u32), user: u32, needed: u32) -> bool {
    let shift = if owner == user {
        6
    } else if group == user {
        3
    } else {
        0
    };
    mode >> shift & needed == needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_class_that_matches_decides() {
        for (mode, owner, group, needed, expected) in [
            (0o600, 65_532, 0, READ, true),
            (0o600, 0, 65_532, READ, false),
            (0o640, 0, 65_532, READ, true),
            (0o640, 0, 0, READ, false),
            (0o644, 0, 0, READ, true),
            // The owner has fewer rights than others.
            (0o044, 65_532, 0, READ, false),
            (0o604, 0, 65_532, READ, false),
            (0o700, 65_532, 0, READ | SEARCH, true),
            (0o744, 0, 0, READ | SEARCH, false),
            (0o755, 0, 0, READ | WRITE | SEARCH, false),
        ] {
            let is_permitted = by_mode((mode, owner, group), 65_532, needed);
            assert_eq!(is_permitted, expected, "{mode:o} of {owner}:{group}");
        }
        // Root in a container has no capabilities.
        assert!(!by_mode((0o600, 65_532, 65_532), 0, READ));
    }
}

//! A file system of a few MiB that a test can fill or break. Needs root.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

/// A file system in memory or in a file, unmounted when it is dropped.
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of 16 MiB in memory on this directory, which is created.
    pub fn mount(path: &Path) -> Self {
        Self::mount_with(path, &["-t", "tmpfs", "-o", "size=16m", "none"])
    }

    /// Mounts an ext4 of 32 MiB in this file on this directory, which is created.
    pub fn mount_file(path: &Path, file: &Path) -> Self {
        File::create(file).unwrap().set_len(32 << 20).unwrap();
        let status = Command::new("mkfs.ext4").arg("-q").arg(file).status().unwrap();
        assert!(status.success());
        Self::mount_with(path, &["-o", "loop,errors=remount-ro", file.to_str().unwrap()])
    }

    fn mount_with(path: &Path, arguments: &[&str]) -> Self {
        fs::create_dir_all(path).unwrap();
        let status = Command::new("mount").args(arguments).arg(path).status().unwrap();
        assert!(status.success(), "mounting a file system needs root");
        Self { path: path.to_owned() }
    }

    /// Makes an ext4 read-only, as the kernel does after a disk error. Open files stay open.
    pub fn abort(&self) {
        let mount = ["-o", "remount,abort"];
        let status = Command::new("mount").args(mount).arg(&self.path).status().unwrap();
        assert!(status.success());
    }

    /// Leaves no free byte, and the agent no reserve if `with_reserve`.
    pub fn fill(&self, with_reserve: bool) {
        if with_reserve {
            let _ = fs::remove_file(self.path.join("reserve"));
        }
        let mut filling = File::options();
        let mut filling =
            filling.append(true).create(true).open(self.path.join("filling")).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filling.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    pub fn free(&self) {
        fs::remove_file(self.path.join("filling")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

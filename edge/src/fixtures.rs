//! A file system that hangs, for the unit tests.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

/// A directory on a file system that does not answer, like that of a dead NFS server. Accesses end
/// with an error when it is dropped.
pub struct HungDir {
    pub dir: tempfile::TempDir,
    server: Child,
}

impl HungDir {
    /// `None` without the rights to mount a file system.
    pub fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        // A FUSE server that never reads a request.
        let script = "exec 3<>/dev/fuse && mount -i -t fuse hung \"$0\" \
            -o fd=3,rootmode=40000,user_id=0,group_id=0 && echo mounted && read -r end";
        let mut server = Command::new("sh")
            .args(["-c", script])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line == "mounted\n" {
            return Some(Self { dir, server });
        }
        server.wait().unwrap();
        None
    }
}

impl Drop for HungDir {
    fn drop(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        Command::new("umount").arg("-l").arg(self.dir.path()).status().unwrap();
    }
}

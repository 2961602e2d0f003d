//! A full disk stops progress and loses nothing. Needs root, to mount a small file system.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use neptune_pinned_tls::TlsKey;
use neptune_wire::aggregator::RunPhase;
use reqwest::StatusCode;

use crate::{
    clients::{Server, keys, node_of, refusal},
    fixtures::{report, request, trained},
};

/// A file system of 4 MiB, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Self {
        let arguments = ["-t", "tmpfs", "-o", "size=4m", "none"];
        let status = Command::new("mount").args(arguments).arg(path).status().unwrap();
        assert!(status.success(), "mounting a file system needs root");
        Self(path.to_owned())
    }

    fn fill(&self) {
        let mut filling = File::create(self.0.join("filling")).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filling.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filling")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Runs two rounds; the disk is full before each update, if there is one. Returns the weights.
async fn run(directory: &Path, disk: Option<&SmallDisk>) -> String {
    let server = Server::start(directory, &TlsKey::generate()).await;
    let mut request = request(2, 2);
    let keys = keys(&mut request, 2);
    let controller = server.controller();
    controller.put_run(&request).await;
    loop {
        let status =
            controller.wait_for(|it| !it.tasks.is_empty() || it.phase == RunPhase::Succeeded).await;
        let Some(task) = status.tasks.first() else {
            return status.best.unwrap().weights.sha256;
        };
        let (node, bytes) = (server.node(&keys[node_of(task)]), trained(task));
        if let Some(disk) = disk {
            let sent = node.report(&task.id, &bytes, &report()).await;
            assert_eq!(sent.status(), StatusCode::NO_CONTENT);
            disk.fill();
            let full = (StatusCode::INSUFFICIENT_STORAGE, "DiskFull".to_owned());
            let refused = node.patch(&task.id, &bytes, 0, bytes.len()).await;
            assert_eq!(refusal(refused).await, full);
            disk.free();
        }
        node.train(task).await;
    }
}

#[tokio::test]
async fn full_disk_is_reported_and_changes_no_weights() {
    let directory = tempfile::tempdir().unwrap();
    let expected = run(directory.path(), None).await;
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(directory.path());
    assert_eq!(run(directory.path(), Some(&disk)).await, expected);
}

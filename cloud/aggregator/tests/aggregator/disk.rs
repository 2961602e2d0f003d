//! A full disk stops progress and loses nothing. Needs root, to mount a small file system.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, routing::get};
use neptune_content::Digest;
use neptune_pinned_tls::TlsKey;
use neptune_wire::aggregator::{InitialWeights, RunPhase};
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
    let server = Server::start(directory, &TlsKey::generate());
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

/// A file of one write: its error is reported by no later write.
#[tokio::test]
async fn first_weights_that_did_not_fit_are_downloaded_again() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(SmallDisk::mount(directory.path()));
    let server = Server::start(directory.path(), &TlsKey::generate());
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.as_bytes();
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    let weights = [&length, header, &0.5_f32.to_le_bytes()].concat();
    let sha256 = Digest::of_bytes(&weights).to_string();
    let requests = Arc::new(AtomicUsize::new(0));
    let serve = {
        let (disk, requests) = (Arc::clone(&disk), Arc::clone(&requests));
        async move || {
            match requests.fetch_add(1, Ordering::Relaxed) {
                0 => disk.fill(),
                1 => disk.free(),
                _ => {}
            }
            weights
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Some(format!("http://{}/init.npz", listener.local_addr().unwrap()));
    let router = Router::new().route("/init.npz", get(serve));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let mut request = request(1, 1);
    keys(&mut request, 1);
    request.settings.initial = Some(InitialWeights { url, sha256: sha256.clone() });
    let controller = server.controller();
    controller.put_run(&request).await;
    let status = controller.wait_for_round(1).await;
    assert_eq!(status.base.unwrap().sha256, sha256);
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

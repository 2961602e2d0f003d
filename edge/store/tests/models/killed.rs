//! Kills of the process and power failures during a download.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use neptune_store::{ArtifactRequest, Digest, ModelStore};

use crate::{
    archives::{file, gz, tar},
    fixture::{StoreFixture, files, noise, policy},
    server::{Reply, Server, ranged},
};

const KILLS: usize = 50;
/// Maximum number of bytes that are sent twice after a kill: the queue of the writer and the socket
/// buffers.
const BOUND: u64 = (1 << 20) + (512 << 10);

fn child(dir: &Path, url: &str, digest: Digest) -> Child {
    Command::new(env!("CARGO_BIN_EXE_models-fetch"))
        .args([dir.as_os_str(), url.as_ref(), digest.to_string().as_ref()])
        .env("MODELS_ALLOW", "127.0.0.0/8")
        .env("MODELS_RESERVE", "0")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A server of about 25 MB/s, so slow that the socket buffers are almost empty.
async fn paced(body: Bytes) -> Server {
    let pace = Some((32 << 10, Duration::from_millis(1)));
    Server::start(move |request| Reply { pace, ..ranged(request, &body, "\"1\"") }).await
}

#[tokio::test]
async fn killed_process_resumes_and_never_shows_a_partial_model() {
    let weights = noise(12 << 20, 30);
    let packed = gz(&tar(&[file("w", &weights)]));
    let random = noise(2 * KILLS, 31);
    let (mut kills, mut finished, mut worst) = (0, 0, 0);
    while kills < KILLS {
        let (end, body) =
            if finished % 2 == 0 { ("bin", weights.clone()) } else { ("tar.gz", packed.clone()) };
        let digest = Digest::of_bytes(&body);
        let length = body.len() as u64;
        let server = paced(body.into()).await;
        let url = format!("{}/m.{end}", server.url);
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let request = ArtifactRequest::parse(&url, Some(digest)).unwrap();
        loop {
            let mut child = child(&store, &url, digest);
            let moment = 40 + u64::from(random[2 * kills % random.len()]);
            tokio::time::sleep(Duration::from_millis(moment)).await;
            let is_done = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            kills += usize::from(!is_done);
            // One rename makes the artifact visible: it is either missing or complete.
            let content = store.join("sha256").join(digest.to_string());
            let models: Vec<_> = if content.exists() { files(&content) } else { Vec::new() };
            for model in models.iter().filter(|path| path.ends_with("model") || path.ends_with("w"))
            {
                assert_eq!(fs::read(model).unwrap(), weights);
            }
            if is_done {
                break;
            }
        }
        let opened = ModelStore::open(&store, policy()).unwrap();
        assert_eq!(opened.find(&request).unwrap().digest, digest);
        let spans = server.spans();
        for pair in spans.windows(2) {
            let (reached, next) = (pair[0].0 + pair[0].1, pair[1].0);
            worst = worst.max(reached.saturating_sub(next));
            assert!(reached <= next + BOUND, "{spans:?}");
        }
        let sent: u64 = spans.iter().map(|(_, sent)| sent).sum();
        assert!(sent >= length, "{spans:?}");
        finished += 1;
    }
    println!("{kills} kills over {finished} downloads, {worst} bytes sent twice at most");
}

/// Interrupts a download after 200,000 bytes, simulates a power failure with `synced` bytes on
/// disk, and resumes. Returns the spans that the server sent, and whether the result is correct.
async fn after_power_failure(synced: Option<u64>, damage: bool) -> (Vec<(u64, u64)>, bool) {
    let body = Bytes::from(noise(300_000, 32));
    let content = body.clone();
    let server = Server::start(move |request| match request.number {
        0 => Reply { hangs: true, ..ranged(request, &content, "\"1\"").cut(200_000) },
        _ => ranged(request, &content, "\"1\""),
    })
    .await;
    let fixture = StoreFixture::new();
    let url = format!("{}/m", server.url);
    let is_there = || {
        let whole =
            |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.len() == 200_000);
        files(&fixture.root()).iter().any(|path| path.ends_with("raw") && whole(path))
    };
    tokio::select! {
        result = fixture.fetch(&url, None) => panic!("{result:?}"),
        () = async {
            while !is_there() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        } => {}
    }
    let StoreFixture { dir, store } = fixture;
    drop(store);
    let root = dir.path().join("store");
    let part = fs::read_dir(root.join("partial")).unwrap().next().unwrap().unwrap().path();
    let version = fs::read_to_string(part.join("version.json")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(part.join("version.json"), version.replace(boot.trim(), "before")).unwrap();
    if let Some(bytes) = synced {
        fs::write(part.join("synced.json"), format!("{{\"bytes\":{bytes}}}")).unwrap();
    }
    if damage {
        // Blocks that were allocated and not written contain zeros.
        let mut raw = fs::read(part.join("raw")).unwrap();
        raw[100_000..].fill(0);
        fs::write(part.join("raw"), raw).unwrap();
    }
    // The cancelled fetch may keep the store open for a moment.
    let store = loop {
        match ModelStore::open(&root, policy()) {
            Ok(store) => break store,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let fixture = StoreFixture { dir, store };
    let artifact = fixture.fetch(&url, None).await.unwrap();
    (server.spans(), fs::read(artifact.path).unwrap() == body)
}

#[tokio::test]
async fn only_synced_bytes_are_used_after_a_power_failure() {
    assert_eq!(after_power_failure(None, true).await, (vec![(0, 200_000), (0, 300_000)], true));
    let spans = vec![(0, 200_000), (100_000, 200_000)];
    assert_eq!(after_power_failure(Some(100_000), true).await, (spans, true));
    let spans = vec![(0, 200_000), (200_000, 100_000)];
    assert_eq!(after_power_failure(Some(999_999), false).await, (spans, true));
}

#[tokio::test]
async fn restarted_process_resumes_the_download() {
    let body = Bytes::from(noise(300_000, 33));
    let digest = Digest::of_bytes(&body);
    let content = body.clone();
    let server = Server::start(move |request| {
        let reply = ranged(request, &content, "\"1\"");
        if request.number == 0 { reply.cut(120_000) } else { reply }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let url = format!("{}/m", server.url);
    let run = |once: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_models-fetch"));
        command.args([dir.path().as_os_str(), url.as_ref(), digest.to_string().as_ref()]);
        command.env("MODELS_ALLOW", "127.0.0.0/8").env("MODELS_RESERVE", "0");
        if once {
            command.env("MODELS_ONCE", "1");
        }
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let first = run(true).await.unwrap();
    assert!(
        !first.status.success()
            && String::from_utf8_lossy(&first.stderr).contains("interrupted after 120000")
    );
    let second = run(false).await.unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(server.spans(), [(0, 120_000), (120_000, 180_000)]);
}

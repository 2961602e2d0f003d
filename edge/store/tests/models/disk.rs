//! Full disks: the error has the missing bytes, and the download resumes when there is space.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use neptune_store::{
    ArtifactRequest, Digest, FetchPhase, FetchProgress, ModelError, ModelErrorClass, ModelStore,
    StorePolicy,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::watch,
};

use crate::{
    archives::{file, tar},
    fixture::{StoreFixture, noise, policy},
    server::{Reply, Server, ranged},
};

#[tokio::test]
async fn download_that_does_not_fit_fails_before_it_starts() {
    let server = Server::serve_file(noise(500_000, 40)).await;
    let free = u64::MAX / 2;
    let fixture = StoreFixture::with(StorePolicy { reserve_bytes: free, ..policy() });
    let request = ArtifactRequest::parse(&format!("{}/m", server.url), None).unwrap();
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    let error = tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        progress = progress.wait_for(|progress| progress.phase == FetchPhase::Retrying) => {
            progress.unwrap().last_error.clone().unwrap()
        }
    };
    let ModelError::DiskFull { missing, reserve, .. } = *error else { panic!("{error}") };
    assert_eq!((reserve, error.class()), (free, ModelErrorClass::Transient));
    assert!(
        missing > free / 2 && error.to_string().contains(&format!("{missing} bytes")),
        "{error}"
    );
    assert_eq!(progress.borrow().received, 0);
}

#[tokio::test]
async fn file_size_limit_is_reported_and_the_download_resumed() {
    let weights = noise(2 << 20, 41);
    let archive = tar(&[file("w", &weights)]);
    for at in 1..=20 {
        let body = Bytes::from(if at % 2 == 0 { weights.clone() } else { archive.clone() });
        let end = if at % 2 == 0 { "bin" } else { "tar" };
        let digest = Digest::of_bytes(&body);
        let length = body.len();
        let content = body.clone();
        let server = Server::start(move |request| ranged(request, &content, "\"1\"")).await;
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{}/m.{end}", server.url);
        // The limit is in blocks of 512 bytes. Without the trap, the signal would kill the process.
        let blocks = length / 512 * at / 21;
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_models-fetch")]);
        command.args([dir.path().as_os_str(), url.as_ref(), digest.to_string().as_ref()]);
        command
            .env("MODELS_ALLOW", "127.0.0.0/8")
            .env("MODELS_RESERVE", "0")
            .env("MODELS_ONCE", "1");
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let progress = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && progress.contains("not enough disk space"),
            "{at}: {progress}"
        );

        let store = ModelStore::open(dir.path(), policy()).unwrap();
        let request = ArtifactRequest::parse(&url, Some(digest)).unwrap();
        assert!(store.find(&request).is_none(), "{at}");
        let artifact =
            store.ensure(&request, &watch::channel(FetchProgress::default()).0).await.unwrap();
        let model = if end == "bin" { artifact.path } else { artifact.path.join("w") };
        assert_eq!(fs::read(model).unwrap(), weights, "{at}");
        assert_eq!(server.spans()[1].0, (blocks * 512) as u64, "{at}: resumed where the limit was");
    }
}

/// Fetches to a file system of `mib` MiB, which is enlarged when the first error is printed.
/// Returns that error.
async fn full_at(mib: usize, body: Bytes) -> Option<String> {
    let digest = Digest::of_bytes(&body);
    let content = body.clone();
    // Without a length, so that the error is not detected in advance.
    let server = Server::start(move |request| Reply {
        is_unsized: true,
        ..ranged(request, &content, "\"1\"")
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().display();
    let script = format!("mount -t tmpfs -o size={mib}m none {mount} && exec \"$0\" \"$@\"");
    let mut child = tokio::process::Command::new("unshare")
        .args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_models-fetch")])
        .args([dir.path().as_os_str(), format!("{}/m", server.url).as_ref()])
        .arg(digest.to_string())
        .env("MODELS_ALLOW", "127.0.0.0/8")
        .env("MODELS_RESERVE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let mut lines = BufReader::new(child.stderr.take()?).lines();
    let progress = lines.next_line().await.unwrap()?;
    if progress.contains("not enough disk space") {
        let pid = child.id()?.to_string();
        let grown = Command::new("nsenter")
            .args(["-U", "-m", "--preserve-credentials", "-t", &pid])
            .args(["mount", "-o", "remount,size=64m", "none", &mount.to_string()])
            .status()
            .unwrap();
        assert!(grown.success());
        let output = child.wait_with_output();
        let output = tokio::time::timeout(Duration::from_secs(30), output).await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("digest={digest}")), "{mib}: {text}");
    }
    Some(progress)
}

#[tokio::test]
async fn full_file_system_is_retried_until_there_is_space() {
    let body = Bytes::from(noise(8 << 20, 42));
    let cases = [1, 2, 3, 5, 7].map(|mib| full_at(mib, body.clone()));
    for progress in futures::future::join_all(cases).await {
        let Some(progress) = progress else { panic!("no error was printed") };
        assert!(progress.contains("not enough disk space"), "{progress}");
    }
}

//! A disk that is full: told with the missing bytes, and gone on from once there is room.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use neptune_models::{Class, Digest, ModelError, Phase, Policy, Progress, Store, Want};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::watch,
};

use crate::{
    archives::{file, tar},
    server::{Reply, Server, ranged},
    stage::{Stage, noise, policy},
};

#[tokio::test]
async fn what_cannot_fit_is_not_begun_and_the_missing_bytes_are_told() {
    let server = Server::of(noise(500_000, 40)).await;
    let free = u64::MAX / 2;
    let stage = Stage::with(Policy { reserve: free, ..policy() });
    let want = Want::parse(&format!("{}/m", server.url), None).unwrap();
    let (sender, mut told) = watch::channel(Progress::default());
    let error = tokio::select! {
        result = stage.store.ensure(&want, &sender) => panic!("{result:?}"),
        progress = told.wait_for(|progress| progress.phase == Phase::Retrying) => {
            progress.unwrap().trouble.clone().unwrap()
        }
    };
    let ModelError::DiskFull { missing, reserve, .. } = *error else { panic!("{error}") };
    assert_eq!((reserve, error.class()), (free, Class::Transient));
    assert!(
        missing > free / 2 && error.to_string().contains(&format!("{missing} bytes")),
        "{error}"
    );
    assert_eq!(told.borrow().received, 0);
}

#[tokio::test]
async fn a_limit_at_twenty_offsets_is_told_each_time_and_the_rest_follows() {
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
        // In blocks of 512 bytes; without the trap the signal would kill.
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
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && told.contains("bytes of disk space are missing"),
            "{at}: {told}"
        );

        let store = Store::open(dir.path(), policy()).unwrap();
        let want = Want::parse(&url, Some(digest)).unwrap();
        assert!(store.present(&want).is_none(), "{at}");
        let found = store.ensure(&want, &watch::channel(Progress::default()).0).await.unwrap();
        let model = if end == "bin" { found.path } else { found.path.join("w") };
        assert_eq!(fs::read(model).unwrap(), weights, "{at}");
        assert_eq!(server.spans()[1].0, (blocks * 512) as u64, "{at}: what fitted is gone on from");
    }
}

/// A file system of its own that is full at `mib`, and gets room while the fetch waits.
async fn full_at(mib: usize, body: Bytes) -> Option<String> {
    let digest = Digest::of_bytes(&body);
    let content = body.clone();
    // Without a length, so that nothing can be known before.
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
    let told = lines.next_line().await.unwrap()?;
    if told.contains("bytes of disk space") {
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
    Some(told)
}

#[tokio::test]
async fn a_full_file_system_is_waited_for() {
    let body = Bytes::from(noise(8 << 20, 42));
    let cases = [1, 2, 3, 5, 7].map(|mib| full_at(mib, body.clone()));
    for told in futures::future::join_all(cases).await {
        let Some(told) = told else { panic!("nothing was told") };
        assert!(told.contains("bytes of disk space are missing"), "{told}");
    }
}

//! The `broker-files` command: writes the files of the broker from their Secret, and lets the
//! broker read them again.

use std::{fs, path::Path, pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use neptune_cloud_runtime::{join::BROKER_SECRET, kubernetes::follow};
use neptune_program::stop_signal;
use neptune_transfer::durable::{self, Access, Survives};
use rustix::process::{Pid, Signal, kill_process};

use crate::{cli, commands::connect::connect, error::Error};

/// The files, which are the keys of the Secret. The broker reads the last one first after SIGHUP.
const FILES: [&str; 4] = ["ca.crt", "tls.crt", "tls.key", "crl.pem"];

/// How long a broker may take from its start until it handles SIGHUP, and the pause between two looks.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_POLL: Duration = Duration::from_millis(20);

/// Writes the files after each change, until SIGTERM or SIGINT.
///
/// # Errors
/// No usable kubeconfig, or a file cannot be written. With `--check`: a file is missing.
pub async fn broker_files(flags: cli::BrokerFiles) -> Result<(), Error> {
    let directory = flags.directory.as_path();
    if flags.check {
        return check(directory);
    }
    let stop = stop_signal().map_err(Error::Signals)?;
    let (client, _) = connect(&flags.cluster).await?;
    let secrets: Api<Secret> = Api::namespaced(client, &flags.namespace);
    let name = format!("Secret {}/{BROKER_SECRET}", flags.namespace);
    let write = async {
        let mut watched = pin!(follow(secrets, BROKER_SECRET));
        while let Some(secret) = watched.next().await {
            match secret.as_ref().and_then(contents) {
                // The broker keeps what it has.
                None => tracing::info!(secret = name, "waiting for the controller to fill it"),
                Some(contents) if replace(directory, &contents)? => {
                    let count = reload(&flags.process).await;
                    tracing::info!(secret = name, reloaded = count, "files of the broker written");
                }
                Some(_) => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        written = write => written,
        () = stop => Ok(()),
    }
}

/// Whether all files exist and have content.
fn check(directory: &Path) -> Result<(), Error> {
    let is_missing = |file: &&str| {
        fs::metadata(directory.join(file)).map_or(true, |metadata| metadata.len() == 0)
    };
    let missing: Vec<_> = FILES.into_iter().filter(|file| is_missing(file)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::BrokerFiles(format!(
        "{} has no {}; the controller writes the Secret {BROKER_SECRET}: kubectl -n neptune-system get pods",
        directory.display(),
        missing.join(", ")
    )))
}

/// The content of each file; `None` if one is missing.
fn contents(secret: &Secret) -> Option<[(&'static str, Vec<u8>); FILES.len()]> {
    let data = secret.data.as_ref()?;
    let content =
        |file: &str| data.get(file).map(|bytes| bytes.0.clone()).filter(|it| !it.is_empty());
    let all: Option<Vec<_>> = FILES.iter().map(|file| Some((*file, content(file)?))).collect();
    all?.try_into().ok()
}

/// Writes the files that differ. Returns whether one did. Each is complete or as before.
fn replace(directory: &Path, contents: &[(&str, Vec<u8>)]) -> Result<bool, Error> {
    let mut is_changed = false;
    for (file, content) in contents {
        let path = directory.join(file);
        if fs::read(&path).is_ok_and(|present| &present == content) {
            continue;
        }
        // The broker runs as the same user.
        let written = durable::replace(&path, content, Access::OWNER, Survives::Kill);
        written.map_err(|source| Error::Write { path, source })?;
        is_changed = true;
    }
    Ok(is_changed)
}

/// Sends SIGHUP to each process of this name, after it has begun to handle the signal: before, the
/// signal ends a broker. Returns their number; none runs before the broker has started.
async fn reload(process: &str) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_named = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == process)
    };
    let pids: Vec<_> = pids.filter(is_named).filter_map(Pid::from_raw).collect();
    let mut count = 0;
    for pid in pids {
        if tokio::time::timeout(START_TIMEOUT, until_handled(pid)).await.is_err() {
            tracing::warn!(
                process,
                pid = pid.as_raw_nonzero(),
                "does not handle SIGHUP, and keeps its present files; restart it, or correct --process"
            );
            continue;
        }
        match kill_process(pid, Signal::HUP) {
            Ok(()) => count += 1,
            Err(error) => {
                tracing::warn!(%error, process, pid = pid.as_raw_nonzero(), "cannot send SIGHUP; run both containers as the same user");
            }
        }
    }
    count
}

/// Waits until a process handles SIGHUP, or has ended.
async fn until_handled(pid: Pid) {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    while fs::read_to_string(&path).is_ok_and(|status| !handles_hangup(&status)) {
        tokio::time::sleep(START_POLL).await;
    }
}

/// Whether the status of a process, as in `/proc`, has a handler for SIGHUP. One without the field
/// counts as if it had one.
fn handles_hangup(status: &str) -> bool {
    // The bit of a signal is its number less one.
    const BIT: u64 = 1;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & BIT != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    fn secret(files: &[(&str, &str)]) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data: BTreeMap<_, _> =
            files.iter().map(|(file, text)| ((*file).to_owned(), bytes(text))).collect();
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn process_is_signalled_once_it_handles_the_signal() {
        let status = |mask: &str| format!("Name:\tmosquitto\nSigCgt:\t{mask}\nCapInh:\t0\n");
        // A starting mosquitto, and one that runs.
        assert!(!handles_hangup(&status("0000000000000000")));
        assert!(handles_hangup(&status("0000000000014a03")));
        assert!(!handles_hangup(&status("0000000180004a02")));
        assert!(handles_hangup("Name:\tmosquitto\n"));
    }

    #[test]
    fn files_are_written_when_all_are_there_and_again_when_one_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut files = [("ca.crt", "a"), ("tls.crt", "b"), ("tls.key", "c"), ("crl.pem", "d")];
        assert!(contents(&secret(&files[..3])).is_none());
        assert!(check(path).unwrap_err().to_string().contains("has no ca.crt, tls.crt"));
        let write =
            |files: &[(&str, &str)]| replace(path, &contents(&secret(files)).unwrap()).unwrap();
        assert!(write(&files) && !write(&files));
        check(path).unwrap();
        files[3].1 = "e";
        assert!(write(&files));
        assert_eq!(fs::read_to_string(path.join("crl.pem")).unwrap(), "e");
        files[0].1 = "";
        assert!(contents(&secret(&files)).is_none());
    }
}

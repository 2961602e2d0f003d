//! Watches a local path until it holds a model with the wanted digest. The model is not copied:
//! workers mount it from that path.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use neptune_agent_core::{
    backoff::RECHECK_INTERVAL,
    desired::WantedModel,
    domain::{
        allowed_dirs::PathUse, artifact::LocalModelEvent, node_context::NodeContext,
        problem::Problem,
    },
};
use neptune_transfer::Digest;
use neptune_wire::{ObjectKey, WorkerReason};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{Error, artifacts::host_path, event::AgentEvent};

/// Checks one local path until the model is present.
pub struct LocalModelWatch {
    pub key: ObjectKey,
    pub wanted: WantedModel,
    pub path: PathBuf,
    pub context: Arc<NodeContext>,
    pub events: mpsc::Sender<AgentEvent>,
}

impl LocalModelWatch {
    /// Sends the result of each check. Returns once the model is present.
    pub async fn run(self) {
        // Size and time of the last checked file, so that a wrong file is hashed only once.
        let mut checked = None;
        loop {
            if let Err(why) = host_path::check(&self.path, PathUse::Model, &self.context).await {
                let message = format!("{}: model path {} {why}", self.key, self.path.display());
                let problem = Problem { reason: WorkerReason::ModelUnavailable, message };
                if checked != Some(None) {
                    checked = Some(None);
                    self.send(LocalModelEvent::Problem(problem)).await;
                }
                tokio::time::sleep(RECHECK_INTERVAL).await;
                continue;
            }
            // Not `std::fs`: a network file system may block the call for hours.
            let state = tokio::fs::metadata(&self.path)
                .await
                .ok()
                .and_then(|metadata| Some((metadata.len(), metadata.modified().ok()?)));
            if checked != Some(state) {
                checked = Some(state);
                match self.check().await {
                    Ok(bytes) => return self.send(LocalModelEvent::Ready { bytes }).await,
                    Err(error) => self.send(LocalModelEvent::Problem(self.problem(&error))).await,
                }
            }
            tokio::time::sleep(RECHECK_INTERVAL).await;
        }
    }

    async fn send(&self, event: LocalModelEvent) {
        let content_key = self.wanted.content_key.clone();
        // The receiver is dropped only when the process exits.
        let _ = self
            .events
            .send(AgentEvent::LocalModel { key: self.key.clone(), content_key, event })
            .await;
    }

    fn problem(&self, error: &Error) -> Problem {
        let (reason, remedy) = match error {
            Error::DigestMismatch { .. } => (
                WorkerReason::ModelDigestMismatch,
                "correct the Model's spec.sha256sum or the file",
            ),
            _ => (
                WorkerReason::ModelUnavailable,
                "put the model at this path, or correct the Model's spec.modelUrl",
            ),
        };
        Problem { reason, message: format!("{}: {error}; {remedy}", self.key) }
    }

    /// Checks the digest. Returns the size of the model in bytes if it is one file.
    async fn check(&self) -> Result<Option<u64>, Error> {
        let on_disk = |source| Error::File { path: self.path.clone(), source };
        let metadata = tokio::fs::metadata(&self.path).await.map_err(on_disk)?;
        if !metadata.is_file() && !metadata.is_dir() {
            // Reading a device or a pipe may never end, and a socket is no model.
            let source = io::Error::other("is neither a file nor a directory");
            return Err(on_disk(source));
        }
        let bytes = metadata.is_file().then_some(metadata.len());
        let Some(expected) = &self.wanted.sha256 else { return Ok(bytes) };
        let file = self.path.clone();
        let reading = spawn_blocking(move || sha256_of(&file));
        let got = reading.await.expect("reading does not panic").map_err(on_disk)?;
        if got == *expected {
            return Ok(bytes);
        }
        let what = self.path.display().to_string();
        Err(Error::DigestMismatch { what, expected: expected.clone(), got })
    }
}

/// The sha256 of a file's content, as 64 hex digits. Blocking.
fn sha256_of(path: &Path) -> io::Result<String> {
    Ok(Digest::of_reader(fs::File::open(path)?)?.0.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::{desired::model::ModelSource, fixtures::node_context};

    use super::*;

    #[tokio::test]
    async fn special_file_is_no_model() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::write(dir.path().join("model"), "x").unwrap();
        let (events, _received) = mpsc::channel(1);
        let watch = |path: &Path| LocalModelWatch {
            key: "d/models/m".parse().unwrap(),
            wanted: WantedModel {
                source: Ok(ModelSource::Local(path.to_owned())),
                shown_url: path.display().to_string(),
                sha256: None,
                mirrors: Vec::new(),
                content_key: String::new(),
            },
            path: path.to_owned(),
            context: Arc::new(node_context()),
            events: events.clone(),
        };
        for path in [Path::new("/dev/zero"), &socket] {
            let error = watch(path).check().await.unwrap_err();
            let problem = watch(path).problem(&error);
            assert_eq!(problem.reason, WorkerReason::ModelUnavailable);
            assert!(problem.message.contains("neither a file nor a directory"), "{problem:?}");
        }
        assert_eq!(watch(&dir.path().join("model")).check().await.unwrap(), Some(1));
        assert_eq!(watch(dir.path()).check().await.unwrap(), None);
    }

    #[test]
    fn digest_equals_output_of_sha256sum() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "hello").unwrap();
        let expected = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(sha256_of(file.path()).unwrap(), expected);
    }
}

//! Brings one model into the store: tries for ever while trying can help, verifies, and puts it in
//! its place. Who else waits for the same model is store.rs's.

use std::{
    fs::File,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
    time::SystemTime,
};

use jiff::Timestamp;
use tokio::{sync::OwnedMutexGuard, sync::watch, task::spawn_blocking};
use tracing::{info, warn};

use crate::{
    Artifact, ModelError, Phase, Progress, Want,
    archive::unzip,
    backoff,
    dial::Dialer,
    error::Class,
    http::{self, Place},
    local,
    part::{Part, Whole},
    record::remove,
    shelf::Meta,
    space::Space,
    store::{Inner, lock},
    tree::Tree,
    want::{Form, Source},
};

/// One model on its way.
pub struct Fetch {
    pub inner: Arc<Inner>,
    pub want: Want,
    pub progress: watch::Sender<Progress>,
    dialer: Option<Dialer>,
    /// Kept between tries, so that nothing is unpacked twice.
    part: Option<Part>,
    /// What came last came in more than one answer.
    is_pieced: bool,
    has_started_over: bool,
}

impl Fetch {
    pub fn new(inner: Arc<Inner>, want: Want, progress: watch::Sender<Progress>) -> Self {
        Self {
            inner,
            want,
            progress,
            dialer: None,
            part: None,
            is_pieced: false,
            has_started_over: false,
        }
    }

    /// Ends with the model, or with an error that only somebody can cure.
    pub async fn run(mut self) -> Result<Artifact, Arc<ModelError>> {
        if let Some(artifact) = self.present().await? {
            return Ok(artifact);
        }
        let mut failures = 0;
        loop {
            let before = self.part.as_ref().map_or(0, Part::received);
            let mut error = match self.attempt().await {
                Ok(artifact) => return Ok(artifact),
                Err(error) => error,
            };
            if matches!(error, ModelError::Archive { .. } | ModelError::DigestMismatch { .. }) {
                self.discard().await?;
                // The pieces may be of two versions, and the whole may be right: that is seen once.
                if self.is_pieced && !self.has_started_over {
                    self.has_started_over = true;
                    let why = format!("it came in pieces that do not fit ({error})");
                    error = ModelError::Changed { url: self.want.printable(), why };
                }
            }
            if error.class() == Class::Stuck {
                return Err(error.into());
            }
            // What moved forward is not a server that is gone.
            let has_moved = self.part.as_ref().is_some_and(|part| part.received() > before);
            failures = if has_moved { 1 } else { failures + 1 };
            let wait = backoff::after(failures, RandomState::new().build_hasher().finish());
            warn!(url = self.want.printable(), %error, wait = wait.as_secs_f32(), "fetch failed");
            let error = Arc::new(error);
            self.progress.send_modify(|progress| {
                if let Some(part) = &self.part {
                    (progress.received, progress.total) = (part.received(), part.total());
                }
                progress.phase = Phase::Retrying;
                progress.bytes_per_second = 0;
                progress.trouble = Some(error);
            });
            tokio::time::sleep(wait).await;
        }
    }

    async fn present(&self) -> Result<Option<Artifact>, Arc<ModelError>> {
        let (inner, want) = (Arc::clone(&self.inner), self.want.clone());
        let found = spawn_blocking(move || inner.present(&want)).await;
        Ok(found.expect("looking at files does not panic"))
    }

    async fn attempt(&mut self) -> Result<Artifact, ModelError> {
        let mut part = match self.part.take().filter(Part::is_alive) {
            Some(part) => part,
            None => self.open().await?,
        };
        self.is_pieced = part.is_pieced();
        let is_local = matches!(self.want.source, Source::File(_));
        if is_local || !part.is_whole() {
            let pulled = self.pull(&mut part).await;
            self.is_pieced = part.is_pieced();
            if let Err(error) = pulled {
                self.part = Some(part);
                return Err(error);
            }
        }
        self.progress.send_modify(|progress| {
            let (received, total) = (part.received(), part.total());
            let phase = Phase::Finishing;
            *progress = Progress { received, total, phase, ..Progress::default() };
        });
        let (whole, lease) = part.whole().await?;
        self.finish(whole, lease).await
    }

    async fn open(&self) -> Result<Part, ModelError> {
        let key = self.want.key();
        let lease = self.inner.lease_part(&key).await;
        let dir = self.inner.part_dir(&key);
        Part::open(dir, self.want.clone(), self.inner.policy.limits, self.space(), lease).await
    }

    fn space(&self) -> Space {
        let (dir, reserve) = (self.inner.dir.clone(), self.inner.policy.reserve);
        Space { dir, reserve, url: self.want.printable() }
    }

    async fn pull(&mut self, part: &mut Part) -> Result<(), ModelError> {
        let policy = &self.inner.policy;
        let shown = self.want.printable();
        let place = match &self.want.source {
            Source::File(path) => {
                return local::pull(path, &policy.file_roots, part, &self.progress).await;
            }
            Source::Http(url) => Place { url: url.clone(), shown, signed: None },
            Source::S3 { bucket, key } => {
                let url = policy.s3.locate(bucket, key)?;
                let signed = Some(policy.s3.sign(&url, now(), &[]));
                Place { url, shown, signed }
            }
        };
        if self.dialer.is_none() {
            let inner = Arc::clone(&self.inner);
            let made = spawn_blocking(move || {
                let Inner { allowed, policy, .. } = &*inner;
                Dialer::new(allowed, policy.ca_file.as_deref(), policy.stalled_after)
            });
            self.dialer = Some(made.await.expect("making a client does not panic")?);
        }
        let dialer = self.dialer.as_ref().expect("it was made a line ago");
        http::pull(dialer, &place, part, &self.progress).await
    }

    async fn finish(
        &self,
        whole: Whole,
        lease: Arc<OwnedMutexGuard<()>>,
    ) -> Result<Artifact, ModelError> {
        if let Some(expected) = self.want.sha256.filter(|expected| *expected != whole.digest) {
            let url = self.want.printable();
            return Err(ModelError::DigestMismatch { url, expected, got: whole.digest });
        }
        let (inner, want, space) = (Arc::clone(&self.inner), self.want.clone(), self.space());
        let placed = spawn_blocking(move || {
            let result = place(&inner, &want, &space, whole);
            drop(lease);
            result
        });
        placed.await.expect("placing a model does not panic")
    }

    async fn discard(&mut self) -> Result<(), ModelError> {
        self.part = None;
        self.inner.discard_part(&self.want.key()).await
    }
}

/// Unpacks what could not be unpacked before, and puts the model on the shelf. Blocking.
fn place(inner: &Inner, want: &Want, space: &Space, whole: Whole) -> Result<Artifact, ModelError> {
    let dir = inner.part_dir(&want.key());
    let on_disk = |source| space.failed(&dir, source, 0);
    let digest = whole.digest;
    // Held before it is there, so that a collection at the same time leaves it.
    let held = inner.hold(digest);
    // Two URLs can turn out to be one model at the same time: what one has placed, the other does not replace.
    let placing = lock(&held);
    if inner.shelf.find(digest, want.form).is_none() {
        let (model, size) = match (want.form, whole.tree) {
            (_, Some((tree, grown))) => (tree, grown.bytes),
            (Form::Zip, None) => {
                let tree = dir.join("tree");
                remove(&tree).map_err(on_disk)?;
                let planted = Tree::plant(&tree, inner.policy.limits, space)?;
                let raw = File::open(&whole.raw).map_err(on_disk)?;
                let grown = unzip(raw, inner.policy.limits, planted)?;
                (tree, grown.bytes)
            }
            (_, None) => (whole.raw, whole.bytes),
        };
        let meta = Meta { bytes: whole.bytes, size, fetched: milliseconds() };
        inner.shelf.put(&model, digest, want.form, meta, &dir.join("new")).map_err(on_disk)?;
        info!(url = space.url, %digest, bytes = whole.bytes, size, "model placed");
    }
    if want.sha256.is_none() {
        inner.shelf.remember(want, digest, whole.validator).map_err(on_disk)?;
    }
    drop(placing);
    remove(&dir).map_err(on_disk)?;
    inner.find(digest, want.form, held).ok_or_else(|| on_disk(std::io::ErrorKind::NotFound.into()))
}

/// Signatures are of now.
fn now() -> Timestamp {
    Timestamp::now()
}

fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

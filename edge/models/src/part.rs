//! One download that is not whole yet: its bytes as they came, and which version they are of. It
//! outlives the process and, but for its last half minute, a power cut.

use std::{fs::OpenOptions, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::AsyncReadExt as _,
    sync::{OwnedMutexGuard, mpsc},
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    Digest, ModelError,
    limits::Limits,
    record::{Version, empty, recover},
    resume::{Asked, Validator},
    space::Space,
    spool::{Piece, Spool},
    tree::Grown,
    want::{Form, Want},
};

/// Pieces of this size, so many of them on their way: what a killed process loses is under 1 MiB.
const PIECE: usize = 64 << 10;
const PIECES: usize = 12;

/// A download that is not whole yet.
pub struct Part {
    dir: PathBuf,
    want: Want,
    limits: Limits,
    space: Space,
    version: Version,
    hash: Sha256,
    received: u64,
    is_pieced: bool,
    pipe: Option<Pipe>,
    /// Kept until the blocking half has ended, too.
    lease: Arc<OwnedMutexGuard<()>>,
}

struct Pipe {
    sender: mpsc::Sender<Piece>,
    worker: JoinHandle<Result<Option<Grown>, ModelError>>,
}

/// A part that is whole.
pub struct Whole {
    pub digest: Digest,
    /// Of the download.
    pub bytes: u64,
    pub raw: PathBuf,
    /// What was unpacked while it came.
    pub tree: Option<(PathBuf, Grown)>,
    pub validator: Option<Validator>,
}

impl Part {
    /// Takes up what is there, or begins. Reads what is there once, for its hash and its tree.
    pub async fn open(
        dir: PathBuf,
        want: Want,
        limits: Limits,
        space: Space,
        lease: OwnedMutexGuard<()>,
    ) -> Result<Self, ModelError> {
        let from = want.fingerprint();
        let found = {
            let (dir, failed) = (dir.clone(), dir.clone());
            let result = spawn_blocking(move || recover(&dir, from)).await;
            let result = result.expect("looking at files does not panic");
            result.map_err(|source| space.failed(&failed, source, 0))?
        };
        let (version, length) = found;
        let mut part = Self {
            dir,
            want,
            limits,
            space,
            version,
            hash: Sha256::new(),
            received: 0,
            is_pieced: length > 0,
            pipe: None,
            lease: Arc::new(lease),
        };
        part.begin(length)?;
        part.replay(length).await?;
        Ok(part)
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn total(&self) -> Option<u64> {
        self.version.total
    }

    pub fn validator(&self) -> Option<&Validator> {
        self.version.validator.as_ref()
    }

    /// Nothing is to be asked for any more.
    pub fn is_whole(&self) -> bool {
        self.version.total == Some(self.received)
    }

    /// Whether the blocking half still takes what comes.
    pub fn is_alive(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| !pipe.sender.is_closed())
    }

    /// What to ask for so that it can be appended; none to ask for the whole.
    pub fn asked(&self) -> Option<Asked> {
        let validator = self.version.validator.clone()?;
        (self.received > 0).then_some(Asked {
            from: self.received,
            total: self.version.total,
            validator,
        })
    }

    /// Forgets what is there: bytes of this version follow.
    pub async fn start_over(
        &mut self,
        total: Option<u64>,
        validator: Option<Validator>,
    ) -> Result<(), ModelError> {
        self.stop().await;
        self.version = Version { validator, total, ..self.version.clone() };
        self.hash = Sha256::new();
        self.received = 0;
        self.is_pieced = false;
        // In this order: a version without bytes harms nobody, bytes of another version do.
        let on_disk = |source| self.space.failed(&self.dir, source, 0);
        empty(&self.dir).map_err(on_disk)?;
        self.version.write(&self.dir).map_err(on_disk)?;
        self.begin(0)
    }

    /// The server told the length only now.
    pub fn learn(&mut self, total: u64) -> Result<(), ModelError> {
        self.version.total = Some(total);
        let written = self.version.write(&self.dir);
        written.map_err(|source| self.space.failed(&self.dir, source, 0))
    }

    /// Its digest is known before.
    pub fn is_verified_later(&self) -> bool {
        self.want.sha256.is_some()
    }

    /// It came, or comes, in more than one answer.
    pub fn is_pieced(&self) -> bool {
        self.is_pieced
    }

    /// What follows comes from another answer than what is there.
    pub fn continues(&mut self) {
        self.is_pieced = true;
    }

    /// Refuses at once what cannot fit.
    pub fn admit(&self) -> Result<(), ModelError> {
        let Some(total) = self.version.total else { return Ok(()) };
        let to_come = total.saturating_sub(self.received);
        // What is unpacked is at least as long, as a rule.
        let unpacked = if self.want.form == Form::Plain { 0 } else { to_come };
        self.space.admit(to_come.saturating_add(unpacked))
    }

    /// Appends. Waits while the disk is slower than the network.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), ModelError> {
        self.hash.update(&bytes);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            self.received += piece.len() as u64;
            self.send(Piece::New(piece)).await?;
        }
        Ok(())
    }

    /// Everything came. Waits until it is written and, but for a zip, unpacked.
    pub async fn whole(mut self) -> Result<(Whole, Arc<OwnedMutexGuard<()>>), ModelError> {
        self.send(Piece::End).await?;
        let pipe = self.pipe.take().expect("a part has a pipe until it is whole");
        let grown = join(pipe.worker).await?;
        let whole = Whole {
            digest: Digest::of(self.hash),
            bytes: self.received,
            raw: self.dir.join("raw"),
            tree: grown.map(|grown| (self.dir.join("tree"), grown)),
            validator: self.version.validator,
        };
        Ok((whole, self.lease))
    }

    fn begin(&mut self, length: u64) -> Result<(), ModelError> {
        let path = self.dir.join("raw");
        let raw = OpenOptions::new().append(true).create(true).open(&path);
        let raw = raw.map_err(|source| self.space.failed(&path, source, 0))?;
        let (sender, receiver) = mpsc::channel(PIECES);
        let spool = Spool {
            receiver,
            raw,
            length,
            dir: self.dir.clone(),
            form: self.want.form,
            limits: self.limits,
            space: self.space.clone(),
        };
        let lease = Arc::clone(&self.lease);
        let worker = spawn_blocking(move || {
            let result = spool.run();
            drop(lease);
            result
        });
        self.pipe = Some(Pipe { sender, worker });
        Ok(())
    }

    async fn replay(&mut self, length: u64) -> Result<(), ModelError> {
        if length == 0 {
            return Ok(());
        }
        let path = self.dir.join("raw");
        let on_disk = |source| ModelError::Store { path: path.clone(), source };
        let mut raw = tokio::fs::File::open(&path).await.map_err(on_disk)?;
        loop {
            let mut piece = bytes::BytesMut::with_capacity(PIECE);
            if raw.read_buf(&mut piece).await.map_err(on_disk)? == 0 {
                return Ok(());
            }
            self.hash.update(&piece);
            self.received += piece.len() as u64;
            self.send(Piece::Old(piece.freeze())).await?;
        }
    }

    async fn send(&mut self, piece: Piece) -> Result<(), ModelError> {
        let pipe = self.pipe.as_ref().expect("a part has a pipe until it is whole");
        if pipe.sender.send(piece).await.is_ok() {
            return Ok(());
        }
        // The other half ended first: it says why.
        let pipe = self.pipe.take().expect("it was there a line ago");
        join(pipe.worker).await?;
        Err(ModelError::Store { path: self.dir.clone(), source: io::ErrorKind::BrokenPipe.into() })
    }

    async fn stop(&mut self) {
        if let Some(Pipe { sender, worker }) = self.pipe.take() {
            drop(sender);
            // It was told to give up, and says so.
            let _ = worker.await;
        }
    }
}

async fn join(
    worker: JoinHandle<Result<Option<Grown>, ModelError>>,
) -> Result<Option<Grown>, ModelError> {
    worker.await.expect("the blocking half does not panic")
}

//! The blocking half of a download: writes what arrives to the raw file, and what is unpacked from
//! it into the tree, in one pass. What it writes to is seen by nobody until store.rs puts it in place.

use std::{
    cell::{Cell, RefCell},
    fs::{self, File},
    io::{self, Read, Write as _},
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{
    ModelError,
    archive::untar,
    limits::Limits,
    record::write_synced,
    space::Space,
    tree::{Grown, Tree},
    want::Form,
};

/// A power cut costs so much of the download at most, and a slow one no more than two writes a minute.
const SYNC_EVERY: Duration = Duration::from_secs(30);
const LOOK_EVERY: u64 = 8 << 20;

/// What the other half sends. Without `End` the download was given up.
pub enum Piece {
    /// It is in the raw file already.
    Old(Bytes),
    New(Bytes),
    End,
}

/// One download's files and limits.
pub struct Spool {
    pub receiver: mpsc::Receiver<Piece>,
    /// At its end.
    pub raw: File,
    /// Length of `raw`.
    pub length: u64,
    pub dir: PathBuf,
    pub form: Form,
    pub limits: Limits,
    pub space: Space,
}

impl Spool {
    /// Blocking, until the other half ends. Tells what the tree holds, if one grew.
    pub fn run(self) -> Result<Option<Grown>, ModelError> {
        let Self { receiver, raw, length, dir, form, limits, space } = self;
        let failure = Rc::new(RefCell::new(None));
        let packed = Rc::new(Cell::new(0));
        let tree = dir.join("tree");
        let incoming = Incoming {
            receiver,
            raw,
            length,
            dir,
            space: space.clone(),
            current: Bytes::new(),
            is_ended: false,
            unlooked: 0,
            synced: Instant::now(),
            packed: Rc::clone(&packed),
            failure: Rc::clone(&failure),
        };
        match form {
            Form::Plain | Form::Zip => drain(incoming, &failure, &space).map(|()| None),
            Form::Tar | Form::TarGz | Form::TarZst => {
                let planted = Tree::plant(&tree, limits, &space)?;
                let grown = untar(incoming, form, &packed, &failure, limits, planted, &space);
                if grown.is_err() {
                    // Nobody sees it; what cannot be removed now is swept later.
                    let _ = fs::remove_dir_all(&tree);
                }
                grown.map(Some)
            }
        }
    }
}

fn drain(
    mut incoming: Incoming,
    failure: &RefCell<Option<ModelError>>,
    space: &Space,
) -> Result<(), ModelError> {
    loop {
        match incoming.next() {
            Ok(true) => incoming.current.clear(),
            Ok(false) => return Ok(()),
            Err(error) => {
                let failed = || space.failed(&incoming.dir, error, 0);
                return Err(failure.take().unwrap_or_else(failed));
            }
        }
    }
}

/// What arrives, written to the raw file before anybody reads it.
struct Incoming {
    receiver: mpsc::Receiver<Piece>,
    raw: File,
    length: u64,
    dir: PathBuf,
    space: Space,
    current: Bytes,
    is_ended: bool,
    unlooked: u64,
    synced: Instant,
    packed: Rc<Cell<u64>>,
    failure: Rc<RefCell<Option<ModelError>>>,
}

impl Incoming {
    /// Waits for the next piece; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        if self.is_ended {
            return Ok(false);
        }
        match self.receiver.blocking_recv() {
            Some(Piece::End) => {
                self.is_ended = true;
                return Ok(false);
            }
            None => return Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Piece::Old(bytes)) => self.current = bytes,
            Some(Piece::New(bytes)) => {
                self.keep(&bytes).map_err(|error| {
                    self.failure.replace(Some(error));
                    io::Error::other("the disk failed")
                })?;
                self.current = bytes;
            }
        }
        self.packed.set(self.packed.get() + self.current.len() as u64);
        Ok(true)
    }

    fn keep(&mut self, bytes: &Bytes) -> Result<(), ModelError> {
        let more = bytes.len() as u64;
        self.unlooked += more;
        if self.unlooked >= LOOK_EVERY {
            self.space.admit(LOOK_EVERY)?;
            self.unlooked = 0;
        }
        let on_disk = |source| self.space.failed(&self.dir, source, more);
        self.raw.write_all(bytes).map_err(on_disk)?;
        self.length += more;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.raw.sync_data().map_err(on_disk)?;
            write_synced(&self.dir, self.length).map_err(on_disk)?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if !self.next()? {
                return Ok(0);
            }
        }
        let some = self.current.split_to(self.current.len().min(buffer.len()));
        buffer[..some.len()].copy_from_slice(&some);
        Ok(some.len())
    }
}

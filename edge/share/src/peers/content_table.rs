//! The contents of a node by digest, as its model store reports them. Hashes a copy again after a
//! peer's complaint.

use std::{
    collections::HashMap,
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_transfer::Digest;
use neptune_wire::NodeName;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use crate::peers::content::{ContentSource, ContentState, FileRange};

/// Complaints about an intact copy are ignored for this time.
const SCRUB_INTERVAL: Duration = Duration::from_hours(1);

/// What the owner of a table has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentEvent {
    /// A peer waits for this content: fetch it now.
    Requested(Digest),
    /// The copy does not have its digest. It is not offered any more: remove it, and fetch it again.
    Damaged(Digest, PathBuf),
}

/// The contents that a node has, fetches or wants.
#[derive(Debug)]
pub struct ContentTable {
    contents: Arc<Mutex<HashMap<Digest, Content>>>,
    events: mpsc::Sender<ContentEvent>,
    /// One copy is hashed at a time.
    scrub: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Content {
    state: ContentState,
    /// When the copy was hashed last because of a complaint.
    scrubbed: Option<Instant>,
    /// Whether the copy is being hashed. It is not offered meanwhile.
    is_suspect: bool,
}

impl ContentTable {
    /// Returns an empty table, and its events. Requests that exceed the channel are dropped: peers
    /// repeat them.
    pub fn new() -> (Self, mpsc::Receiver<ContentEvent>) {
        let (events, receiver) = mpsc::channel(64);
        (Self { contents: Arc::default(), events, scrub: Arc::default() }, receiver)
    }

    /// An object of this node names the content, which is not here.
    pub fn set_wanted(&self, digest: Digest) {
        self.set(digest, ContentState::Wanted);
    }

    /// The content is being downloaded from the origin.
    pub fn set_fetching(&self, digest: Digest, received: u64) {
        self.set(digest, ContentState::Fetching(received));
    }

    /// The content is in this file, complete and verified.
    pub fn set_held(&self, digest: Digest, path: PathBuf, bytes: u64) {
        self.set(digest, ContentState::Held(FileRange { path, offset: 0, length: bytes }));
    }

    /// Neither an object nor a file of this node has the content any more.
    pub fn remove(&self, digest: &Digest) {
        lock(&self.contents).remove(digest);
    }

    fn set(&self, digest: Digest, state: ContentState) {
        let mut contents = lock(&self.contents);
        let content = contents.entry(digest).or_insert(Content {
            state: ContentState::Absent,
            scrubbed: None,
            is_suspect: false,
        });
        if content.state != state {
            *content = Content { state, scrubbed: None, is_suspect: false };
        }
    }
}

impl ContentSource for ContentTable {
    fn find(&self, digest: &Digest, _peer: &NodeName) -> ContentState {
        let contents = lock(&self.contents);
        let content = contents.get(digest).filter(|content| !content.is_suspect);
        content.map_or(ContentState::Absent, |content| content.state.clone())
    }

    fn request(&self, digest: &Digest, peer: &NodeName) -> bool {
        let state = self.find(digest, peer);
        if state == ContentState::Wanted {
            // A full channel: the peer asks again.
            let _ = self.events.try_send(ContentEvent::Requested(*digest));
        }
        state != ContentState::Absent
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the table")]
    fn scrub(&self, digest: &Digest, peer: &NodeName) {
        let digest = *digest;
        let range = {
            let mut contents = lock(&self.contents);
            let Some(content) = contents.get_mut(&digest) else { return };
            let ContentState::Held(range) = content.state.clone() else { return };
            let is_recent = content.scrubbed.is_some_and(|it| it.elapsed() < SCRUB_INTERVAL);
            if content.is_suspect || is_recent {
                return;
            }
            content.is_suspect = true;
            range
        };
        tracing::info!(%peer, %digest, "a peer received wrong content, hashing the copy again");
        let (contents, events) = (Arc::clone(&self.contents), self.events.clone());
        let turn = Arc::clone(&self.scrub);
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            let path = range.path.clone();
            let hashed = tokio::task::spawn_blocking(move || Digest::of_reader(File::open(path)?));
            let is_intact = match hashed.await.expect("hashing a file does not panic") {
                Ok((actual, _)) => actual == digest,
                Err(error) => {
                    tracing::warn!(%digest, path = %range.path.display(), %error, "copy is unreadable");
                    false
                }
            };
            {
                let mut contents = lock(&contents);
                let is_same = |it: &&mut Content| it.state == ContentState::Held(range.clone());
                let Some(content) = contents.get_mut(&digest).filter(is_same) else { return };
                if is_intact {
                    content.is_suspect = false;
                    content.scrubbed = Some(Instant::now());
                    return;
                }
                contents.remove(&digest);
            }
            tracing::warn!(%digest, path = %range.path.display(), "copy does not have its digest");
            let _ = events.send(ContentEvent::Damaged(digest, range.path)).await;
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one step, so a panic of another thread leaves no inconsistent value.
    mutex.lock()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn damaged_copy_is_withdrawn_and_an_intact_one_offered_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        std::fs::write(&path, b"content").unwrap();
        let (table, mut events) = ContentTable::new();
        let (digest, peer) = (Digest::of_bytes(b"content"), "edge1".parse().unwrap());
        table.set_held(digest, path.clone(), 7);
        table.scrub(&digest, &peer);
        assert_eq!(table.find(&digest, &peer), ContentState::Absent, "while it is hashed");
        drop(table.scrub.lock().await);
        while table.find(&digest, &peer) == ContentState::Absent {
            tokio::task::yield_now().await;
        }

        table.set_held(digest, path.clone(), 7);
        table.scrub(&digest, &peer);
        let state = table.find(&digest, &peer);
        assert!(matches!(state, ContentState::Held(_)), "a second complaint is ignored");

        std::fs::write(&path, b"c0ntent").unwrap();
        table.set_wanted(digest);
        table.set_held(digest, path.clone(), 7);
        table.scrub(&digest, &peer);
        assert_eq!(events.recv().await, Some(ContentEvent::Damaged(digest, path)));
        assert_eq!(table.find(&digest, &peer), ContentState::Absent);
    }

    #[test]
    fn request_is_accepted_for_a_content_that_an_object_names() {
        let (table, mut events) = ContentTable::new();
        let (digest, peer) = (Digest::of_bytes(b"content"), "edge1".parse().unwrap());
        assert!(!table.request(&digest, &peer));
        table.set_wanted(digest);
        assert!(table.request(&digest, &peer));
        assert_eq!(events.try_recv(), Ok(ContentEvent::Requested(digest)));
        table.set_fetching(digest, 5);
        assert!(table.request(&digest, &peer) && events.try_recv().is_err());
        table.remove(&digest);
        assert!(!table.request(&digest, &peer));
    }
}

//! The bytes of answers and of shadows that the gateway keeps in memory. While there is no room,
//! waiting shadows make some, before a request is asked to come back.

use std::{fmt, sync::Arc};

use neptune_program::listen::{ByteBudget, HeldBytes};
use parking_lot::Mutex;

use crate::server::Hold;

/// Bytes of all answers and shadows, at least.
const MIN: usize = 192 * 1024 * 1024;

/// What is dropped before a request is.
pub trait MakeRoom: fmt::Debug + Send + Sync {
    /// Drops something. Returns whether there was anything.
    fn make_room(&self) -> bool;
}

/// The room for the answers and shadows of a configuration.
#[derive(Debug)]
pub struct AnswerRoom(ByteBudget);

/// The bytes of the answers to one request. They count until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct HeldAnswers {
    bytes: Arc<Mutex<HeldBytes>>,
    /// The shadows that make room; `None` for a shadow, which takes none from others.
    shadows: Option<Arc<dyn MakeRoom>>,
}

impl AnswerRoom {
    /// Room for so many bytes; by default for at least two of the largest answers.
    pub fn new(bytes: Option<usize>, max_body_bytes: usize) -> Self {
        let default = MIN.max(max_body_bytes.saturating_mul(2));
        Self(ByteBudget::new(bytes.unwrap_or(default)))
    }

    /// The answers to a request, which has none yet.
    pub fn of_request(&self, shadows: Arc<dyn MakeRoom>) -> HeldAnswers {
        HeldAnswers { shadows: Some(shadows), ..self.of_shadow() }
    }

    /// The bytes of a shadow, and of the answers to it.
    pub fn of_shadow(&self) -> HeldAnswers {
        HeldAnswers { bytes: Arc::new(Mutex::new(self.0.hold())), shadows: None }
    }
}

impl HeldAnswers {
    /// Counts more bytes. Returns whether there was room, or shadows made some.
    pub fn hold(&self, more: usize) -> bool {
        loop {
            if self.bytes.lock().grow(more) {
                return true;
            }
            if !self.shadows.as_ref().is_some_and(|shadows| shadows.make_room()) {
                return false;
            }
        }
    }
}

impl Hold for HeldAnswers {
    fn grow(&self, _: usize, more: usize) -> bool {
        self.hold(more)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Shadows that wait, and can be dropped.
    #[derive(Debug, Default)]
    struct Waiting(Mutex<Vec<HeldAnswers>>);

    impl MakeRoom for Waiting {
        fn make_room(&self) -> bool {
            self.0.lock().pop().is_some()
        }
    }

    #[test]
    fn shadows_that_wait_make_room_for_answers_and_not_for_shadows() {
        let (room, waiting) = (AnswerRoom::new(Some(10), 4), Arc::new(Waiting::default()));
        for _ in 0..2 {
            let shadow = room.of_shadow();
            assert!(shadow.hold(4));
            waiting.0.lock().push(shadow);
        }
        assert!(!room.of_shadow().hold(4));
        assert_eq!(waiting.0.lock().len(), 2);
        let answer = room.of_request(waiting.clone());
        assert!(answer.hold(2));
        assert_eq!(waiting.0.lock().len(), 2, "there was room");
        assert!(answer.hold(4));
        assert_eq!(waiting.0.lock().len(), 1);
        assert!(answer.hold(4));
        assert!(!answer.hold(1) && waiting.0.lock().is_empty());
    }

    #[test]
    fn bytes_are_held_until_the_last_clone_is_dropped() {
        let (room, waiting) = (AnswerRoom::new(Some(10), 4), Arc::new(Waiting::default()));
        let answer = room.of_request(waiting.clone());
        assert!(answer.hold(10));
        let kept = answer.clone();
        drop(answer);
        assert!(!room.of_request(waiting.clone()).hold(1));
        drop(kept);
        assert!(room.of_request(waiting).hold(10));
    }
}

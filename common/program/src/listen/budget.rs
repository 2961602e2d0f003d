//! Bytes that all connections of a server hold together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes that many requests share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ByteBudget(Arc<Semaphore>);

/// Bytes that are held, until they are dropped.
#[derive(Debug)]
pub struct HeldBytes {
    budget: ByteBudget,
    permit: Option<OwnedSemaphorePermit>,
}

impl ByteBudget {
    /// A budget of this size, at most 2^60 bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Holds no bytes yet.
    pub fn hold(&self) -> HeldBytes {
        HeldBytes { budget: self.clone(), permit: None }
    }

    /// Bytes that nobody holds.
    pub fn available(&self) -> usize {
        self.0.available_permits()
    }
}

impl HeldBytes {
    /// Holds more bytes. Returns whether there were as many.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let Ok(count) = u32::try_from(bytes) else { return false };
        let Ok(more) = Arc::clone(&self.budget.0).try_acquire_many_owned(count) else {
            return false;
        };
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_when_their_holder_ends() {
        let budget = ByteBudget::new(10);
        let (mut a, mut b) = (budget.hold(), budget.hold());
        assert!(a.grow(4) && a.grow(3) && b.grow(3));
        assert!(!b.grow(1) && budget.available() == 0);
        drop(a);
        assert!(b.grow(7) && !b.grow(usize::MAX));
        drop(b);
        assert_eq!(budget.available(), 10);
    }
}

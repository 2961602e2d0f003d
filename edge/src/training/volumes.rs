//! Which volumes of trainings stay, and the lock with which none is removed while a container that needs
//! it is created.

use neptune_agent_core::training::volumes::KeptTrainings;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

/// The trainings whose volumes stay, and the order of what is done with volumes.
#[derive(Debug, Default)]
pub struct TrainingVolumes {
    /// `None` before the objects of the node are known.
    kept: Mutex<Option<KeptTrainings>>,
    changed: Notify,
    /// Locked while volumes are created or removed.
    engine: tokio::sync::Mutex<()>,
}

impl TrainingVolumes {
    /// Sets the trainings whose volumes stay.
    pub fn set_kept(&self, kept: KeptTrainings) {
        let mut present = self.kept.lock();
        if present.as_ref() != Some(&kept) {
            *present = Some(kept);
            self.changed.notify_one();
        }
    }

    /// Resolves when the trainings whose volumes stay have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The trainings whose volumes stay; `None` while they are not known.
    pub fn kept(&self) -> Option<KeptTrainings> {
        self.kept.lock().clone()
    }

    /// Keeps volumes from being removed until the guard is dropped.
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.engine.lock().await
    }
}

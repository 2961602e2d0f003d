//! Publishes Events behind the reconciles: an object is planned again without waiting for the Events
//! of its last status. Those of one object keep their order.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use futures::future::BoxFuture;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Events that are published at the same time. Few: the requests of reconciles are more urgent.
const WORKERS: usize = 2;

/// Events that wait per worker. While the API server is slow, further ones are dropped.
const MAX_WAITING: usize = 1024;

/// The publication of one Event.
type Job = BoxFuture<'static, ()>;

/// The queues of the workers.
pub struct EventQueue([Sender<Job>; WORKERS]);

impl EventQueue {
    /// Starts the workers. They end when the queue is dropped.
    pub fn start() -> Self {
        Self(std::array::from_fn(|_| {
            let (sender, jobs) = mpsc::channel(MAX_WAITING);
            tokio::spawn(work(jobs));
            sender
        }))
    }

    /// Queues an Event of the object with this uid. Returns whether there was room.
    pub fn push(&self, uid: &str, job: Job) -> bool {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        let worker = hasher.finish() % WORKERS as u64;
        let worker = usize::try_from(worker).expect("it is small");
        self.0[worker].try_send(job).is_ok()
    }
}

async fn work(mut jobs: Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job.await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::{pending, ready};

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn events_of_one_object_keep_their_order() {
        let (queue, (done, mut order)) = (EventQueue::start(), mpsc::unbounded_channel());
        for number in 0..100 {
            let done = done.clone();
            let job = async move {
                tokio::task::yield_now().await;
                done.send(number).unwrap();
            };
            assert!(queue.push("uid", job.boxed()));
        }
        for number in 0..100 {
            assert_eq!(order.recv().await, Some(number));
        }
    }

    #[tokio::test]
    async fn full_queue_drops_events_of_its_objects_only() {
        let queue = EventQueue::start();
        while queue.push("a", pending().boxed()) {}
        let others = (0..100).map(|number| format!("uid-{number}"));
        let accepted = others.filter(|uid| queue.push(uid, ready(()).boxed())).count();
        assert!((50..100).contains(&accepted), "{accepted}");
    }
}

//! The expected totals: an observer on a node's broker adds up the counters that workers publish.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use neptune_harness::unique;
use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::{Counters, Topic, TopicPrefix, WorkerInfo};

#[derive(Default)]
struct Run {
    highest: Counters,
    is_completed: bool,
}

/// Records the counters of every worker run, independently of the agent. It reconnects after a
/// restart of the broker.
pub struct WorkerObserver {
    runs: Arc<Mutex<BTreeMap<(String, String), Run>>>,
    _link: Link,
}

impl WorkerObserver {
    /// Observes all workers on a broker whose name contains `worker`.
    ///
    /// # Panics
    /// If the URL is invalid.
    pub fn start(broker: &str, worker: &'static str) -> Self {
        let mut options = LinkOptions::new(broker.parse().unwrap(), unique("worker-observer"));
        options.subscriptions = vec![TopicPrefix::default().worker_info_filter()];
        let (link, mut events) = Link::start(options).unwrap();
        let runs: Arc<Mutex<BTreeMap<_, Run>>> = Arc::default();
        let recorded = runs.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let LinkEvent::Message(message) = event else { continue };
                let topic = Topic::parse(&TopicPrefix::default(), &message.topic);
                let Ok(Topic::WorkerInfo(name)) = topic else { continue };
                let info: WorkerInfo = neptune_wire::decode(&message.payload).unwrap();
                let Some(task) = info.task_info else { continue };
                if name.as_str().contains(worker) {
                    let counters = task.checked().unwrap();
                    let mut runs = recorded.lock().unwrap();
                    let run = runs.entry((name.to_string(), task.start_time)).or_default();
                    run.highest = run.highest.max(counters);
                    run.is_completed |= info.status == "completed";
                }
            }
        });
        Self { runs, _link: link }
    }

    /// The sum of the highest counters of each run.
    pub fn total(&self) -> Counters {
        let runs = self.runs.lock().unwrap();
        runs.values().fold(Counters::default(), |sum, run| sum.plus(run.highest))
    }

    /// Number of runs that reported completion.
    pub fn completed(&self) -> usize {
        self.runs.lock().unwrap().values().filter(|run| run.is_completed).count()
    }

    /// Number of runs that reported.
    pub fn runs(&self) -> usize {
        self.runs.lock().unwrap().len()
    }
}

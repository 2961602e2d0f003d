//! What the workers themselves said they had counted, heard beside the agent: what the status has
//! to end up with.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use neptune_link::{Link, LinkEvent, LinkOptions};
use neptune_wire::{Counters, Topic, TopicPrefix, WorkerInfo};

#[derive(Default)]
struct Run {
    highest: Counters,
    is_completed: bool,
}

/// An independent listener on a local broker.
pub struct Truth {
    runs: Arc<Mutex<BTreeMap<(String, String), Run>>>,
    _link: Link,
}

impl Truth {
    /// Listens to all workers on a broker whose name contains `worker`.
    pub fn listen(broker: &str, worker: &'static str) -> Self {
        let mut options = LinkOptions::new(broker.parse().unwrap(), crate::unique("truth"));
        options.subscriptions = vec![TopicPrefix::default().worker_info_filter()];
        let (link, mut events) = Link::start(options).unwrap();
        let runs: Arc<Mutex<BTreeMap<_, Run>>> = Arc::default();
        let heard = runs.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let LinkEvent::Message(message) = event else { continue };
                let Ok(Topic::WorkerInfo(name)) =
                    Topic::parse(&TopicPrefix::default(), &message.topic)
                else {
                    continue;
                };
                let info: WorkerInfo = neptune_wire::decode(&message.payload).unwrap();
                let Some(task) = info.task_info else { continue };
                if name.as_str().contains(worker) {
                    let said = task.counters().unwrap();
                    let mut runs = heard.lock().unwrap();
                    let run = runs.entry((name.to_string(), task.start_time)).or_default();
                    run.highest = run.highest.max(said);
                    run.is_completed |= info.status == "completed";
                }
            }
        });
        Self { runs, _link: link }
    }

    /// The sum, over all runs of all workers heard, of the highest numbers each said.
    pub fn total(&self) -> Counters {
        self.runs
            .lock()
            .unwrap()
            .values()
            .fold(Counters::default(), |sum, run| sum.plus(run.highest))
    }

    /// How many runs said that they are through.
    pub fn completed(&self) -> usize {
        self.runs.lock().unwrap().values().filter(|run| run.is_completed).count()
    }

    /// How many runs were heard.
    pub fn runs(&self) -> usize {
        self.runs.lock().unwrap().len()
    }
}

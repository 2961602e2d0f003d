//! Publishes the counters on the node's broker, and receives there which model to load. `counters`
//! defines the message. The worker continues while the broker is down.

use std::time::Duration;

use jiff::Timestamp;
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::ModelReload;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::counters::{Outcome, Status, WorkerCounters};
use crate::error::Error;
use crate::evaluate::Quality;
use crate::settings::EdgeSettings;

/// Timeout of the last report.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Counts, and reports at the start, once per period, and at the end. While the broker is down,
/// only the newest report is kept.
pub struct Reporter {
    counters: watch::Sender<WorkerCounters>,
    publisher: Publisher,
    periodic: JoinHandle<()>,
}

/// The newest model that the agent requested.
pub type Reloads = watch::Receiver<Option<ModelReload>>;

#[derive(Clone)]
struct Publisher {
    link: Link,
    settings: EdgeSettings,
    topic: String,
}

impl Reporter {
    /// Starts with zero counters and reports them. Returns also the receiver of requested models.
    ///
    /// # Errors
    /// [`Error::Broker`] when the URL or the topic is invalid. An unreachable broker is not an
    /// error.
    pub fn start(settings: &EdgeSettings, now: Timestamp) -> Result<(Self, Reloads), Error> {
        let error = |error: neptune_link::LinkError| Error::Broker(error.to_string());
        let url = settings.mqtt_url.parse().map_err(error)?;
        // With the start time: two runs must not disconnect each other before the last report of
        // the earlier one.
        let client_id = format!("{}-{}", settings.identity.worker_name, now.as_millisecond());
        let mut options = LinkOptions::new(url, client_id);
        options.subscriptions = settings.reload_topic().into_iter().collect();
        let (link, events) = Link::start(options).map_err(error)?;
        let (reload, reloads) = watch::channel(None);
        tokio::spawn(listen(events, reload));
        let (counters, watched) = watch::channel(WorkerCounters::new(now));
        let publisher =
            Publisher { link, settings: settings.clone(), topic: settings.info_topic() };
        publisher.publish(&counters.borrow()).map_err(error)?;
        let periodic = tokio::spawn(publisher.clone().repeat(watched));
        Ok((Self { counters, publisher, periodic }, reloads))
    }

    /// Reports at once that this model file is loaded, with its metrics.
    pub fn loaded(&self, path: &str, quality: Quality) {
        self.counters.send_modify(|counters| counters.loaded(path, quality));
        self.publish();
    }

    pub fn count(&self, outcome: Outcome) {
        self.counters.send_modify(|counters| counters.count(outcome, Timestamp::now()));
    }

    /// Reports the status at once.
    pub fn become_status(&self, status: Status) {
        self.counters.send_modify(|counters| counters.become_status(status, Timestamp::now()));
        self.publish();
    }

    pub fn counters(&self) -> WorkerCounters {
        self.counters.borrow().clone()
    }

    /// Sends the last report if the broker is reachable, and disconnects. Takes at most three
    /// seconds.
    pub async fn finish(self) {
        self.periodic.abort();
        self.publish();
        // After a timeout the broker is unreachable; the agent keeps the last counters that it
        // received.
        let _ = timeout(LAST_REPORT, self.publisher.link.flushed()).await;
        self.publisher.link.close(Duration::ZERO).await;
    }

    fn publish(&self) {
        if let Err(error) = self.publisher.publish(&self.counters.borrow()) {
            eprintln!("report not sent: {error}");
        }
    }
}

impl Publisher {
    fn publish(&self, counters: &WorkerCounters) -> Result<(), neptune_link::LinkError> {
        let payload = serde_json::to_vec(&counters.message(&self.settings.identity))
            .expect("strings and numbers can be serialised");
        self.link.publish(Message {
            topic: self.topic.clone(),
            payload: payload.into(),
            retain: false,
        })
    }

    async fn repeat(self, counters: watch::Receiver<WorkerCounters>) {
        let period = self.settings.lc_period;
        let mut period = tokio::time::interval_at(Instant::now() + period, period);
        loop {
            period.tick().await;
            if let Err(error) = self.publish(&counters.borrow()) {
                eprintln!("report not sent: {error}");
            }
        }
    }
}

async fn listen(mut events: LinkEvents, reload: watch::Sender<Option<ModelReload>>) {
    while let Some(event) = events.next().await {
        match event {
            LinkEvent::Up => eprintln!("connected to the local broker"),
            LinkEvent::Down { reason } => {
                eprintln!("not connected to the local broker, counting continues: {reason}");
            }
            // Empty when the agent clears it.
            LinkEvent::Message(message) if message.payload.is_empty() => {}
            LinkEvent::Message(message) => match neptune_wire::decode(&message.payload) {
                Ok(wanted) => drop(reload.send_replace(Some(wanted))),
                Err(error) => eprintln!("{}: {error}", message.topic),
            },
        }
    }
}

//! Tells the node's agent what was counted, over the local broker, and hears there which model to load. What the message says is
//! decided in `tally`; a broker that is down stops nothing.

use std::time::Duration;

use jiff::Timestamp;
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::ModelReload;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::evaluate::Quality;
use crate::settings::EdgeSettings;
use crate::tally::{Outcome, Status, Tally};

/// How long the last report may take before the program ends without it.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Counts, and reports at once, each period, and at the end. The link keeps only the newest report while the broker is down.
pub struct Reporter {
    tally: watch::Sender<Tally>,
    publisher: Publisher,
    periodic: JoinHandle<()>,
}

/// The newest model that the agent wants to be loaded.
pub type Reloads = watch::Receiver<Option<ModelReload>>;

#[derive(Clone)]
struct Publisher {
    link: Link,
    settings: EdgeSettings,
    topic: String,
}

impl Reporter {
    /// Begins to count from zero and reports that. What the agent says of models to load comes to the other end.
    ///
    /// # Errors
    /// [`Error::Broker`] when the URL or the topic cannot work; a broker that does not answer is no error.
    pub fn start(settings: &EdgeSettings, now: Timestamp) -> Result<(Self, Reloads), Error> {
        let error = |error: neptune_link::LinkError| Error::Broker(error.to_string());
        let url = settings.mqtt_url.parse().map_err(error)?;
        // The start's time in the name: a new run must not throw a dying one off the broker before its last report, and vice versa.
        let client_id = format!("{}-{}", settings.identity.worker_name, now.as_millisecond());
        let mut options = LinkOptions::new(url, client_id);
        options.subscriptions = settings.reload_topic().into_iter().collect();
        let (link, events) = Link::start(options).map_err(error)?;
        let (reload, reloads) = watch::channel(None);
        tokio::spawn(listen(events, reload));
        let (tally, watched) = watch::channel(Tally::new(now));
        let publisher =
            Publisher { link, settings: settings.clone(), topic: settings.info_topic() };
        publisher.publish(&tally.borrow()).map_err(error)?;
        let periodic = tokio::spawn(publisher.clone().repeat(watched));
        Ok((Self { tally, publisher, periodic }, reloads))
    }

    /// Reports at once that this model file is loaded, and how good it is.
    pub fn loaded(&self, path: &str, quality: Quality) {
        self.tally.send_modify(|tally| tally.loaded(path, quality));
        self.publish();
    }

    pub fn count(&self, outcome: Outcome) {
        self.tally.send_modify(|tally| tally.count(outcome, Timestamp::now()));
    }

    /// Reports the status at once.
    pub fn become_status(&self, status: Status) {
        self.tally.send_modify(|tally| tally.become_status(status, Timestamp::now()));
        self.publish();
    }

    pub fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    /// Sends the last report, if the broker is there, and disconnects. Takes at most three seconds.
    pub async fn finish(self) {
        self.periodic.abort();
        self.publish();
        // Out of time is fine: the broker is not there, and the agent keeps the last count that it heard.
        let _ = timeout(LAST_REPORT, self.publisher.link.flushed()).await;
        self.publisher.link.close(Duration::ZERO).await;
    }

    fn publish(&self) {
        if let Err(error) = self.publisher.publish(&self.tally.borrow()) {
            eprintln!("report not sent: {error}");
        }
    }
}

impl Publisher {
    fn publish(&self, tally: &Tally) -> Result<(), neptune_link::LinkError> {
        let payload = serde_json::to_vec(&tally.message(&self.settings.identity))
            .expect("texts and numbers serialise");
        self.link.publish(Message {
            topic: self.topic.clone(),
            payload: payload.into(),
            retain: false,
        })
    }

    async fn repeat(self, tally: watch::Receiver<Tally>) {
        let period = self.settings.lc_period;
        let mut period = tokio::time::interval_at(Instant::now() + period, period);
        loop {
            period.tick().await;
            if let Err(error) = self.publish(&tally.borrow()) {
                eprintln!("report not sent: {error}");
            }
        }
    }
}

async fn listen(mut events: LinkEvents, reload: watch::Sender<Option<ModelReload>>) {
    while let Some(event) = events.next().await {
        match event {
            LinkEvent::Up => eprintln!("reports go to the local broker"),
            LinkEvent::Down { reason } => eprintln!("no reports, counting goes on: {reason}"),
            // Empty when the agent takes it back.
            LinkEvent::Message(message) if message.payload.is_empty() => {}
            LinkEvent::Message(message) => match neptune_wire::decode(&message.payload) {
                Ok(wanted) => drop(reload.send_replace(Some(wanted))),
                Err(error) => eprintln!("{}: {error}", message.topic),
            },
        }
    }
}

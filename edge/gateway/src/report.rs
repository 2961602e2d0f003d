//! Reports the counters on the node's broker, as every worker does.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::{WorkerInfo, WorkerTaskInfo};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{interval, timeout},
};
use tracing::{info, warn};

use crate::{cli::ReportArgs, clock, decision::Decisions, error::Error, gateway::Gateway};

const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of the last report.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Reports once per second, and at the end.
#[derive(Debug)]
pub struct Reporter {
    publisher: Publisher,
    periodic: JoinHandle<()>,
}

#[derive(Debug, Clone)]
struct Publisher {
    link: Link,
    gateway: Arc<Gateway>,
    identity: Identity,
    started: Timestamp,
}

#[derive(Debug, Clone)]
struct Identity {
    worker: String,
    namespace: String,
    service: String,
    topic: String,
}

impl Reporter {
    /// Starts, if there is a broker.
    ///
    /// # Errors
    /// The URL or the topic is not valid, or the worker has no name. A broker that cannot be
    /// reached is no error.
    pub fn start(args: &ReportArgs, gateway: &Arc<Gateway>) -> Result<Option<Self>, Error> {
        let Some(url) = args.mqtt_url.as_deref().filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        let error = |error: neptune_link::LinkError| Error::Report(error.to_string());
        let worker = args.worker_name.clone().filter(|name| !name.is_empty());
        let worker = worker.ok_or_else(|| Error::Report("set WORKER_NAME".to_owned()))?;
        let topic = args.worker_info_topic.clone().filter(|topic| !topic.is_empty());
        let identity = Identity {
            topic: topic.unwrap_or_else(|| format!("neptune/workers/{worker}/info")),
            namespace: args.namespace.clone(),
            service: args.service_name.clone().unwrap_or_default(),
            worker,
        };
        let started = clock::timestamp();
        // With the start time: two runs must not disconnect each other before the last report of
        // the earlier one.
        let client_id = format!("{}-{}", identity.worker, started.as_millisecond());
        let options = LinkOptions::new(url.parse().map_err(error)?, client_id);
        let (link, events) = Link::start(options).map_err(error)?;
        tokio::spawn(listen(events));
        let publisher = Publisher { link, gateway: Arc::clone(gateway), identity, started };
        publisher.publish().map_err(error)?;
        let periodic = tokio::spawn(publisher.clone().repeat());
        Ok(Some(Self { publisher, periodic }))
    }

    /// Sends the last report if the broker can be reached, and disconnects.
    pub async fn finish(self) {
        self.periodic.abort();
        if let Err(error) = self.publisher.publish() {
            warn!(%error, "the last report is not sent");
        }
        // After a timeout the agent keeps the last counters that it received.
        let _ = timeout(LAST_REPORT, self.publisher.link.flushed()).await;
        self.publisher.link.close(Duration::ZERO).await;
    }
}

impl Publisher {
    fn publish(&self) -> Result<(), neptune_link::LinkError> {
        let message = {
            let decisions = self.gateway.decisions();
            message(&self.identity, self.started, clock::timestamp(), &decisions)
        };
        self.link.publish(Message {
            topic: self.identity.topic.clone(),
            payload: message.to_string().into(),
            retain: false,
        })
    }

    async fn repeat(self) {
        let mut period = interval(PERIOD);
        period.tick().await;
        loop {
            period.tick().await;
            if let Err(error) = self.publish() {
                warn!(%error, "a report is not sent");
            }
        }
    }
}

async fn listen(mut events: LinkEvents) {
    while let Some(event) = events.next().await {
        match event {
            LinkEvent::Up => info!("connected to the node's broker"),
            LinkEvent::Down { reason } => {
                info!("not connected to the node's broker, counting continues: {reason}");
            }
            LinkEvent::Message(_) => {}
        }
    }
}

/// The report. Fields that the wire does not name are ignored by agents that do not know them.
fn message(
    identity: &Identity,
    started: Timestamp,
    now: Timestamp,
    decisions: &Decisions,
) -> Value {
    let totals = decisions.totals();
    #[expect(clippy::cast_precision_loss, reason = "informative only")]
    let ratio =
        if totals.inference == 0 { 0.0 } else { totals.cloud as f64 / totals.inference as f64 };
    let info = WorkerInfo {
        name: identity.worker.clone(),
        namespace: identity.namespace.clone(),
        owner_name: identity.service.clone(),
        owner_kind: "jointinferenceservice".to_owned(),
        kind: "inference".to_owned(),
        status: "running".to_owned(),
        task_info: Some(WorkerTaskInfo {
            inference_number: totals.inference,
            hard_example_number: totals.cloud,
            fallback_number: totals.fallback,
            hard_number: totals.hard,
            over_budget_number: totals.over_budget,
            unjudged_number: totals.unjudged,
            shadow_number: totals.shadow,
            upload_cloud_ratio: ratio,
            start_time: format!("{started:.3}"),
            update_time: format!("{now:.3}"),
        }),
        output: None,
        results: None,
        gateway: None,
    };
    let mut message = json!(info);
    let task = &mut message["taskInfo"];
    task["threshold"] = json!(decisions.policy().threshold());
    if let Some(estimate) = decisions.policy().agreement() {
        task["agreement"] = json!(estimate.agreement);
    }
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_cascade::policy::{Decision, Goal, Settings};

    use super::*;
    use crate::decision::Outcome;

    #[test]
    fn report_is_one_of_a_worker_with_more_numbers() {
        let mut decisions = Decisions::new(Settings::new(Goal::Threshold, 0.5), true, clock::now());
        for outcome in [
            Outcome::Edge(Decision::Easy),
            Outcome::Cloud(Decision::Hard),
            Outcome::Fallback,
            Outcome::Edge(Decision::OverBudget),
        ] {
            decisions.count(outcome);
        }
        let identity = Identity {
            worker: "w".to_owned(),
            namespace: "default".to_owned(),
            service: "s".to_owned(),
            topic: "t".to_owned(),
        };
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let report = message(&identity, start, start, &decisions);
        let read = WorkerInfo::decode(report.to_string().as_bytes()).unwrap();
        let counters = read.task_info.unwrap().counters().unwrap();
        assert_eq!((counters.inference, counters.hard, counters.fallback), (4, 1, 1));
        assert_eq!(report["taskInfo"]["hardNumber"], 3);
        assert_eq!(report["taskInfo"]["overBudgetNumber"], 1);
        assert_eq!(report["taskInfo"]["threshold"], 0.5);
        assert_eq!(report["taskInfo"]["startTime"], "2026-01-01T00:00:00.000Z");
    }
}

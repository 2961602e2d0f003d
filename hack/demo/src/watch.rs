//! Follows a service's counters on the terminal until its worker is done.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::TryStreamExt;
use kube::{
    api::Api,
    runtime::{WatchStreamExt, watcher},
};
use neptune_api::{JointInferenceService, JointInferenceServiceStatus};

use crate::{stage::Stage, verdict};

/// How long the first counters, and then each next change, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints each change, and returns the status once it holds all that the edge worker counted.
pub async fn to_the_end(
    stage: &Stage,
    began: Instant,
) -> anyhow::Result<JointInferenceServiceStatus> {
    println!(
        "{:>6}  {:8} {:>6} {:>6} {:>10} {:>13} {:>12}  REASON",
        "TIME", "STATUS", "ACTIVE", "FAILED", "INFERENCE", "HARDEXAMPLES", "UPLOADRATIO"
    );
    let api: Api<JointInferenceService> = Api::namespaced(stage.client(), "default");
    let only = watcher::Config::default().fields("metadata.name=digits");
    let mut changes = std::pin::pin!(watcher(api, only).default_backoff().applied_objects());
    let mut last = JointInferenceServiceStatus::default();
    let (mut seen, mut first, mut moved) = (String::new(), None, Instant::now());
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            next = changes.try_next() => {
                let service = next.context("watching the service")?;
                last = service.and_then(|service| service.status).unwrap_or_default();
                moved = Instant::now();
            }
            _ = tick.tick() => {}
        }
        let line = line(&last);
        if line != seen {
            println!("{:>5.1}s  {line}", began.elapsed().as_secs_f32());
            seen = line;
        }
        let inferred = metric(&last, "inferenceNumber").parse().unwrap_or(0);
        if inferred > 0 && first.is_none() {
            first = Some(began.elapsed());
        }
        // The worker prints its own totals once it is done.
        let worker = stage.edge_container().and_then(|id| verdict::workers_own_words(&id));
        if let (Ok(worker), Some(first)) = (worker, first)
            && worker.inference_number <= inferred
        {
            println!("\nfirst counters {:.1} s after the start", first.as_secs_f32());
            return Ok(last);
        }
        if moved.elapsed() > PATIENCE {
            bail!("nothing changed for {} s", PATIENCE.as_secs());
        }
    }
}

fn line(status: &JointInferenceServiceStatus) -> String {
    let condition = status.conditions.last();
    let state = condition.map_or_else(|| "-".to_owned(), |c| c.type_.to_string());
    let why = condition
        .filter(|condition| condition.type_ != neptune_api::JisConditionType::Running)
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{reason}: {}", condition.message.as_deref().unwrap_or_default())
        });
    format!(
        "{state:8} {:>6} {:>6} {:>10} {:>13} {:>12}  {}",
        status.active.unwrap_or(0),
        status.failed.unwrap_or(0),
        metric(status, "inferenceNumber"),
        metric(status, "hardExampleNumber"),
        metric(status, "uploadCloudRatio"),
        why.unwrap_or_default()
    )
}

fn metric<'a>(status: &'a JointInferenceServiceStatus, key: &str) -> &'a str {
    let found = status.metrics.iter().find(|metric| metric.key == key);
    found.map_or("-", |metric| &metric.value)
}

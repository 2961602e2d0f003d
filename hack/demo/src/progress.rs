//! Prints the service's status on the terminal until its edge worker is done.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::TryStreamExt;
use kube::{
    api::Api,
    runtime::{WatchStreamExt, watcher},
};
use neptune_api::{
    JisCondition, JisConditionType, JointInferenceService, JointInferenceServiceStatus,
};

use crate::{
    environment::Environment,
    summary::{WorkerResult, metric},
};

/// Time limit for the first status, and then for each next change of it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Prints each change. Returns the status once it contains everything that the edge worker
/// counted, and the worker's own result.
pub async fn follow(
    environment: &Environment,
    began: Instant,
) -> anyhow::Result<(JointInferenceServiceStatus, WorkerResult)> {
    println!(
        "{:>6}  {:8} {:>6} {:>6} {:>10} {:>13} {:>12}  REASON",
        "TIME", "STATUS", "ACTIVE", "FAILED", "INFERENCE", "HARDEXAMPLES", "UPLOADRATIO"
    );
    let api: Api<JointInferenceService> = Api::namespaced(environment.client(), "default");
    let name = environment.service();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = std::pin::pin!(watcher(api, only).default_backoff().applied_objects());
    let mut status = JointInferenceServiceStatus::default();
    let (mut printed, mut first_counters) = (String::new(), None);
    let mut last_change = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            next = changes.try_next() => {
                let service = next
                    .with_context(|| format!("watching JointInferenceService default/{name}"))?;
                status = service.and_then(|service| service.status).unwrap_or_default();
                last_change = Instant::now();
            }
            _ = tick.tick() => {}
        }
        let line = line(&status);
        if line != printed {
            println!("{:>5.1}s  {line}", began.elapsed().as_secs_f32());
            printed = line;
        }
        if let Some(failed) = failed(&status) {
            let reason = failed.reason.as_deref().unwrap_or_default();
            let message = failed.message.as_deref().unwrap_or_default();
            bail!("JointInferenceService default/{name} is Failed ({reason}): {message}");
        }
        let inferred = metric(&status.metrics, "inferenceNumber").parse().unwrap_or(0);
        if inferred > 0 && first_counters.is_none() {
            first_counters = Some(began.elapsed());
        }
        // The worker prints its result once it is done.
        let worker = environment.edge_container().and_then(|id| WorkerResult::read(&id));
        if let (Ok(worker), Some(first_counters)) = (worker, first_counters)
            && worker.inference_number <= inferred
        {
            println!(
                "\nThe edge worker is done. The first counters were in the status {:.1} s after the start.",
                first_counters.as_secs_f32()
            );
            return Ok((status, worker));
        }
        if last_change.elapsed() > TIMEOUT {
            bail!(
                "the status of JointInferenceService default/{name} did not change for {} s",
                TIMEOUT.as_secs()
            );
        }
    }
}

/// The current condition, if it is `Failed`. The example works on every node, so that this is never
/// a state that passes.
fn failed(status: &JointInferenceServiceStatus) -> Option<&JisCondition> {
    status.conditions.last().filter(|current| current.type_ == JisConditionType::Failed)
}

fn line(status: &JointInferenceServiceStatus) -> String {
    let condition = status.conditions.last();
    let state = condition.map_or_else(|| "-".to_owned(), |c| c.type_.to_string());
    let why = condition.filter(|condition| condition.type_ != JisConditionType::Running).map(
        |condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{reason}: {}", condition.message.as_deref().unwrap_or_default())
        },
    );
    let line = format!(
        "{state:8} {:>6} {:>6} {:>10} {:>13} {:>12}  {}",
        status.active.unwrap_or(0),
        status.failed.unwrap_or(0),
        metric(&status.metrics, "inferenceNumber"),
        metric(&status.metrics, "hardExampleNumber"),
        metric(&status.metrics, "uploadCloudRatio"),
        why.unwrap_or_default()
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_current_failure_ends_the_demo() {
        use JisConditionType::{Failed, Pending, Running};
        let condition = |type_| JisCondition {
            type_,
            status: "True".to_owned(),
            reason: Some("ServingPortTaken".to_owned()),
            message: None,
            last_heartbeat_time: None,
            last_transition_time: None,
        };
        let status = |types: &[JisConditionType]| JointInferenceServiceStatus {
            conditions: types.iter().copied().map(condition).collect(),
            ..JointInferenceServiceStatus::default()
        };
        assert!(failed(&status(&[])).is_none());
        assert!(failed(&status(&[Pending, Failed, Running])).is_none());
        assert!(failed(&status(&[Pending, Running, Failed])).is_some());
    }
}

//! Logs changes of a model server: the version that runs, and its status.

use neptune_agent_core::{domain::rollout::RolloutState, model_server::rollout::RolloutDecision};
use neptune_wire::{ModelServerReport, ObjectKey, Transition};
use tracing::{info, warn};

/// Logs a switch to another version. Returns whether the version switched.
pub fn log_switch(key: &ObjectKey, before: &RolloutState, decision: &RolloutDecision) -> bool {
    if decision.state.current == before.current {
        return false;
    }
    let version =
        |state: &RolloutState| state.current.as_ref().map(|current| current.version().to_owned());
    info!(object = %key, from = version(before), to = version(&decision.state), "model version switched");
    true
}

/// Logs a status that differs from the one before.
pub fn log_changes(key: &ObjectKey, before: &ModelServerReport, report: &ModelServerReport) {
    let logged = |report: &ModelServerReport| {
        (report.transition, report.serving_version.clone(), report.message.clone())
    };
    if logged(before) == logged(report) {
        return;
    }
    let ModelServerReport {
        serving_version: serving,
        target_version: target,
        transition,
        message,
        ..
    } = report;
    match transition {
        Transition::UpToDate | Transition::InProgress => {
            info!(object = %key, serving, target, ?transition, message, "model server status changed");
        }
        Transition::BlockedByFailedLoad | Transition::InvalidSpec => {
            warn!(object = %key, serving, target, ?transition, message, "model server status changed");
        }
    }
}

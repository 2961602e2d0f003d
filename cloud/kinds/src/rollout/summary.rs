//! The texts of a rollout: its reason, message and column, and its Events.

use neptune_api::{RolloutState, RolloutStatus};

use super::{node::Failure, policy::Policy};

/// The nodes that failed with the revision of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failures<'a> {
    /// The number of nodes that have or may have the revision.
    pub released: usize,
    /// The first of those that failed, and why.
    pub first: Option<(&'a str, Failure)>,
    /// The number of nodes that wait for the rollout of another object.
    pub delayed: usize,
}

/// Sets the reason, the message and the column of a status with its counts.
pub fn summarize(status: &mut RolloutStatus, policy: &Policy, failures: &Failures) {
    let RolloutStatus { total, updated, ready, failed, .. } = *status;
    let first = failures.first.map(|(node, failure)| format!(" ({node}: {failure})"));
    let first = first.unwrap_or_default();
    let problems = if failed > 0 { format!("; {failed} failed{first}") } else { String::new() };
    let is_stopped = status.paused_time.is_some();
    let (reason, message) = match status.state {
        RolloutState::Paused if is_stopped => {
            let released = failures.released;
            let message = format!(
                "rollout paused: {failed} of {released} updated nodes failed{first}; correct the spec, or run kubectl neptune rollout resume"
            );
            ("RolloutFailed", message)
        }
        RolloutState::Paused => {
            let message = format!(
                "rollout paused by spec.rollout.paused: {updated} of {total} nodes are updated{problems}; run kubectl neptune rollout resume"
            );
            ("RolloutPaused", message)
        }
        RolloutState::Progressing => {
            let delayed = match failures.delayed {
                0 => String::new(),
                number => format!("; {number} wait for another rollout of their Model"),
            };
            let message = format!(
                "{updated} of {total} nodes are updated, {ready} are ready{problems}{delayed}"
            );
            ("RolloutProgressing", message)
        }
        RolloutState::Complete => {
            let waits = if policy.is_paused && updated < total {
                "; the others keep what they have while spec.rollout.paused is true"
            } else {
                ""
            };
            let message = format!(
                "{updated} of {total} nodes are updated, {ready} are ready{problems}{waits}"
            );
            ("RolloutComplete", message)
        }
    };
    status.reason = Some(reason.to_owned());
    status.message = Some(message);
    status.summary = match status.state {
        RolloutState::Paused => status.state.to_string(),
        RolloutState::Progressing | RolloutState::Complete => format!("{ready}/{total}"),
    };
}

/// Shows the rollout of a model server that a service owns in the texts of the service's own, if the
/// server is behind. Each one decides by itself.
pub fn show_server(own: &mut RolloutStatus, (name, server): (&str, &RolloutStatus)) {
    let behind = |status: &RolloutStatus| match status.state {
        RolloutState::Complete => 0,
        RolloutState::Progressing => 1,
        RolloutState::Paused => 2,
    };
    if behind(server) > behind(own) {
        own.summary.clone_from(&server.summary);
        let message = server.message.as_deref().unwrap_or_default();
        own.message = Some(format!("InferenceModel {name}: {message}"));
    }
}

/// What a user should know of a change of a rollout, as an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Whether a user may have to act.
    pub is_warning: bool,
    /// The reason of the Event.
    pub reason: String,
    /// The text of the Event.
    pub message: String,
}

/// The announcement when a rollout pauses or completes. A first placement is none.
pub fn announcement(
    previous: Option<&RolloutStatus>,
    next: Option<&RolloutStatus>,
) -> Option<Announcement> {
    let next = next?;
    let same = previous.filter(|before| before.revision == next.revision);
    let has_changed = same.map(|before| &before.reason) != Some(&next.reason);
    let is_announced = match next.state {
        RolloutState::Paused => has_changed,
        RolloutState::Complete => has_changed && same.is_some(),
        RolloutState::Progressing => false,
    };
    let is_warning = next.state == RolloutState::Paused;
    let (reason, message) = (next.reason.clone()?, next.message.clone()?);
    is_announced.then_some(Announcement { is_warning, reason, message })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use neptune_api::Rollout;

    use super::*;
    use crate::reason::Reason;

    fn summarized(state: RolloutState, change: impl FnOnce(&mut RolloutStatus)) -> RolloutStatus {
        let mut status = RolloutStatus {
            revision: "r".to_owned(),
            state,
            total: 3000,
            updated: 2,
            ready: 1,
            ..RolloutStatus::default()
        };
        change(&mut status);
        let first = (status.failed > 0)
            .then_some(("shop-0412", Failure::Reported(Reason::CrashLoopBackOff)));
        let failures = Failures { released: 2, first, delayed: 0 };
        let policy = Policy::new(&Rollout { paused: true, ..Rollout::default() }, None);
        summarize(&mut status, &policy, &failures);
        status
    }

    fn texts(status: &RolloutStatus) -> [&str; 3] {
        [status.reason.as_deref().unwrap(), &status.summary, status.message.as_deref().unwrap()]
    }

    #[test]
    fn texts_name_the_numbers_the_failed_node_and_the_remedy() {
        let failed = |status: &mut RolloutStatus| {
            status.failed = 1;
            status.paused_time = Some(Time(Timestamp::UNIX_EPOCH));
        };
        let message = "rollout paused: 1 of 2 updated nodes failed (shop-0412: CrashLoopBackOff); correct the spec, or run kubectl neptune rollout resume";
        let status = summarized(RolloutState::Paused, failed);
        assert_eq!(texts(&status), ["RolloutFailed", "Paused", message]);
        let message = "rollout paused by spec.rollout.paused: 2 of 3000 nodes are updated; run kubectl neptune rollout resume";
        let status = summarized(RolloutState::Paused, |_| ());
        assert_eq!(texts(&status), ["RolloutPaused", "Paused", message]);
        let message =
            "2 of 3000 nodes are updated, 1 are ready; 1 failed (shop-0412: CrashLoopBackOff)";
        let status = summarized(RolloutState::Progressing, |status| status.failed = 1);
        assert_eq!(texts(&status), ["RolloutProgressing", "1/3000", message]);
        let message = "3000 of 3000 nodes are updated, 1 are ready";
        let status = summarized(RolloutState::Complete, |status| status.updated = 3000);
        assert_eq!(texts(&status), ["RolloutComplete", "1/3000", message]);
        let status = summarized(RolloutState::Complete, |_| ());
        assert!(texts(&status)[2].ends_with("while spec.rollout.paused is true"));
    }

    #[test]
    fn server_that_is_behind_is_shown() {
        let [progressing, paused, complete] =
            [RolloutState::Progressing, RolloutState::Paused, RolloutState::Complete]
                .map(|state| summarized(state, |_| ()));
        let shown = |own: &RolloutStatus, server: &RolloutStatus| {
            let mut own = own.clone();
            show_server(&mut own, ("small", server));
            own
        };
        let behind = shown(&complete, &paused);
        assert_eq!((behind.state, &*behind.summary), (RolloutState::Complete, "Paused"));
        assert!(behind.message.unwrap().starts_with("InferenceModel small: rollout paused"));
        assert_eq!(shown(&progressing, &complete), progressing);
        assert_eq!(shown(&paused, &progressing), paused);
    }

    #[test]
    fn pauses_and_the_end_are_announced_once() {
        let [progressing, paused, complete] =
            [RolloutState::Progressing, RolloutState::Paused, RolloutState::Complete]
                .map(|state| summarized(state, |_| ()));
        let event = |previous: Option<&RolloutStatus>, next: &RolloutStatus| {
            announcement(previous, Some(next)).map(|it| (it.is_warning, it.reason))
        };
        assert_eq!(event(None, &complete), None, "the first placement");
        assert_eq!(event(None, &progressing), None);
        let is_paused = Some((true, "RolloutPaused".to_owned()));
        assert_eq!(event(Some(&progressing), &paused), is_paused);
        assert_eq!(event(None, &paused), is_paused);
        assert_eq!(event(Some(&paused), &paused), None);
        assert_eq!(event(Some(&paused), &progressing), None);
        let is_complete = Some((false, "RolloutComplete".to_owned()));
        assert_eq!(event(Some(&progressing), &complete), is_complete);
        assert_eq!(event(Some(&complete), &complete), None);
    }
}

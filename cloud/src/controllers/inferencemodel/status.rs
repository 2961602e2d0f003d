//! The status that a model should have, from the one it has and what is known now. Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use neptune_api::{InferenceModelStatus, JisConditionType, TransitionStatus};

use super::{
    super::condition::condition,
    view::{View, named},
};
use crate::reason::{Finding, Reason};

/// Requests are answered.
pub const READY: &str = "Ready";
/// A version is on its way.
pub const PROGRESSING: &str = "Progressing";
/// Something is wrong.
pub const DEGRADED: &str = "Degraded";

/// What a status is made of.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The generation that was looked at.
    pub generation: Option<i64>,
    /// The version that the spec wants.
    pub target: Option<&'a str>,
    /// What stands between the spec and its server.
    pub findings: &'a [Finding],
    /// Where it is served now, unless something stands in its way.
    pub placed: Option<Placed>,
    /// How the server fares.
    pub view: View,
    /// The time.
    pub now: Timestamp,
}

/// Where a model is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placed {
    /// The node whose agent runs the server.
    pub node: Option<String>,
    /// Where requests go, if that is known.
    pub url: Option<String>,
    /// What a user may be wrong about.
    pub remark: Option<String>,
}

/// The next status.
#[must_use]
pub fn next(previous: &InferenceModelStatus, facts: &Facts) -> InferenceModelStatus {
    if keeps(previous, facts) {
        return previous.clone();
    }
    let mut next = InferenceModelStatus {
        target_version: facts.target.map(str::to_owned),
        observed_generation: facts.generation,
        ..previous.clone()
    };
    if let Some(placed) = &facts.placed {
        let moved = placed.node != previous.node;
        next.node.clone_from(&placed.node);
        next.url.clone_from(&placed.url);
        if moved {
            // What another node served is served there no more.
            next.serving_version = None;
            next.ready_replicas = None;
            next.last_failure = None;
            next.progress = None;
        }
    }
    match &facts.view {
        View::Said(said) => {
            next.serving_version.clone_from(&said.serving_version);
            next.ready_replicas = Some(said.ready_replicas);
            next.progress.clone_from(&said.progress);
            next.last_failure.clone_from(&said.failure);
        }
        View::Awaited(_) => {
            next.serving_version = None;
            next.ready_replicas = Some(0);
            next.progress = None;
        }
        View::Silent(_) | View::Unknown(_) => next.progress = None,
    }
    let verdict = verdict(previous, facts);
    next.transition_status = Some(verdict.transition);
    next.conditions = conditions(&previous.conditions, verdict, facts);
    next
}

/// After this controller's start the agents' words are on their way: until they come, the model is as
/// it was.
fn keeps(previous: &InferenceModelStatus, facts: &Facts) -> bool {
    let node = facts.placed.as_ref().map(|placed| &placed.node);
    let reason = previous.conditions.iter().find(|condition| condition.type_ == DEGRADED);
    let was_obstacle = reason
        .and_then(|condition| condition.reason.parse().ok())
        .is_none_or(|reason: Reason| reason.is_obstacle());
    facts.findings.is_empty()
        && matches!(facts.view, View::Unknown(_))
        && previous.observed_generation == facts.generation
        && node == Some(&previous.node)
        && !was_obstacle
}

/// What the conditions are to say.
struct Verdict {
    transition: TransitionStatus,
    ready: Option<bool>,
    /// Of Ready.
    answer: Finding,
    /// Of Progressing and Degraded.
    state: Finding,
    degraded: bool,
}

fn verdict(previous: &InferenceModelStatus, facts: &Facts) -> Verdict {
    let (ready, seen) = match &facts.view {
        View::Said(said) => (Some(said.answers), said.finding.clone()),
        View::Awaited(finding) => (Some(false), finding.clone()),
        View::Silent(finding) | View::Unknown(finding) => (None, finding.clone()),
    };
    if let Some(state) = obstacle(facts.findings) {
        let broken = state.reason.condition() == JisConditionType::Failed;
        let transition =
            if broken { TransitionStatus::InvalidSpec } else { TransitionStatus::Pending };
        let answer = if ready == Some(true) { answering(facts) } else { state.clone() };
        return Verdict { transition, ready, answer, state, degraded: true };
    }
    let transition = match &facts.view {
        View::Said(said) => said.transition,
        View::Silent(_) => previous
            .transition_status
            .filter(|was| *was != TransitionStatus::InvalidSpec)
            .unwrap_or(TransitionStatus::Pending),
        View::Awaited(_) | View::Unknown(_) => TransitionStatus::Pending,
    };
    let degraded = match &facts.view {
        // Also a version on its way may be in want of help.
        View::Said(said) => said.finding.reason.condition() == JisConditionType::Failed,
        View::Awaited(finding) => finding.reason == Reason::AgentNotSeen,
        View::Silent(_) => true,
        View::Unknown(_) => false,
    };
    let answer = if ready == Some(true) { answering(facts) } else { seen.clone() };
    Verdict { transition, ready, answer, state: seen, degraded }
}

/// Why requests are answered: the same as long as the same version does.
fn answering(facts: &Facts) -> Finding {
    let version = match &facts.view {
        View::Said(said) => said.serving_version.as_deref(),
        _ => None,
    };
    let message = version.map_or_else(
        || "requests are answered".to_owned(),
        |version| format!("{} answers requests", named(Some(version))),
    );
    Finding::new(Reason::Serving, message)
}

/// All findings, headed by one that somebody has to mend, if there is such a one.
fn obstacle(findings: &[Finding]) -> Option<Finding> {
    let broken = |finding: &&Finding| finding.reason.condition() == JisConditionType::Failed;
    let first = findings.iter().find(broken).or(findings.first())?;
    let rest = findings.iter().filter(|finding| *finding != first);
    let messages: Vec<_> =
        std::iter::once(first).chain(rest).map(|finding| finding.message.as_str()).collect();
    Some(Finding::new(first.reason, messages.join("; ")))
}

fn conditions(previous: &[Condition], verdict: Verdict, facts: &Facts) -> Vec<Condition> {
    let Verdict { transition, ready, answer, mut state, degraded } = verdict;
    if let Some(remark) = facts.placed.as_ref().and_then(|placed| placed.remark.as_ref()) {
        state.message = format!("{} ({remark})", state.message);
    }
    let is_on_its_way =
        matches!(transition, TransitionStatus::Pending | TransitionStatus::InProgress) && !degraded;
    let word = |is: Option<bool>| match is {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let silent = matches!(facts.view, View::Silent(_)) && facts.findings.is_empty();
    let well = Finding::new(Reason::Serving, "nothing is wrong");
    [
        (READY, word(ready), answer),
        (PROGRESSING, word((!silent).then_some(is_on_its_way)), state.clone()),
        (DEGRADED, word(Some(degraded)), if degraded { state } else { well }),
    ]
    .map(|(type_, status, finding)| {
        condition(previous, type_, status, finding, facts.generation, facts.now)
    })
    .into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::view::Said, *};

    fn said(serving: Option<&str>, transition: TransitionStatus, reason: Reason) -> View {
        View::Said(Box::new(Said {
            answers: serving.is_some(),
            serving_version: serving.map(str::to_owned),
            ready_replicas: i32::from(serving.is_some()),
            transition,
            finding: Finding::new(reason, "why"),
            progress: None,
            failure: None,
        }))
    }

    fn placed(node: &str) -> Placed {
        Placed {
            node: Some(node.to_owned()),
            url: Some(format!("http://{node}:8501")),
            remark: None,
        }
    }

    fn facts(view: View, second: i64) -> Facts<'static> {
        Facts {
            generation: Some(1),
            target: Some("4"),
            findings: &[],
            placed: Some(placed("edge0")),
            view,
            now: Timestamp::from_second(second).unwrap(),
        }
    }

    fn serving() -> View {
        said(Some("4"), TransitionStatus::UpToDate, Reason::Serving)
    }

    fn up_to_date() -> InferenceModelStatus {
        next(&InferenceModelStatus::default(), &facts(serving(), 10))
    }

    /// Ready, Progressing and Degraded, with the reason of the first and the last.
    fn words(status: &InferenceModelStatus) -> String {
        let [ready, progressing, degraded] = &status.conditions[..] else { unreachable!() };
        let types = [ready, progressing, degraded].map(|condition| &*condition.type_);
        assert_eq!(types, [READY, PROGRESSING, DEGRADED]);
        format!(
            "{} {}, {}, {} {}",
            ready.status, ready.reason, progressing.status, degraded.status, degraded.reason
        )
    }

    #[test]
    fn every_view_has_its_conditions() {
        use TransitionStatus::{BlockedByFailedLoad, InProgress, InvalidSpec, Pending, UpToDate};
        let silent = View::Silent(Finding::new(Reason::NodeOffline, "gone"));
        let awaited = |reason| View::Awaited(Finding::new(reason, "a"));
        for (view, transition, words_) in [
            (serving(), UpToDate, "True Serving, False, False Serving"),
            (
                said(None, InProgress, Reason::ModelDownloading),
                InProgress,
                "False ModelDownloading, True, False Serving",
            ),
            (
                said(Some("3"), InProgress, Reason::ServerStarting),
                InProgress,
                "True Serving, True, False Serving",
            ),
            (
                said(Some("3"), BlockedByFailedLoad, Reason::LoadFailed),
                BlockedByFailedLoad,
                "True Serving, False, True LoadFailed",
            ),
            (
                said(None, BlockedByFailedLoad, Reason::LoadFailed),
                BlockedByFailedLoad,
                "False LoadFailed, False, True LoadFailed",
            ),
            (
                said(None, InvalidSpec, Reason::ServingRefused),
                InvalidSpec,
                "False ServingRefused, False, True ServingRefused",
            ),
            (
                said(None, InProgress, Reason::DiskFull),
                InProgress,
                "False DiskFull, False, True DiskFull",
            ),
            (awaited(Reason::AwaitingAgent), Pending, "False AwaitingAgent, True, False Serving"),
            (
                awaited(Reason::AgentNotSeen),
                Pending,
                "False AgentNotSeen, False, True AgentNotSeen",
            ),
            (
                View::Unknown(Finding::new(Reason::AwaitingAgent, "u")),
                Pending,
                "Unknown AwaitingAgent, True, False Serving",
            ),
            (silent, Pending, "Unknown NodeOffline, Unknown, True NodeOffline"),
        ] {
            let status = next(&InferenceModelStatus::default(), &facts(view.clone(), 1));
            assert_eq!(
                (status.transition_status, &*words(&status)),
                (Some(transition), words_),
                "{view:?}"
            );
        }
    }

    #[test]
    fn what_serves_goes_on_serving_while_the_spec_is_wrong() {
        let findings = [
            Finding::new(Reason::NodeAmbiguous, "which?"),
            Finding::new(Reason::ServingPortInvalid, "which port?"),
        ];
        let wrong = |findings, view| Facts {
            generation: Some(2),
            target: Some("5"),
            findings,
            placed: None,
            ..facts(view, 20)
        };
        let before = up_to_date();
        let status = next(&before, &wrong(&findings, serving()));
        assert_eq!(words(&status), "True Serving, False, True ServingPortInvalid");
        assert_eq!(status.conditions[2].message, "which port?; which?");
        assert_eq!(status.transition_status, Some(TransitionStatus::InvalidSpec));
        assert_eq!(
            (status.serving_version.as_deref(), status.target_version.as_deref()),
            (Some("4"), Some("5"))
        );
        assert_eq!((&status.node, &status.url), (&before.node, &before.url));
        let pending = View::Awaited(Finding::new(Reason::ServerStarting, "nothing"));
        let status = next(&InferenceModelStatus::default(), &wrong(&findings[..1], pending));
        assert_eq!(words(&status), "False NodeAmbiguous, False, True NodeAmbiguous");
        assert_eq!(status.transition_status, Some(TransitionStatus::Pending), "it heals by itself");
    }

    #[test]
    fn a_look_that_sees_nothing_new_is_no_write_and_a_change_of_a_condition_has_its_time() {
        let status = up_to_date();
        assert_eq!(next(&status, &facts(serving(), 99)), status);
        let blocked = said(Some("4"), TransitionStatus::BlockedByFailedLoad, Reason::LoadFailed);
        let later = next(&status, &facts(blocked, 99));
        let since = |status: &InferenceModelStatus| -> Vec<_> {
            status.conditions.iter().map(|c| c.last_transition_time.0.as_second()).collect()
        };
        assert_eq!((since(&status), since(&later)), (vec![10, 10, 10], vec![10, 10, 99]));
    }

    #[test]
    fn a_silent_node_leaves_what_was_known_and_a_young_controller_everything() {
        let status = up_to_date();
        let silent = View::Silent(Finding::new(Reason::NodeOffline, "gone"));
        let offline = next(&status, &facts(silent, 20));
        assert_eq!(offline.serving_version.as_deref(), Some("4"));
        assert_eq!(offline.transition_status, Some(TransitionStatus::UpToDate));
        let unknown = || View::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        assert_eq!(next(&status, &facts(unknown(), 20)), status);
        assert_eq!(next(&offline, &facts(unknown(), 20)), offline);
        let refused = said(None, TransitionStatus::InvalidSpec, Reason::ServingRefused);
        let refused = next(&status, &facts(refused, 20));
        assert_eq!(next(&refused, &facts(unknown(), 30)), refused);
        let findings = [Finding::new(Reason::FrameworksInvalid, "table")];
        let wrong = Facts { findings: &findings, placed: None, ..facts(serving(), 20) };
        let healed = next(&next(&status, &wrong), &facts(unknown(), 30));
        assert_eq!(words(&healed), "Unknown AwaitingAgent, True, False Serving");
        let new_spec = next(&status, &Facts { generation: Some(2), ..facts(unknown(), 20) });
        assert_eq!(new_spec.observed_generation, Some(2));
        assert_eq!(new_spec.transition_status, Some(TransitionStatus::Pending));
    }

    #[test]
    fn on_another_node_it_begins_anew() {
        let unknown = View::Unknown(Finding::new(Reason::AwaitingAgent, "u"));
        let moved = Facts { placed: Some(placed("edge1")), ..facts(unknown, 20) };
        let status = next(&up_to_date(), &moved);
        assert_eq!((status.node.as_deref(), &status.serving_version), (Some("edge1"), &None));
        assert_eq!(status.url.as_deref(), Some("http://edge1:8501"));
    }

    #[test]
    fn a_remark_stands_beside_the_state() {
        let remark = Some("nodeName wins".to_owned());
        let placed = Some(Placed { remark, ..placed("edge0") });
        let status =
            next(&InferenceModelStatus::default(), &Facts { placed, ..facts(serving(), 1) });
        assert_eq!(status.conditions[1].message, "why (nodeName wins)");
    }
}

//! The rollout of the servers of several nodes: the revision of what they run, and what they report
//! of it.

use neptune_api::InferenceModel;
use neptune_wire::{ModelServer, Role, StatusReport, Transition, WorkerReason};

use crate::{
    inference_model::{
        contents::server, place::Place, target::InferenceModelFacts, validate::ValidInferenceModel,
    },
    reason::Reason,
    rollout::{
        observe::ReportedState,
        planned::{ValidRollout, revision},
    },
    worker::restart::Restart,
};

/// Adds its rollout to a valid model. There is none without `spec.rollout`, and for one server.
pub fn with_rollout(
    model: &InferenceModel,
    valid: ValidInferenceModel,
    facts: &InferenceModelFacts,
) -> ValidInferenceModel {
    let has_several = matches!(valid.place, Place::EachAgent { .. });
    let rollout = model.spec.rollout.as_ref().filter(|_| has_several).map(|_| {
        // It delays a change by itself, and is none.
        let restart = Restart::requested_of_server(&model.metadata);
        let restarted_at = restart.and_then(|it| it.everywhere(Role::Edge).cloned());
        let mut template = ModelServer { hold: false, restarted_at, ..server(model, &valid) };
        // Another mirror has the same content.
        template.model.iter_mut().for_each(|model| model.mirrors.clear());
        let stored = model.status.as_ref().and_then(|status| status.rollout.as_deref());
        ValidRollout::new(revision(&template), &facts.granted, stored)
    });
    ValidInferenceModel { rollout, ..valid }
}

/// What a node reports of its server.
pub fn reported_state(report: &StatusReport) -> ReportedState {
    let Some(serving) = &report.serving else { return ReportedState::default() };
    let failure = match serving.transition {
        Transition::BlockedByFailedLoad => Some(Reason::LoadFailed),
        Transition::InvalidSpec => Some(Reason::ServingRefused),
        Transition::UpToDate | Transition::InProgress => None,
    };
    ReportedState {
        is_ready: serving.transition == Transition::UpToDate && serving.serving_version.is_some(),
        failure,
        is_deferred: serving.trouble == Some(WorkerReason::DownloadWindow),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{Placement, Rollout, RolloutStatus};
    use neptune_wire::NodeName;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        inference_model::fixtures, rollout::planned::GrantedNodes, steps::Steps as _,
        worker::restart::RESTARTED_ANNOTATION,
    };

    fn sample() -> (InferenceModel, InferenceModelFacts) {
        let mut model = fixtures::model();
        model.spec.node_name = None;
        model.spec.placement = Some(Placement::All);
        model.spec.rollout = Some(Box::new(Rollout::default()));
        let nodes = ["e1", "e2"].map(fixtures::edge_node);
        let selected = fixtures::selected(nodes.into());
        (model, InferenceModelFacts { selected, ..fixtures::facts() })
    }

    fn revision_of(model: &InferenceModel, facts: &InferenceModelFacts) -> String {
        model.validate(facts).unwrap().rollout.unwrap().revision
    }

    #[test]
    fn only_nodes_with_a_grant_get_the_stored_revision() {
        let (mut model, mut facts) = sample();
        let planned = |model: &InferenceModel, facts: &InferenceModelFacts| {
            model.plan(&model.validate(facts).unwrap(), "fetch:test")
        };
        let new = planned(&model, &facts);
        assert!(new.awaits_status && new.requirements.is_empty());
        let nodes: Vec<_> = new.retained.unwrap().into_keys().collect();
        assert!(nodes.iter().map(NodeName::as_str).eq(["e1", "e2"]));
        let revision = revision_of(&model, &facts);
        let stored = RolloutStatus { revision: revision.clone(), ..RolloutStatus::default() };
        model.status.get_or_insert_default().rollout = Some(Box::new(stored));
        facts.granted = GrantedNodes { revision, nodes: ["e1".parse().unwrap()].into() };
        let stored = planned(&model, &facts);
        assert!(!stored.awaits_status);
        assert!(stored.requirements.keys().map(NodeName::as_str).eq(["e1"]));
        assert!(stored.kept.keys().map(NodeName::as_str).eq(["e2"]));
        assert_eq!(stored.rollout.unwrap().expected.len(), 2);
        let content = stored.requirements.values().next().unwrap().values().next().unwrap();
        assert_eq!(content.content().spec.get("rollout"), None, "a setting reaches no node");
    }

    #[test]
    fn revision_follows_the_version_and_one_server_has_none() {
        let (model, facts) = sample();
        let first = revision_of(&model, &facts);
        let mut other = model.clone();
        other.spec.rollout = Some(Box::new(Rollout { paused: true, ..Rollout::default() }));
        assert_eq!(revision_of(&other, &facts), first);
        other.spec.target_version = Some("3".to_owned());
        assert_ne!(revision_of(&other, &facts), first);
        let mut one = model;
        one.spec.placement = None;
        assert_eq!(one.validate(&facts).unwrap().rollout, None);
    }

    #[test]
    fn restart_is_a_revision_unless_it_names_nodes() {
        let (mut model, mut facts) = sample();
        let first = revision_of(&model, &facts);
        let mut restart = |model: &mut InferenceModel, value: &str| {
            let annotation = (RESTARTED_ANNOTATION.to_owned(), value.to_owned());
            model.metadata.annotations = Some([annotation].into());
            facts.granted = GrantedNodes::default();
            revision_of(model, &facts)
        };
        let time = "2026-11-24T06:00:00Z";
        assert_eq!(restart(&mut model, "now"), first, "it is ignored");
        assert_eq!(restart(&mut model, &format!("{time} e1")), first);
        assert_ne!(restart(&mut model, time), first);
        model.spec.rollout = None;
        let annotation = (RESTARTED_ANNOTATION.to_owned(), format!("{time} e1"));
        model.metadata.annotations = Some([annotation].into());
        let plan = model.plan(&model.validate(&facts).unwrap(), "fetch:test");
        let restarted = plan.requirements.into_values().map(|contents| {
            let content = contents.values().next().unwrap().content();
            content.serving.unwrap().restarted_at.map(String::from)
        });
        assert!(restarted.eq([Some("2026-11-24T06:00:00.000Z".to_owned()), None]));
    }

    #[test]
    fn change_of_many_nodes_at_the_same_time_is_a_warning() {
        let (mut model, mut facts) = sample();
        model.spec.rollout = None;
        let many = |nodes: usize| {
            let nodes = (0..nodes).map(|number| fixtures::edge_node(&format!("e{number}")));
            fixtures::selected(nodes.collect())
        };
        facts.selected = many(32);
        assert_eq!(model.warnings(&facts), [""; 0]);
        facts.selected = many(33);
        let text = "spec.nodeSelector matches 33 edge nodes and spec.rollout is not set: ";
        assert!(model.warnings(&facts)[0].starts_with(text), "{:?}", model.warnings(&facts));
        model.spec.rollout = Some(Box::default());
        assert_eq!(model.warnings(&facts), [""; 0]);
        (model.spec.rollout, model.spec.placement) = (None, None);
        assert_eq!(model.warnings(&facts), [""; 0], "on one node");
    }

    #[test]
    fn state_of_the_server_is_read_from_its_report() {
        let state = |serving: Value| {
            let report: StatusReport = serde_json::from_value(json!({
                "uid": "u", "revision": 1, "instance": "i", "epoch": 1, "seq": 1, "phase": "Running",
                "status": "", "output": {}, "serving": serving,
            }))
            .unwrap();
            reported_state(&report)
        };
        let ready = ReportedState { is_ready: true, ..ReportedState::default() };
        assert_eq!(state(json!({"transition": "UpToDate", "servingVersion": "4"})), ready);
        let blocked = state(json!({"transition": "BlockedByFailedLoad", "servingVersion": "3"}));
        assert_eq!((blocked.is_ready, blocked.failure), (false, Some(Reason::LoadFailed)));
        let waits = state(json!({"transition": "InProgress", "servingVersion": "3",
            "trouble": "DownloadWindow"}));
        assert_eq!((waits.is_ready, waits.failure, waits.is_deferred), (false, None, true));
        assert_eq!(state(Value::Null), ReportedState::default());
    }
}

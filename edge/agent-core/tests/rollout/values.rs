//! Values of Secrets and `ConfigMap`s in the rollout of a model server.

use super::*;

#[test]
fn version_takes_new_values_without_a_trial() {
    for reload in ["replace", "watch"] {
        let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Healthy)], "3");
        simulation.target = serving("3", reload);
        simulation.with_secret(1, "a").run(40);
        simulation.with_secret(2, "b").run(1);
        let up_to_date = (Some("3"), Transition::UpToDate, Some("3"));
        assert_eq!(simulation.summary(), up_to_date);
        for version in [&simulation.state.current, &simulation.state.last_good] {
            let program = &version.as_ref().unwrap().serving.program;
            assert_eq!(*program, simulation.target.program, "it returns with the same values");
        }
    }
}

#[test]
fn target_waits_for_its_values_and_the_present_one_keeps_its_own() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Healthy)], "3");
    simulation.values = Some(unreadable());
    simulation.with_secret(1, "a");
    assert_eq!(simulation.run(5).summary(), (None, Transition::InProgress, None));
    assert_eq!(simulation.status.trouble, Some(WorkerReason::SecretUnreadable));
    assert_eq!(simulation.status.message, "Secret s cannot be opened");
    simulation.values = None;
    simulation.run(40);
    let first = simulation.state.current.clone().unwrap();

    simulation.values = Some(unreadable());
    simulation.with_secret(2, "other");
    let waiting = (Some("3"), Transition::InProgress, Some("3"));
    assert_eq!(simulation.run(5).summary(), waiting);
    assert_eq!(simulation.status.message, "Secret s cannot be opened; 3 keeps running");
    assert_eq!(simulation.state.current.as_ref(), Some(&first));
    assert_eq!(simulation.want("4").with_secret(2, "other").run(60).summary(), waiting);
    simulation.values = None;
    assert_eq!(simulation.run(40).summary(), (Some("4"), Transition::UpToDate, Some("4")));
    assert_eq!(simulation.status.trouble, None);
}

#[test]
fn failed_version_is_tried_again_with_other_values_and_not_with_the_same() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Crashes(1))], "3");
    simulation.run(40);
    simulation.want("4").with_secret(1, "a").run(40);
    assert_eq!(simulation.summary(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
    // The same values, sealed again.
    simulation.with_secret(1, "b").run(40);
    assert_eq!(simulation.switches, ["3", "4", "3"]);
    simulation.behaviors.insert("4".to_owned(), Behavior::Healthy);
    assert_eq!(
        simulation.with_secret(2, "b").run(40).summary(),
        (Some("4"), Transition::UpToDate, Some("4"))
    );
}

#[test]
fn texts_of_a_decision_are_masked_where_they_are_stored_and_reported() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::NeverStarts)], "3");
    simulation.run(40);
    simulation.want("4").run(1);
    let (state, report) = (simulation.state, simulation.status);
    let mut decision = RolloutDecision { state, report, restart: None, next_at: None };
    decision.mask(|text| text.replace("why", "***"));
    let texts = format!("{} {}", json!(decision.state), json!(decision.report));
    assert!(!texts.contains("why") && texts.matches("***").count() == 3, "{texts}");
}

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use neptune_cascade::{
    Share, Signal, Unjudged,
    breaker::Failure,
    policy::{Decision, Goal, Route, Upload},
};

use super::*;
use crate::clock;

/// A repeatable uniform number (xorshift).
fn uniform(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX)
    }
}

fn ratio(percent: u32) -> Settings {
    Settings::new(Goal::UploadRatio(Share::percent(percent)), 0.5)
}

/// Answers one request, and returns how.
fn answer(
    decisions: &mut Decisions,
    signal: Signal,
    is_cloud_up: bool,
    now: Instant,
    random: &mut impl FnMut() -> f64,
) -> Outcome {
    let route = decisions.route(false, None, now);
    let decision = decisions.decide(&[signal], route, &mut *random)[0];
    let outcome = if decision == Decision::Hard {
        match decisions.permit(now) {
            Err(_) => {
                decisions.uploaded(signal, Upload::NotSent);
                Outcome::Fallback
            }
            Ok(permit) if is_cloud_up => {
                decisions.succeeded(permit, now);
                decisions.uploaded(signal, Upload::Answered(None));
                Outcome::Cloud(decision)
            }
            Ok(permit) => {
                decisions.failed(permit, Failure::NoAnswer, now, 0.5);
                decisions.uploaded(signal, Upload::Failed);
                Outcome::Fallback
            }
        }
    } else {
        decisions.take_shadows(&[decision], route, &mut *random);
        Outcome::Edge(decision)
    };
    decisions.count(outcome);
    outcome
}

#[test]
fn upload_ratio_is_held_over_ten_thousand_requests() {
    let now = clock::now();
    let settings = Settings { shadow_ratio: Share::ZERO, ..ratio(20) };
    let mut decisions = Decisions::new(settings, true, now);
    let mut random = uniform(7);
    for request in 0..10_000_u32 {
        // The confidences fall in the middle third.
        let low = if (3_333..6_666).contains(&request) { 0.4 } else { 0.0 };
        let confidence = (random() - low).max(0.0);
        answer(&mut decisions, Ok(confidence), true, now, &mut random);
        if request > 2_000 {
            assert!(decisions.recent_ratio() < 0.24, "{request}: {}", decisions.recent_ratio());
        }
    }
    let totals = decisions.totals();
    assert_eq!(totals.inference, 10_000);
    assert!((1_980..=2_020).contains(&totals.cloud), "{totals:?}");
    assert_eq!(totals.hard, totals.cloud + totals.over_budget + totals.fallback);
}

#[test]
fn dead_cloud_costs_few_calls_and_every_sample_is_answered() {
    let start = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, start);
    let mut random = uniform(7);
    // Half a minute, a sample per 10 ms.
    for step in 0..3_000 {
        let now = start + Duration::from_millis(10 * step);
        let confidence = random();
        answer(&mut decisions, Ok(confidence), false, now, &mut random);
    }
    let totals = decisions.totals();
    assert_eq!((totals.inference, totals.cloud), (3_000, 0));
    assert!(totals.fallback > 300 && totals.fallback == totals.hard, "{totals:?}");
    // Three, and then after 1, 2, 4, 8 and 15 s.
    assert!(decisions.breaker.failures() <= 8, "{}", decisions.breaker.failures());
    assert!(matches!(
        decisions.cloud_state(start + Duration::from_secs(30)),
        CloudState::LeftAlone { .. }
    ));
}

#[test]
fn samples_without_confidence_stay_at_the_edge_and_are_counted() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    let mut random = uniform(7);
    for _ in 0..100 {
        let outcome = answer(&mut decisions, Err(Unjudged::Missing), true, now, &mut random);
        assert_eq!((outcome.as_str(), outcome.side()), ("unjudged", "edge"));
    }
    assert_eq!((decisions.totals().unjudged, decisions.totals().cloud), (100, 0));
}

#[test]
fn edge_that_is_down_uploads_within_the_cap_and_batches_as_a_whole() {
    let now = clock::now();
    let settings = Settings { max_ratio: Share::ZERO, ..ratio(0) };
    let mut decisions = Decisions::new(settings, true, now);
    assert_eq!(decisions.decide_edge_down(40, Route::Open), Ok(()));
    // Ten are left of the burst: a batch of 20 takes none of them.
    assert_eq!(decisions.decide_edge_down(20, Route::Open), Err(Decision::OverBudget));
    assert_eq!(decisions.decide_edge_down(10, Route::Open), Ok(()));
    assert_eq!(decisions.decide_edge_down(1, Route::Open), Err(Decision::OverBudget));
    assert_eq!(decisions.decide_edge_down(1, Route::Pinned), Err(Decision::Pinned));
}

#[test]
fn another_version_of_the_model_forgets_what_was_learnt() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    let mut random = uniform(7);
    assert!(!decisions.observe_version("1"));
    for _ in 0..1_000 {
        let confidence = random();
        answer(&mut decisions, Ok(confidence), true, now, &mut random);
    }
    let saved = decisions.saved().1.clone();
    let mut resumed = Decisions::new(ratio(20), true, now);
    resumed.resume(Some("1".to_owned()), saved);
    assert!((resumed.policy().threshold() - decisions.policy().threshold()).abs() < 1e-12);
    assert!(!resumed.observe_version("1"));
    assert!((0..20).any(|_| resumed.observe_version("2")));
    assert!((resumed.policy().threshold() - 0.5).abs() < 1e-12);
    assert_eq!(decisions.totals().inference, 1_000, "counters go on");
}

/// Every sample is hard, and the versions come in turns of so many samples. Returns the uploads.
fn uploads_of_alternating_versions(turn: u32, samples: u32, goal: Settings) -> u64 {
    let now = clock::now();
    let mut decisions = Decisions::new(goal, true, now);
    let mut random = uniform(7);
    for sample in 0..samples {
        decisions.observe_version(if (sample / turn).is_multiple_of(2) { "1" } else { "2" });
        answer(&mut decisions, Ok(0.0), true, now, &mut random);
    }
    decisions.totals().cloud
}

#[test]
fn cap_holds_while_versions_alternate() {
    let settings = Settings { max_ratio: Share::percent(10), ..ratio(10) };
    for turn in [1, 5, 20, 100] {
        let uploads = uploads_of_alternating_versions(turn, 1_000, settings);
        assert!(uploads <= 150, "turns of {turn}: {uploads} uploads");
    }
}

#[test]
fn goal_holds_while_servers_of_two_versions_answer() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(10), true, now);
    let mut random = uniform(7);
    for sample in 0..1_000 {
        decisions.observe_version(if (sample / 5_u32).is_multiple_of(2) { "1" } else { "2" });
        let confidence = random();
        answer(&mut decisions, Ok(confidence), true, now, &mut random);
    }
    assert!(decisions.totals().cloud <= 130, "{:?}", decisions.totals());
}

#[test]
fn saved_cap_continues_for_another_version() {
    let now = clock::now();
    let settings = Settings { max_ratio: Share::ZERO, ..ratio(10) };
    let mut decisions = Decisions::new(settings, true, now);
    assert_eq!(decisions.decide_edge_down(40, Route::Open), Ok(()));
    let mut resumed = Decisions::new(settings, true, now);
    resumed.set_version("2");
    resumed.resume_cap(decisions.saved().1.clone());
    assert_eq!(resumed.saved().0, Some("2"));
    assert_eq!(resumed.decide_edge_down(11, Route::Open), Err(Decision::OverBudget));
}

#[test]
fn deadline_of_a_client_opens_nothing() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    for _ in 0..20 {
        let permit = decisions.permit(now).unwrap();
        decisions.cut(permit, Duration::from_millis(50), now);
    }
    assert_eq!(decisions.route(false, None, now), Route::Open);
    let at = |ms| Some(now + Duration::from_millis(ms));
    assert_eq!(decisions.route(false, at(40), now), Route::NoTime, "as the answers take longer");
    assert_eq!(decisions.route(false, at(500), now), Route::Open);
}

#[test]
fn deadline_in_the_past_takes_nothing_from_the_cap() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    let before = decisions.policy().tokens();
    let route = decisions.route(false, Some(now), now);
    assert_eq!(route, Route::NoTime);
    assert_eq!(decisions.decide_edge_down(1, route), Err(Decision::Deadline));
    assert!(decisions.policy().tokens() >= before);
}

#[test]
fn cloud_state_names_its_time() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    for _ in 0..3 {
        let permit = decisions.permit(now).unwrap();
        decisions.failed(permit, Failure::NoAnswer, now, 0.5);
    }
    assert_eq!(
        decisions.cloud_state(now).to_string(),
        "the cloud is left alone for another 1 s after 3 failures"
    );
    assert_eq!(decisions.route(false, None, now), Route::CloudLeftAlone);
    assert_eq!(decisions.route(true, None, now), Route::Pinned);
}

#[test]
fn over_budget_is_reported_above_a_bound_until_half_of_it() {
    let mut decisions = Decisions::new(ratio(20), true, clock::now());
    let mut count = |outcome, times| {
        (0..times).for_each(|_| decisions.count(outcome));
        decisions.over_budget().map(|share| (share * 1000.0).round())
    };
    let (over, easy) = (Outcome::Edge(Decision::OverBudget), Outcome::Edge(Decision::Easy));
    assert_eq!(count(over, 50), None);
    assert_eq!(count(over, 1), Some(1000.0), "all so far");
    assert_eq!(count(easy, 949), Some(51.0));
    assert_eq!(count(easy, 25), Some(26.0), "hysteresis");
    assert_eq!(count(easy, 1), None);
}

#[test]
fn samples_in_a_row_without_a_confidence_are_noticed() {
    let mut decisions = Decisions::new(ratio(20), true, clock::now());
    let unjudged = Outcome::Edge(Decision::Unjudged(Unjudged::Missing));
    (0..3).for_each(|_| decisions.count(unjudged));
    decisions.count(Outcome::Edge(Decision::Pinned));
    assert_eq!(decisions.unjudged(4), None);
    assert_eq!(decisions.unjudged(3), Some(Unjudged::Missing));
    decisions.count(Outcome::Edge(Decision::Easy));
    assert_eq!(decisions.unjudged(1), None);
}

#[test]
fn edge_is_down_until_it_answers_or_is_back() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    let route = decisions.route(false, None, now);
    decisions.edge_failed("127.0.0.1:9001");
    let _ = decisions.decide_edge_down(1, route);
    decisions.count(Outcome::Cloud(Decision::EdgeDown));
    assert_eq!(decisions.edge_down(), Some("127.0.0.1:9001"));
    decisions.count(Outcome::Edge(Decision::Easy));
    assert_eq!(decisions.edge_down(), None);
    decisions.edge_failed("127.0.0.1:9002");
    decisions.edge_is_back();
    assert_eq!(decisions.edge_down(), None);
}

#[test]
fn invalid_answers_count_in_a_row() {
    let mut decisions = Decisions::new(ratio(20), true, clock::now());
    let html = || "html".to_owned();
    (0..2).for_each(|_| decisions.answer_invalid(html()));
    decisions.uploaded(Ok(0.1), Upload::Failed);
    assert_eq!(decisions.invalid_answers(3), None);
    decisions.answer_invalid(html());
    assert_eq!(decisions.invalid_answers(3), Some("html"));
    decisions.uploaded(Ok(0.1), Upload::Answered(None));
    assert_eq!(decisions.invalid_answers(1), None);
    for end in [
        Decisions::reset_breaker,
        Decisions::forget_invalid_answers,
        |decisions: &mut Decisions| decisions.count(Outcome::Cloud(Decision::EdgeDown)),
    ] {
        decisions.answer_invalid(html());
        end(&mut decisions);
        assert_eq!(decisions.invalid_answers(1), None);
    }
}

#[test]
fn answer_after_an_outage_ends_it_with_its_samples() {
    let now = clock::now();
    let mut decisions = Decisions::new(ratio(20), true, now);
    assert_eq!(decisions.cloud_state(now), CloudState::Unknown);
    for _ in 0..3 {
        let permit = decisions.permit(now).unwrap();
        decisions.cloud_failed("connection refused");
        decisions.failed(permit, Failure::NoAnswer, now, 0.5);
        decisions.count(Outcome::Fallback);
    }
    assert_eq!(decisions.cloud_failure(), Some("connection refused"));
    decisions.count(Outcome::Fallback);
    let later = now + Duration::from_secs(60);
    let permit = decisions.permit(later).unwrap();
    let ended = decisions.succeeded(permit, later).unwrap();
    assert_eq!((ended.lasted, ended.samples), (Duration::from_secs(60), 2));
    assert_eq!(decisions.cloud_state(later), CloudState::Reachable);
    assert_eq!(decisions.cloud_failure(), None);
}

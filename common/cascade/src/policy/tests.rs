#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::{controller::WARM_UP, *};
use crate::number::Share;
use crate::testing::Uniform;

fn ratio(percent: u32) -> Settings {
    Settings::new(Goal::UploadRatio(Share::percent(percent)), 0.5)
}

fn fixed(threshold: f64) -> Policy {
    Policy::new(Settings::new(Goal::Threshold, threshold))
}

fn goals() -> [Goal; 4] {
    let ratio = Share::percent(20);
    [
        Goal::Threshold,
        Goal::UploadRatio(ratio),
        Goal::TrackedRatio { ratio, step: crate::quantile::STEP },
        Goal::Agreement(Share::percent(90)),
    ]
}

/// Uploads of `samples` uniform confidences.
fn run(policy: &mut Policy, samples: u32, route: Route, seed: u64) -> u32 {
    let mut random = Uniform::new(seed);
    let upload = |_| {
        let confidence = random.next();
        u32::from(policy.decide(Ok(confidence), route, random.next()).is_upload())
    };
    (0..samples).map(upload).sum()
}

#[test]
fn threshold_decides_strictly_below_it() {
    let mut policy = fixed(0.5);
    assert_eq!(policy.decide(Ok(0.499), Route::Open, 0.0), Decision::Hard);
    assert_eq!(policy.decide(Ok(0.5), Route::Open, 0.0), Decision::Easy);
}

#[test]
fn sample_without_confidence_is_unjudged_with_its_reason() {
    for goal in goals() {
        let mut policy = Policy::new(Settings::new(goal, 1.0));
        let before = policy.state.controller.clone();
        for (signal, reason) in [
            (Err(Unjudged::Missing), Unjudged::Missing),
            (Ok(f64::NAN), Unjudged::NotFinite),
            (Ok(f64::INFINITY), Unjudged::NotFinite),
        ] {
            assert_eq!(policy.decide(signal, Route::Open, 0.0), Decision::Unjudged(reason));
        }
        assert_eq!(policy.state.controller, before, "{goal:?}");
    }
}

#[test]
fn first_samples_are_decided_by_the_threshold() {
    let mut policy = Policy::new(ratio(20));
    for sample in 0..WARM_UP {
        assert!((policy.threshold() - 0.5).abs() < 1e-9);
        let confidence = if sample % 5 == 0 { 0.49 } else { 0.51 };
        let decision = policy.decide(Ok(confidence), Route::Open, 0.9);
        assert_eq!(decision.is_hard(), sample % 5 == 0, "{sample}");
    }
    assert!((policy.threshold() - 0.5).abs() > 1e-9, "the histogram decides now");
}

#[test]
fn ratio_is_held_from_the_first_sample_without_reaching_the_cap() {
    type Order = fn(u32) -> f64;
    let orders: [(&str, Order); 5] = [
        ("constant, below the threshold", |_| 0.1),
        ("constant, above it", |_| 0.9),
        ("falling", |sample| 1.0 - f64::from(sample) / 1e4),
        ("alternating", |sample| f64::from(sample % 2)),
        ("steps", |sample| f64::from(sample / 700 % 3) / 3.0),
    ];
    for percent in [0, 1, 20, 60, 100] {
        for (name, order) in orders {
            let (mut policy, mut random) = (Policy::new(ratio(percent)), Uniform::new(1));
            let mut uploads = 0;
            for sample in 0..10_000 {
                let decision = policy.decide(Ok(order(sample)), Route::Open, random.next());
                assert_ne!(decision, Decision::OverBudget, "{percent} {name}");
                uploads += u32::from(decision.is_upload());
            }
            let expected = percent * 100;
            assert!(uploads.abs_diff(expected) <= 8, "{percent} {name}: {uploads}");
        }
    }
}

#[test]
fn hard_sample_over_the_cap_is_answered_by_the_edge() {
    let settings =
        Settings { max_ratio: Share::percent(10), ..Settings::new(Goal::Threshold, 1.0) };
    let mut policy = Policy::new(settings);
    let decisions: Vec<_> = (0..1_000).map(|_| policy.decide(Ok(0.0), Route::Open, 0.0)).collect();
    let uploads = decisions.iter().filter(|decision| decision.is_upload()).count();
    // A tenth, and the burst of 50, of which the first sample finds the bucket full.
    assert_eq!(uploads, 149);
    assert!(decisions.iter().all(|decision| decision.is_hard()));
    let last = decisions[900..].iter().filter(|decision| **decision == Decision::OverBudget);
    assert_eq!(last.count(), 90);
}

#[test]
fn easy_sample_is_easy_also_without_a_cloud_that_can_be_asked() {
    for (route, of_hard) in
        [(Route::CloudLeftAlone, Decision::Fallback), (Route::NoTime, Decision::Deadline)]
    {
        let mut policy = Policy::new(Settings::new(Goal::Threshold, 0.5));
        assert_eq!(policy.decide(Ok(0.9), route, 0.0), Decision::Easy);
        assert_eq!(policy.decide(Ok(0.1), route, 0.0), of_hard);
    }
}

#[test]
fn controllers_are_frozen_while_the_cloud_is_left_alone_or_samples_are_pinned() {
    for goal in goals() {
        let mut policy = Policy::new(Settings::new(goal, 0.5));
        run(&mut policy, 2_000, Route::Open, 1);
        let before = policy.state.controller.clone();
        let mut random = Uniform::new(2);
        for _ in 0..1_000 {
            let low = random.next() / 4.0;
            let decision = policy.decide(Ok(low), Route::CloudLeftAlone, random.next());
            assert!(matches!(decision, Decision::Fallback | Decision::Easy));
            assert_eq!(policy.decide(Ok(low), Route::Pinned, 0.0), Decision::Pinned);
            let decision = policy.decide(Ok(low), Route::NoTime, random.next());
            assert!(matches!(decision, Decision::Deadline | Decision::Easy));
            assert!(!policy.take_shadow(Route::CloudLeftAlone, 0.0));
            assert!(!policy.take_shadow(Route::NoTime, 0.0));
        }
        assert_eq!(policy.state.controller, before, "{goal:?}");
    }
}

#[test]
fn reconnect_after_an_outage_has_no_burst() {
    let mut policy = Policy::new(ratio(20));
    run(&mut policy, 5_000, Route::Open, 1);
    run(&mut policy, 20_000, Route::CloudLeftAlone, 2);
    let uploads = run(&mut policy, 500, Route::Open, 3);
    assert!(uploads <= 115, "{uploads} of 500");
}

#[test]
fn shadows_are_their_share_of_easy_samples_within_the_ratio() {
    let mut policy = Policy::new(ratio(20));
    let mut random = Uniform::new(1);
    let (mut hard, mut shadows, mut easy) = (0, 0, 0);
    for _ in 0..20_000 {
        match policy.decide(Ok(random.next()), Route::Open, random.next()) {
            Decision::Hard => hard += 1,
            Decision::Easy => {
                easy += 1;
                shadows += u32::from(policy.take_shadow(Route::Open, random.next()));
            }
            _ => {}
        }
    }
    assert!((3_960..=4_040).contains(&(hard + shadows)), "{hard} + {shadows}");
    assert!((250..=400).contains(&shadows) && easy > 15_000, "{shadows} of {easy}");
}

#[test]
fn upload_that_was_not_sent_is_not_counted() {
    let settings = Settings { max_ratio: Share::ZERO, ..Settings::new(Goal::Threshold, 1.0) };
    let mut policy = Policy::new(settings);
    for _ in 0..200 {
        assert_eq!(policy.decide(Ok(0.0), Route::Open, 0.0), Decision::Hard);
        policy.uploaded(0.0, Upload::NotSent);
    }
    assert!((policy.tokens() - 50.0).abs() < 1e-9);
}

#[test]
fn upload_that_was_not_sent_is_owed_again() {
    let mut policy = Policy::new(ratio(20));
    run(&mut policy, 2_000, Route::Open, 1);
    let mut random = Uniform::new(2);
    let sent = (0..20_000).filter(|at| {
        let confidence = random.next();
        let is_hard = policy.decide(Ok(confidence), Route::Open, random.next()).is_upload();
        let is_sent = at % 2 == 0;
        if is_hard && !is_sent {
            policy.uploaded(confidence, Upload::NotSent);
        }
        is_hard && is_sent
    });
    // Half of the samples cannot be sent: the others have the whole share.
    let sent = sent.count();
    assert!((3_900..=4_100).contains(&sent), "{sent} of 20,000");
}

#[test]
fn sample_that_the_edge_cannot_answer_goes_to_the_cloud_within_the_cap() {
    let settings = Settings { max_ratio: Share::ZERO, ..Settings::new(Goal::Threshold, 0.5) };
    let mut policy = Policy::new(settings);
    assert_eq!(policy.decide_edge_down(Route::Pinned), Decision::Pinned);
    assert_eq!(policy.decide_edge_down(Route::CloudLeftAlone), Decision::Fallback);
    let uploads = (0..100).filter(|_| policy.decide_edge_down(Route::Open) == Decision::EdgeDown);
    assert_eq!(uploads.count(), 50);
    assert_eq!(policy.decide_edge_down(Route::Open), Decision::OverBudget);
}

#[test]
fn shadows_and_uploads_give_an_agreement_and_its_drift() {
    let mut policy = Policy::new(Settings::new(Goal::UploadRatio(Share::percent(20)), 0.2));
    assert_eq!(policy.agreement(), None);
    let mut random = Uniform::new(4);
    for sample in 0..20_000 {
        let confidence = random.next();
        match policy.decide(Ok(confidence), Route::Open, random.next()) {
            Decision::Hard => policy.uploaded(confidence, Upload::Answered(Some(false))),
            Decision::Easy if policy.take_shadow(Route::Open, random.next()) => {
                let rate = if sample < 12_000 { 0.05 } else { 0.5 };
                policy.shadowed(confidence, random.next() >= rate);
            }
            _ => {}
        }
        if sample == 12_000 {
            let estimate = policy.agreement().unwrap();
            assert!(
                (estimate.interval.low..=estimate.interval.high).contains(&0.96),
                "{estimate:?}"
            );
            assert!(!policy.disagreement_drift().is_drifting());
        }
    }
    assert!(policy.disagreement_drift().is_drifting() && !policy.confidence_drift().is_drifting());
}

#[test]
fn agreement_leaves_out_fallbacks_and_samples_above_the_cap() {
    let mut policy = Policy::new(Settings {
        shadow_ratio: Share::percent(10),
        max_ratio: Share::ZERO,
        ..Settings::new(Goal::Threshold, 0.5)
    });
    assert_eq!(policy.decide(Ok(0.9), Route::Open, 0.0), Decision::Easy);
    assert!(policy.take_shadow(Route::Open, 0.0));
    policy.shadowed(0.9, false);
    let before = policy.agreement();
    let decisions = (0..200).map(|_| {
        let decision = policy.decide(Ok(0.1), Route::Open, 0.0);
        if decision.is_upload() {
            policy.uploaded(0.1, Upload::Failed);
        }
        decision
    });
    assert!(decisions.filter(|decision| *decision == Decision::OverBudget).count() > 0);
    assert_eq!(policy.decide(Ok(0.1), Route::CloudLeftAlone, 0.0), Decision::Fallback);
    assert_eq!(policy.agreement(), before);
    policy.uploaded(0.1, Upload::Answered(None));
    assert_ne!(policy.agreement(), before, "an answer of the cloud counts");
}

#[test]
fn agreement_goal_lowers_the_threshold_with_agreeing_comparisons() {
    let mut policy = Policy::new(Settings::new(Goal::Agreement(Share::percent(90)), 0.5));
    let mut random = Uniform::new(4);
    assert_eq!(policy.decide(Ok(0.99), Route::Open, 0.0), Decision::Hard, "nothing is known");
    for _ in 0..10_000 {
        let confidence = random.next();
        if policy.decide(Ok(confidence), Route::Open, random.next()) == Decision::Hard {
            policy.uploaded(confidence, Upload::Answered(Some(confidence > 0.5)));
        } else if policy.take_shadow(Route::Open, random.next()) {
            policy.shadowed(confidence, confidence > 0.5);
        }
    }
    assert!((0.4..=0.57).contains(&policy.threshold()), "{}", policy.threshold());
}

#[test]
fn another_goal_starts_a_new_controller_and_keeps_the_rest() {
    let mut policy = Policy::new(ratio(20));
    run(&mut policy, 5_000, Route::Open, 1);
    let resumed = Policy::resume(Settings::new(Goal::Threshold, 0.5), policy.state.clone());
    assert_eq!(resumed.state.controller, Controller::Threshold);
    assert_eq!(resumed.confidence_drift(), policy.confidence_drift());
}

#[test]
fn damaged_state_starts_without_knowledge() {
    let mut policy = Policy::new(ratio(20));
    run(&mut policy, 100, Route::Open, 1);
    let mut json = serde_json::to_value(policy.state()).unwrap();
    json["controller"]["uploadRatio"]["budget"]["confidences"]["weights"] =
        serde_json::json!([1, 2]);
    json["confidenceDrift"]["reference"] = serde_json::json!([]);
    json["agreement"]["blocks"] = serde_json::json!([
        {"shadows": 1, "disagreed": 2, "easy": 0, "answered": 0}
    ]);
    let saved: PolicyState = serde_json::from_value(json).unwrap();
    let resumed = Policy::resume(ratio(20), saved);
    assert_eq!(
        resumed,
        Policy {
            state: PolicyState { cap: resumed.state.cap.clone(), ..Policy::new(ratio(20)).state },
            settings: ratio(20)
        }
    );
}

#[test]
fn cap_survives_another_version_of_the_model() {
    let mut policy = Policy::new(Settings::new(Goal::Threshold, 0.5));
    for _ in 0..30 {
        assert_eq!(policy.decide(Ok(0.1), Route::Open, 0.5), Decision::Hard);
    }
    let left = policy.tokens();
    policy.forget_model();
    assert!((policy.tokens() - left).abs() < 1e-9 && left < 50.0, "{left}");
    assert_eq!(policy.agreement(), None);
}

proptest! {
    // Each case runs all goals.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn resumed_policy_decides_like_an_uninterrupted_one(
        samples in prop::collection::vec((0.0..=1.0_f64, 0.0..1.0_f64, any::<bool>()), 2..400),
        stop in 0_usize..400,
    ) {
        for goal in goals() {
            let settings = Settings::new(goal, 0.5);
            let mut whole = Policy::new(settings);
            let mut resumed = whole.clone();
            for (index, (confidence, random, agreed)) in samples.iter().enumerate() {
                if index == stop {
                    let text = serde_json::to_string(resumed.state()).unwrap();
                    resumed = Policy::resume(settings, serde_json::from_str(&text).unwrap());
                }
                let decisions = [&mut whole, &mut resumed].map(|policy| {
                    let decision = policy.decide(Ok(*confidence), Route::Open, *random);
                    if decision == Decision::Hard {
                        policy.uploaded(*confidence, Upload::Answered(Some(*agreed)));
                    } else if policy.take_shadow(Route::Open, random / 8.0) {
                        policy.shadowed(*confidence, *agreed);
                    }
                    decision
                });
                prop_assert_eq!(decisions[0], decisions[1]);
            }
            prop_assert_eq!(&whole, &resumed);
        }
    }

    /// Any routes, signals and results, for each goal.
    #[test]
    fn uploads_never_exceed_the_cap_in_any_window(
        percent in 0_u32..=100,
        steps in prop::collection::vec((prop::num::f64::ANY, 0_u8..6, 0.0..1.0_f64), 1..300),
    ) {
        for goal in goals() {
            let max_ratio = Share::percent(percent);
            let settings = Settings { max_ratio, shadow_ratio: Share::percent(50), ..Settings::new(goal, 0.9) };
            let mut policy = Policy::new(settings);
            let mut uploads = Vec::new();
            for (confidence, action, random) in &steps {
                let confidence = if *action == 5 { *confidence } else { *random };
                let route = match action { 0 => Route::Pinned, 1 => Route::CloudLeftAlone, _ => Route::Open };
                let decision = match action {
                    2 => policy.decide_edge_down(route),
                    _ => policy.decide(Ok(confidence), route, *random),
                };
                let shadow = decision == Decision::Easy && policy.take_shadow(route, *random);
                uploads.push(f64::from(u8::from(decision.is_upload() || shadow)));
            }
            let (mut begin, mut lowest) = (0.0_f64, 0.0_f64);
            // Uploads above the rate since the lowest point are at most the depth.
            for upload in uploads {
                begin += upload - max_ratio.get();
                prop_assert!(begin - lowest <= f64::from(DEPTH) + 1e-6);
                lowest = lowest.min(begin);
            }
        }
    }
}

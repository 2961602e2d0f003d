//! Chooses the model of an edge worker among the Models that labels select.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use neptune_api::{MeasuredDataset, NotComparedModel, SelectionCause, SelectionMode};

use crate::joint_inference_service::selection::rules::SelectionRules;

/// Maximum number of models in a status that are not compared.
const MAX_NOT_COMPARED: usize = 16;

/// How long a model is no candidate after it failed, unless its file changes.
pub const FAILED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// A Model that the labels select.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidate {
    /// Name of the Model.
    pub name: String,
    /// The value of the metric, if a worker or a training reported it.
    pub metric: Option<f64>,
    /// When the metrics of the Model were measured.
    pub updated: Option<Timestamp>,
    /// The data that its metrics were measured with; `None` if it is not known.
    pub data: Option<MeasuredDataset>,
    /// Whether every node of the worker has the file.
    pub is_present: bool,
    /// Whether its file failed within [`FAILED_FOR`].
    pub has_failed: bool,
    /// Whether format and inputs equal those of the current model.
    pub fits: bool,
}

/// The model in the status.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Current<'a> {
    /// Name of the Model.
    pub name: &'a str,
    /// Since when the Model is the choice.
    pub since: Timestamp,
}

/// The Model that the worker should use, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The name of the Model.
    pub name: String,
    /// Why it replaces the current one; `None` if it is the current one.
    pub switch: Option<(SelectionCause, String)>,
    /// When to choose again if nothing changes.
    pub replan_at: Option<Timestamp>,
    /// The candidates whose metric was measured with other data, by name.
    pub not_compared: Vec<NotComparedModel>,
}

/// Chooses the model. `None` if there is no candidate.
///
/// The current model stays while it is a candidate and no other is better by the margin, and for
/// the dwell time in any case. It is replaced at once if it is no candidate any more or has failed.
/// Models that are not on the nodes are chosen only if nothing serves yet. A metric that was measured
/// with other data than the reference counts as not measured.
#[must_use]
pub fn choose_model(
    candidates: &[Candidate],
    current: Option<Current>,
    rules: &SelectionRules,
    now: Timestamp,
) -> Option<Choice> {
    let Some(reference) = reference(candidates, current) else {
        return choose_by_metric(candidates, current, rules, now);
    };
    let is_other = |it: &Candidate| it.metric.is_some() && identity(it) != identity(reference);
    let comparable =
        |it: &Candidate| Candidate { metric: it.metric.filter(|_| !is_other(it)), ..it.clone() };
    let comparable: Vec<_> = candidates.iter().map(comparable).collect();
    let mut choice = choose_by_metric(&comparable, current, rules, now)?;
    let others = candidates.iter().filter(|it| is_other(it));
    choice.not_compared = others.map(|other| not_compared(other, reference, rules)).collect();
    choice.not_compared.sort_by(|a, b| a.name.cmp(&b.name));
    choice.not_compared.truncate(MAX_NOT_COMPARED);
    if let Some((_, text)) = &mut choice.switch
        && !choice.not_compared.is_empty()
    {
        let names: Vec<_> = choice.not_compared.iter().map(|it| it.name.as_str()).collect();
        *text = format!("{text}; not compared, measured with other data: {}", names.join(", "));
    }
    Some(choice)
}

/// The candidate whose data decides which metrics are compared: the current one, or else the one
/// with the newest metric among those that can be chosen. `None` if nothing is measured.
fn reference<'a>(candidates: &'a [Candidate], current: Option<Current>) -> Option<&'a Candidate> {
    let measured = || candidates.iter().filter(|candidate| candidate.metric.is_some());
    let incumbent = current.and_then(|current| {
        measured().find(|candidate| candidate.name == current.name && !candidate.has_failed)
    });
    incumbent.or_else(|| {
        measured().max_by(|a, b| {
            let usable = |it: &Candidate| (!it.has_failed, it.fits, it.is_present, it.updated);
            usable(a).cmp(&usable(b)).then_with(|| b.name.cmp(&a.name))
        })
    })
}

/// What identifies the data of the metric. Unknown data equals unknown data.
fn identity(candidate: &Candidate) -> Option<&str> {
    candidate.data.as_ref().and_then(MeasuredDataset::identity)
}

fn not_compared(
    other: &Candidate,
    reference: &Candidate,
    rules: &SelectionRules,
) -> NotComparedModel {
    let message = format!(
        "{} was measured with {}, and that of {} with {}; measure both with the same data",
        rules.best,
        data_of(other),
        reference.name,
        data_of(reference)
    );
    NotComparedModel { name: other.name.clone(), message }
}

fn data_of(candidate: &Candidate) -> String {
    let Some(MeasuredDataset { name, sha256, state }) = &candidate.data else {
        return "unknown data".to_owned();
    };
    match (sha256, state) {
        (Some(sha256), _) => format!("Dataset {name:?} (sha256 {sha256})"),
        (None, Some(state)) => format!("Dataset {name:?} ({state})"),
        (None, None) => format!("an unknown state of Dataset {name:?}"),
    }
}

/// Chooses among candidates whose metrics are comparable.
fn choose_by_metric(
    candidates: &[Candidate],
    current: Option<Current>,
    rules: &SelectionRules,
    now: Timestamp,
) -> Option<Choice> {
    let Some(current) = current else { return first_choice(candidates, rules) };
    let keep = |replan_at| Choice {
        name: current.name.to_owned(),
        switch: None,
        replan_at,
        not_compared: Vec::new(),
    };
    let others = || candidates.iter().filter(|other| other.name != current.name);
    let incumbent = candidates.iter().find(|candidate| candidate.name == current.name);
    let Some(incumbent) = incumbent.filter(|incumbent| !incumbent.has_failed) else {
        let usable = others().filter(|other| !other.has_failed && other.fits);
        let Some(next) = best(usable, rules) else {
            // A failed model may recover; a missing one cannot be served.
            return incumbent.map(|_| keep(None));
        };
        let (cause, why) = match incumbent {
            Some(_) => (SelectionCause::Failed, "failed"),
            None => (SelectionCause::Missing, "is no candidate any more"),
        };
        let text = format!("{} replaces {}, which {why}", described(next, rules), current.name);
        return Some(switch(next, cause, text));
    };
    let usable = others().filter(|other| {
        other.is_present && !other.has_failed && other.fits && other.metric.is_some()
    });
    let Some(next) = best(usable, rules) else { return Some(keep(None)) };
    let gain = match (next.metric, incumbent.metric) {
        (Some(next), Some(incumbent)) => rank(next, rules) - rank(incumbent, rules),
        _ => f64::INFINITY,
    };
    if gain <= 0.0 || gain < rules.margin {
        return Some(keep(None));
    }
    let may_switch_at = current.since.checked_add(rules.dwell).unwrap_or(Timestamp::MAX);
    if now < may_switch_at {
        return Some(keep(Some(may_switch_at)));
    }
    let text = match incumbent.metric {
        Some(_) => format!(
            "{} beats {} by {} (margin {})",
            described(next, rules),
            value_of(incumbent),
            short(gain),
            short(rules.margin)
        ),
        None => format!("{}; {} has no such metric", described(next, rules), incumbent.name),
    };
    Some(switch(next, SelectionCause::Better, text))
}

/// The choice of a service that has none yet.
fn first_choice(candidates: &[Candidate], rules: &SelectionRules) -> Option<Choice> {
    let first = best(candidates.iter(), rules)?;
    let text = match first.metric {
        Some(_) => format!("{} is the best at the start", described(first, rules)),
        None => format!("{} is the first choice: no candidate has {}", first.name, rules.best),
    };
    Some(switch(first, SelectionCause::First, text))
}

fn switch(to: &Candidate, cause: SelectionCause, text: String) -> Choice {
    Choice {
        name: to.name.clone(),
        switch: Some((cause, text)),
        replan_at: None,
        not_compared: Vec::new(),
    }
}

/// The best candidate: usable before failed, present before missing, then by metric, then the newer
/// metrics, then by name.
fn best<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    rules: &SelectionRules,
) -> Option<&'a Candidate> {
    candidates.max_by(|a, b| {
        let value =
            |it: &Candidate| it.metric.map_or(f64::NEG_INFINITY, |metric| rank(metric, rules));
        (!a.has_failed)
            .cmp(&!b.has_failed)
            .then(a.is_present.cmp(&b.is_present))
            .then(value(a).total_cmp(&value(b)))
            .then(a.updated.cmp(&b.updated))
            .then_with(|| b.name.cmp(&a.name))
    })
}

/// The value of a metric, such that a higher one is better.
fn rank(metric: f64, rules: &SelectionRules) -> f64 {
    match rules.mode {
        SelectionMode::Max => metric,
        SelectionMode::Min => -metric,
    }
}

fn described(candidate: &Candidate, rules: &SelectionRules) -> String {
    match candidate.metric {
        Some(_) => format!("{} {}", rules.best, value_of(candidate)),
        None => candidate.name.clone(),
    }
}

fn value_of(candidate: &Candidate) -> String {
    candidate.metric.map_or_else(
        || candidate.name.clone(),
        |metric| format!("{} of {}", short(metric), candidate.name),
    )
}

/// Formats a number with at most six decimals, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::joint_inference_service::selection::fixtures::accuracy;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn candidate(name: &str, metric: f64) -> Candidate {
        Candidate {
            name: name.to_owned(),
            metric: Some(metric),
            updated: Some(at(0)),
            data: None,
            is_present: true,
            has_failed: false,
            fits: true,
        }
    }

    fn chosen(candidates: &[Candidate], current: &str, now: i64) -> Choice {
        let current = Current { name: current, since: at(0) };
        choose_model(candidates, Some(current), &accuracy(), at(now)).unwrap()
    }

    #[test]
    fn better_model_replaces_the_current_one_after_the_dwell_time() {
        let models = [candidate("v6", 0.938), candidate("v7", 0.951)];
        let waits = chosen(&models, "v6", 599);
        assert_eq!((waits.name.as_str(), waits.switch), ("v6", None));
        assert_eq!(waits.replan_at, Some(at(600)));
        let switched = chosen(&models, "v6", 600);
        assert_eq!(switched.name, "v7");
        let (cause, text) = switched.switch.unwrap();
        assert_eq!(cause, SelectionCause::Better);
        assert_eq!(text, "accuracy 0.951 of v7 beats 0.938 of v6 by 0.013 (margin 0.005)");
        assert_eq!(chosen(&models, "v7", 1_000).switch, None);
    }

    #[test]
    fn difference_below_the_margin_or_of_zero_keeps_the_current_model() {
        let close = [candidate("a", 0.940), candidate("b", 0.944)];
        let kept = chosen(&close, "a", 10_000);
        assert_eq!((kept.name.as_str(), kept.replan_at), ("a", None));
        let equal = [candidate("a", 0.9), candidate("b", 0.9)];
        let no_margin = SelectionRules { margin: 0.0, ..accuracy() };
        let current = Current { name: "b", since: at(0) };
        let choice = choose_model(&equal, Some(current), &no_margin, at(10_000)).unwrap();
        assert_eq!((choice.name.as_str(), choice.switch), ("b", None));
    }

    #[test]
    fn lowest_value_is_the_best_in_mode_min() {
        let rules = SelectionRules { mode: SelectionMode::Min, best: "loss".into(), ..accuracy() };
        let models = [candidate("a", 0.30), candidate("b", 0.21)];
        let current = Current { name: "a", since: at(0) };
        let choice = choose_model(&models, Some(current), &rules, at(600)).unwrap();
        assert_eq!(
            choice.switch.unwrap().1,
            "loss 0.21 of b beats 0.3 of a by 0.09 (margin 0.005)"
        );
    }

    #[test]
    fn missing_or_failed_model_is_replaced_at_once() {
        let models = [candidate("a", 0.5), candidate("b", 0.9)];
        let missing = chosen(&models, "gone", 1);
        assert_eq!(
            missing.switch,
            Some((
                SelectionCause::Missing,
                "accuracy 0.9 of b replaces gone, which is no candidate any more".to_owned()
            ))
        );
        let failed = [Candidate { has_failed: true, ..candidate("b", 0.9) }, candidate("a", 0.5)];
        let choice = chosen(&failed, "b", 1);
        assert_eq!(choice.name, "a");
        assert_eq!(choice.switch.unwrap().0, SelectionCause::Failed);
        // A failed model is not chosen again, and stays if there is no other.
        assert_eq!(chosen(&failed, "a", 10_000).switch, None);
        assert_eq!(chosen(&failed[..1], "b", 10_000).switch, None);
        assert_eq!(
            choose_model(&[], Some(Current { name: "b", since: at(0) }), &accuracy(), at(1)),
            None
        );
    }

    #[test]
    fn model_that_is_absent_or_does_not_fit_is_no_replacement() {
        let with = |other: Candidate| chosen(&[candidate("a", 0.5), other], "a", 10_000).name;
        assert_eq!(with(candidate("b", 0.9)), "b");
        assert_eq!(with(Candidate { is_present: false, ..candidate("b", 0.9) }), "a");
        assert_eq!(with(Candidate { fits: false, ..candidate("b", 0.9) }), "a");
        assert_eq!(with(Candidate { metric: None, ..candidate("b", 0.9) }), "a");
    }

    fn measured_with(name: &str, metric: f64, digest: &str) -> Candidate {
        let data = MeasuredDataset {
            name: "test".to_owned(),
            sha256: Some(digest.to_owned()),
            state: None,
        };
        Candidate { data: Some(data), ..candidate(name, metric) }
    }

    #[test]
    fn metric_of_other_data_counts_as_not_measured() {
        let models = [measured_with("v6", 0.9, "aa"), measured_with("v7", 0.99, "bb")];
        let kept = chosen(&models, "v6", 10_000);
        assert_eq!((kept.name.as_str(), &kept.switch), ("v6", &None));
        let [other] = &kept.not_compared[..] else { unreachable!() };
        assert_eq!(
            (other.name.as_str(), other.message.as_str()),
            (
                "v7",
                "accuracy was measured with Dataset \"test\" (sha256 bb), and that of v6 with Dataset \"test\" (sha256 aa); measure both with the same data"
            )
        );
        // The same data under another name is the same data.
        let mut renamed = measured_with("v8", 0.95, "aa");
        renamed.data.as_mut().unwrap().name = "copy".to_owned();
        let three = [models[0].clone(), models[1].clone(), renamed];
        let switched = chosen(&three, "v6", 10_000);
        assert_eq!(switched.name, "v8");
        assert_eq!(
            switched.switch.unwrap().1,
            "accuracy 0.95 of v8 beats 0.9 of v6 by 0.05 (margin 0.005); not compared, measured with other data: v7"
        );
    }

    #[test]
    fn unknown_data_is_compared_with_unknown_data_only() {
        let known = measured_with("known", 0.99, "aa");
        let changed = Candidate {
            data: Some(MeasuredDataset { name: "test".to_owned(), ..MeasuredDataset::default() }),
            ..candidate("changed", 0.98)
        };
        let models = [candidate("a", 0.5), known.clone(), changed.clone(), candidate("b", 0.9)];
        let switched = chosen(&models, "a", 10_000);
        assert_eq!(switched.name, "changed", "a state that is not known is unknown data");
        let messages: Vec<_> =
            switched.not_compared.iter().map(|it| (&*it.name, &*it.message)).collect();
        let message = "accuracy was measured with Dataset \"test\" (sha256 aa), and that of a with unknown data; measure both with the same data";
        assert_eq!(messages, [("known", message)]);
        let of_known = chosen(&[known, changed], "known", 10_000);
        assert!(
            of_known.not_compared[0].message.contains("with an unknown state of Dataset \"test\"")
        );
    }

    #[test]
    fn newest_metric_decides_the_data_without_a_measured_current_model() {
        let newer = Candidate { updated: Some(at(9)), ..measured_with("b", 0.6, "bb") };
        let models = [measured_with("a", 0.9, "aa"), newer, measured_with("c", 0.5, "bb")];
        let first = choose_model(&models, None, &accuracy(), at(0)).unwrap();
        assert_eq!(first.name, "b");
        assert_eq!(
            first.switch.unwrap().1,
            "accuracy 0.6 of b is the best at the start; not compared, measured with other data: a"
        );
        assert_eq!(chosen(&models, "gone", 1).name, "b");
        let unmeasured = Candidate { metric: None, data: None, ..candidate("d", 0.0) };
        let with = [models.to_vec(), vec![unmeasured]].concat();
        assert_eq!(chosen(&with, "d", 600).name, "b");
        // An absent model does not decide while one of other data can be chosen.
        let absent = Candidate {
            is_present: false,
            updated: Some(at(99)),
            ..measured_with("e", 0.99, "ee")
        };
        assert_eq!(chosen(&[with, vec![absent]].concat(), "d", 600).name, "b");
    }

    #[test]
    fn first_choice_prefers_present_then_metric_then_newer_then_name() {
        let first = |models: &[Candidate]| choose_model(models, None, &accuracy(), at(0)).unwrap();
        let absent = Candidate { is_present: false, ..candidate("a", 0.9) };
        assert_eq!(first(&[absent.clone(), candidate("b", 0.5)]).name, "b");
        assert_eq!(first(&[candidate("a", 0.5), candidate("b", 0.6)]).name, "b");
        let newer = Candidate { updated: Some(at(9)), ..candidate("b", 0.5) };
        assert_eq!(first(&[candidate("a", 0.5), newer]).name, "b");
        assert_eq!(first(&[candidate("b", 0.5), candidate("a", 0.5)]).name, "a");
        let unknown = first(&[Candidate { metric: None, ..absent }]);
        assert_eq!(unknown.switch.unwrap().1, "a is the first choice: no candidate has accuracy");
        assert_eq!(choose_model(&[], None, &accuracy(), at(0)), None);
    }

    /// Follows the choices over steps of ten seconds. Returns the time and the cause of each.
    fn followed(
        steps: impl Iterator<Item = Vec<Candidate>>,
        rules: &SelectionRules,
    ) -> Vec<(i64, SelectionCause)> {
        let mut current: Option<(String, Timestamp)> = None;
        let mut switches = Vec::new();
        for (step, candidates) in steps.enumerate() {
            let second = i64::try_from(step).unwrap() * 10;
            let known = current.as_ref().map(|(name, since)| Current { name, since: *since });
            let Some(choice) = choose_model(&candidates, known, rules, at(second)) else {
                continue;
            };
            if let Some((cause, _)) = choice.switch {
                switches.push((second, cause));
                current = Some((choice.name, at(second)));
            }
        }
        switches
    }

    /// A candidate whose metric has one of three data, of which one is unknown.
    fn any_data((number, (metric, data, updated)): (usize, (f64, u8, i64))) -> Candidate {
        let name = format!("m{number}");
        let base = match data {
            0 => candidate(&name, metric),
            data => measured_with(&name, metric, &data.to_string()),
        };
        Candidate { updated: Some(at(updated)), ..base }
    }

    /// Uniform numbers from -1 to 1 (splitmix64). Faster than strategies for a million steps.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let high = u32::try_from((z ^ (z >> 31)) >> 32).unwrap();
            f64::from(high) / f64::from(u32::MAX) * 2.0 - 1.0
        }
    }

    proptest! {
        // 10,000 walks.
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn better_metrics_switch_at_most_once_per_dwell_time(
            seed in any::<u64>(), count in 2usize..6, margin in 0.0..0.05f64, dwell in 0i64..900,
        ) {
            let rules =
                SelectionRules { margin, dwell: SignedDuration::from_secs(dwell), ..accuracy() };
            let mut noise = noise(seed);
            let mut values = vec![0.5; count];
            let steps = (0..100).map(|_| {
                let mut models = Vec::new();
                for (number, value) in values.iter_mut().enumerate() {
                    *value += 0.1 * noise();
                    models.push(candidate(&format!("m{number}"), *value));
                }
                models
            });
            let switches = followed(steps, &rules);
            prop_assert_eq!(switches[0].1, SelectionCause::First);
            for pair in switches.windows(2) {
                prop_assert_eq!(pair[1].1, SelectionCause::Better);
                prop_assert!(pair[1].0 - pair[0].0 >= dwell, "{:?}", pair);
            }
        }

        #[test]
        fn better_metric_is_always_one_of_the_same_data(
            models in prop::collection::vec((0.0..1.0f64, 0u8..3, 0i64..3), 2..7),
            current in 0usize..7,
        ) {
            let models: Vec<_> = models.into_iter().enumerate().map(any_data).collect();
            let name = format!("m{current}");
            let known = Current { name: &name, since: at(0) };
            let choice = choose_model(&models, Some(known), &accuracy(), at(10_000)).unwrap();
            let by_name = |name: &str| models.iter().find(|it| it.name == name);
            let chosen = by_name(&choice.name).unwrap();
            if let Some((SelectionCause::Better, _)) = choice.switch {
                let before = by_name(&name).unwrap();
                prop_assert_eq!(identity(chosen), identity(before));
                prop_assert!(chosen.metric > before.metric);
            }
            for other in &models {
                let is_listed = choice.not_compared.iter().any(|it| it.name == other.name);
                prop_assert_eq!(is_listed, identity(other) != identity(chosen));
            }
        }

        #[test]
        fn restart_between_any_two_steps_changes_no_choice(
            values in prop::collection::vec((0.0..1.0f64, 0u8..3, 0i64..3), 1..6),
            since in 0i64..1_000, now in 1_000i64..2_000, current in 0usize..6,
        ) {
            let models: Vec<_> = values.into_iter().enumerate().map(any_data).collect();
            let name = format!("m{current}");
            let known = Current { name: &name, since: at(since) };
            let choice = choose_model(&models, Some(known), &accuracy(), at(now)).unwrap();
            let since = if choice.switch.is_some() { now } else { since };
            let again = Current { name: &choice.name, since: at(since) };
            let mut reversed = models.clone();
            reversed.reverse();
            let after = choose_model(&reversed, Some(again), &accuracy(), at(now)).unwrap();
            prop_assert_eq!((after.name, after.switch), (choice.name.clone(), None));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn jitter_below_half_the_margin_causes_no_switch_in_10000_steps(
            seed in any::<u64>(), base in 0.1..0.9f64, count in 2usize..6,
        ) {
            let rules = SelectionRules { dwell: SignedDuration::ZERO, ..accuracy() };
            let mut noise = noise(seed);
            let mut jitter = || noise() * 0.005 * 0.499;
            let steps = (0..10_000).map(|_| {
                let models = 0..count;
                models.map(|n| candidate(&format!("m{n}"), base + jitter())).collect()
            });
            let switches = followed(steps, &rules);
            prop_assert_eq!(switches.len(), 1, "only the first choice: {:?}", switches);
        }
    }
}

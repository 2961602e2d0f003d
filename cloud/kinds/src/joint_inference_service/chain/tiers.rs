//! Services that are chained by `cloudWorker.service`: loops, the names of the tiers, and which
//! share of the samples each tier answered.

use neptune_api::TierStatus;
use neptune_wire::Counters;

/// Services that are followed; a chain that works is shorter.
pub const MAX_FOLLOWED: usize = 64;

/// Decimals of a share.
const WHOLE: u64 = 10_000;

/// The services that a chain leads through, the first one first. `next` has the service that one
/// names. A loop ends before a name is repeated.
pub fn follow_chain(first: &str, mut next: impl FnMut(&str) -> Option<String>) -> Vec<String> {
    let mut names = vec![first.to_owned()];
    while let Some(name) = next(names.last().map_or(first, |last| last.as_str())) {
        if names.contains(&name) || names.len() >= MAX_FOLLOWED {
            break;
        }
        names.push(name);
    }
    names
}

/// The text of a loop through the first of these services, if the last one names it.
pub fn loop_text(names: &[String], next_of_last: Option<&str>) -> Option<String> {
    let first = names.first().filter(|first| next_of_last == Some(first.as_str()))?;
    Some(format!(
        "jointinferenceservices {} -> {first}: this is a loop; point one of them elsewhere",
        names.join(" -> ")
    ))
}

/// How many samples of the first service each tier answered. `names` are those of the tiers, the
/// first one first. The shares have four decimals, and their sum is exactly 1.
pub fn tier_statuses(names: &[String], totals: &Counters) -> Vec<TierStatus> {
    if names.len() < 2 || totals.inference == 0 {
        return Vec::new();
    }
    let above = totals.tiers.counts();
    let mut answered = vec![0; names.len()];
    for (distance, count) in above.iter().enumerate() {
        let tier = &mut answered[(distance + 1).min(names.len() - 1)];
        *tier = u64::saturating_add(*tier, *count);
    }
    answered[0] = totals.inference.saturating_sub(totals.tiers.sum());
    let shares = shares(&answered);
    let tier = |((service, answered), share): ((&String, u64), u64)| TierStatus {
        service: service.clone(),
        answered,
        share: format!("{}.{:04}", share / WHOLE, share % WHOLE),
    };
    names.iter().zip(answered).zip(shares).map(tier).collect()
}

/// The shares in ten-thousandths by the largest remainder, so that their sum is 1.
fn shares(counts: &[u64]) -> Vec<u64> {
    let sum: u128 = counts.iter().map(|count| u128::from(*count)).sum::<u128>().max(1);
    let scaled = |count: &u64| u128::from(*count) * u128::from(WHOLE);
    let floor = |count: &u64| u64::try_from(scaled(count) / sum).unwrap_or(WHOLE);
    let mut shares: Vec<u64> = counts.iter().map(floor).collect();
    let missing = WHOLE.saturating_sub(shares.iter().sum());
    let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
    by_remainder.sort_by_key(|at| std::cmp::Reverse(scaled(&counts[*at]) % sum));
    for at in by_remainder.into_iter().take(usize::try_from(missing).unwrap_or_default()) {
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn chain(edges: &[(&str, &str)], first: &str) -> (Vec<String>, Option<String>) {
        let edges: BTreeMap<_, _> = edges.iter().copied().collect();
        let next = |name: &str| edges.get(name).map(|next| (*next).to_owned());
        let names = follow_chain(first, next);
        let text = loop_text(&names, names.last().and_then(|last| next(last)).as_deref());
        (names, text)
    }

    #[test]
    fn loop_over_any_number_of_services_is_found_from_each_of_them() {
        let three = [("a", "b"), ("b", "c"), ("c", "a"), ("x", "a")];
        let text = |loop_: &str| {
            format!("jointinferenceservices {loop_}: this is a loop; point one of them elsewhere")
        };
        assert_eq!(chain(&three, "a").1, Some(text("a -> b -> c -> a")));
        assert_eq!(chain(&three, "c").1, Some(text("c -> a -> b -> c")));
        assert_eq!(chain(&three, "x").1, None, "the loop is that of the others");
        assert_eq!(chain(&[("a", "a")], "a").1, Some(text("a -> a")));
        let (names, text) = chain(&[("a", "b"), ("b", "c")], "a");
        assert_eq!((names.join(" "), text), ("a b c".to_owned(), None));
    }

    #[test]
    fn samples_of_unknown_tiers_count_for_the_last_known_one() {
        let names = ["cam", "box", "box/cloud"].map(str::to_owned);
        let totals = Counters {
            inference: 600,
            tiers: [90, 29, 1].into_iter().collect(),
            ..Counters::default()
        };
        let rows: Vec<_> = tier_statuses(&names, &totals)
            .into_iter()
            .map(|tier| format!("{} {} {}", tier.service, tier.answered, tier.share))
            .collect();
        assert_eq!(rows, ["cam 480 0.8000", "box 90 0.1500", "box/cloud 30 0.0500"]);
        assert_eq!(tier_statuses(&names, &Counters::default()), []);
        assert_eq!(tier_statuses(&names[..1], &totals), []);
    }

    proptest! {
        #[test]
        fn shares_sum_to_exactly_one(counts in prop::collection::vec(0_u64..1 << 53, 1..9)) {
            prop_assume!(counts.iter().any(|count| *count > 0));
            let shares = shares(&counts);
            prop_assert_eq!(shares.iter().sum::<u64>(), WHOLE, "{:?}", shares);
        }

        #[test]
        fn loops_are_found_in_random_graphs(next in prop::collection::vec(prop::option::of(0_usize..12), 12)) {
            let name = |at: usize| format!("s{at}");
            let after = |service: &str| {
                let at: usize = service.trim_start_matches('s').parse().ok()?;
                next[at].map(name)
            };
            for first in 0..12 {
                let names = follow_chain(&name(first), after);
                let text = loop_text(&names, after(&names[names.len() - 1]).as_deref());
                let mut at = next[first];
                let mut returns = false;
                for _ in 0..12 {
                    let Some(current) = at else { break };
                    returns |= current == first;
                    at = next[current];
                }
                prop_assert_eq!(text.is_some(), returns, "{:?}", names);
            }
        }
    }
}

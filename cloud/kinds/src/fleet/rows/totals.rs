//! Counters in the form of a status.

use neptune_api::CounterTotals;
use neptune_wire::Counters;

/// The counters of a status.
pub fn counters_in(totals: &CounterTotals) -> Counters {
    Counters {
        inference: totals.inference_number,
        hard: totals.hard_example_number,
        fallback: totals.fallback_number,
        decided_hard: totals.hard_number,
        over_budget: totals.over_budget_number,
        unjudged: totals.unjudged_number,
        shadow: totals.shadow_number,
        deadline: totals.deadline_number,
        tiers: totals.tier_numbers.iter().copied().collect(),
    }
}

/// The counters in the form of a status.
pub fn totals_in(counters: Counters) -> CounterTotals {
    CounterTotals {
        inference_number: counters.inference,
        hard_example_number: counters.hard,
        fallback_number: counters.fallback,
        hard_number: counters.decided_hard,
        over_budget_number: counters.over_budget,
        unjudged_number: counters.unjudged,
        shadow_number: counters.shadow,
        deadline_number: counters.deadline,
        tier_numbers: counters.tiers.counts().to_vec(),
    }
}

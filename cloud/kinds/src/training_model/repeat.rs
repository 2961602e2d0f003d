//! Decides the weights that a run is repeated with after the aggregator lost its files.

use neptune_wire::aggregator::InitialWeights;

use super::frozen::{CurrentRun, FrozenRun};
use crate::{finding::Finding, reason::Reason};

/// What is known of weights outside the lost volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Origins<'a> {
    /// The digest of the weights that the current round began with.
    pub base: Option<&'a str>,
    /// The files that Models name.
    pub models: &'a [InitialWeights],
    /// The URL of the aggregator, as `https://host:port`. What it served is lost.
    pub aggregator: Option<&'a str>,
}

/// What the next run is started with: the weights of the current round if a file outside the lost
/// volume has their digest, else the first weights of the run.
///
/// # Errors
/// The first weights were only on the lost volume.
pub fn repeated(current: &CurrentRun, origins: Origins<'_>) -> Result<FrozenRun, Finding> {
    let mut frozen = current.frozen.clone();
    // The weights in use are lost too.
    if let Some(evaluation) = &mut frozen.settings.evaluation {
        evaluation.present = None;
    }
    let first = frozen.settings.initial.clone();
    let outside_copy = |sha256: &str| {
        let mut known = first.iter().chain(origins.models);
        known.find(|it| it.sha256 == sha256 && is_outside(it, origins.aggregator)).cloned()
    };
    if let Some(base) = origins.base.and_then(outside_copy) {
        frozen.settings.initial = Some(base);
        return Ok(frozen);
    }
    let Some(first) = &first else { return Ok(frozen) };
    frozen.settings.initial =
        Some(outside_copy(&first.sha256).ok_or_else(|| lost(current, first))?);
    Ok(frozen)
}

/// Whether the file is not one that the aggregator served.
fn is_outside(weights: &InitialWeights, aggregator: Option<&str>) -> bool {
    let Some(url) = &weights.url else { return false };
    let address = aggregator.and_then(|url| url.strip_prefix("https://"));
    !address.is_some_and(|address| {
        url.strip_prefix("http://")
            .and_then(|url| url.strip_prefix(address))
            .is_some_and(|path| path.starts_with('/'))
    })
}

fn lost(current: &CurrentRun, first: &InitialWeights) -> Finding {
    let message = format!(
        "the aggregator lost its files, and run {} began with weights that only it had ({}); set spec.initialWeights to a copy of them, or remove spec.initialWeights to train from the beginning",
        current.number, first.sha256
    );
    Finding::new(Reason::ContentLost, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::training_model::{fixtures, validate::check};

    const AGGREGATOR: &str = "https://192.0.2.7:8418";

    fn weights(url: &str, digit: &str) -> InitialWeights {
        InitialWeights { url: Some(url.to_owned()), sha256: digit.repeat(64) }
    }

    fn current(initial: Option<InitialWeights>) -> CurrentRun {
        let mut frozen = check(&fixtures::model(), &fixtures::facts()).unwrap();
        frozen.settings.initial = initial;
        CurrentRun {
            number: 3,
            frozen,
            started: Timestamp::UNIX_EPOCH,
            is_over: false,
            is_stopped: false,
            was_accepted: true,
        }
    }

    fn initial(
        first: Option<InitialWeights>,
        base: &str,
        models: &[InitialWeights],
    ) -> Result<Option<InitialWeights>, Finding> {
        let base = base.repeat(64);
        let origins = Origins { base: Some(&base), models, aggregator: Some(AGGREGATOR) };
        repeated(&current(first), origins).map(|frozen| frozen.settings.initial)
    }

    #[test]
    fn run_is_repeated_with_the_newest_weights_outside_the_volume() {
        let first = weights("https://h/w.npz", "a");
        let own = weights("http://192.0.2.7:8418/v1/content/b", "b");
        let copy = weights("http://h/copy.npz", "b");
        let initial_with = |base, models: &[_]| initial(Some(first.clone()), base, models).unwrap();
        assert_eq!(initial_with("a", &[]), Some(first.clone()), "round 1");
        assert_eq!(
            initial_with("b", &[]),
            Some(first.clone()),
            "nobody has the weights of the round"
        );
        assert_eq!(initial_with("b", std::slice::from_ref(&own)), Some(first.clone()), "lost too");
        assert_eq!(initial_with("b", &[own, copy.clone()]), Some(copy));
        let longer = weights("http://192.0.2.7:84181/x", "b");
        assert_eq!(initial_with("b", std::slice::from_ref(&longer)), Some(longer), "another port");
        assert_eq!(initial(None, "b", &[]).unwrap(), None, "the first worker makes them");
    }

    #[test]
    fn first_weights_of_the_lost_volume_need_a_copy() {
        let own = weights("http://192.0.2.7:8418/v1/content/a", "a");
        let copy = weights("https://h/a.npz", "a");
        let chosen = initial(Some(own.clone()), "b", std::slice::from_ref(&copy)).unwrap();
        assert_eq!(chosen, Some(copy));
        let lost = initial(Some(own.clone()), "b", &[own]).unwrap_err();
        assert_eq!(lost.reason, Reason::ContentLost);
        assert!(lost.message.contains("run 3 began"), "{}", lost.message);
    }
}

//! Counts samples, and describes in headers who answered them and why.

use hyper::header::{HeaderName, HeaderValue};
use neptune_cascade::{Signal, policy::Decision};

use super::Exchange;
use crate::{
    decision::Outcome,
    server::Answer,
    upstream::{AWAY, DECISION, PATH, UPPER, UpperSample, path_header},
};

const ANSWERED_BY: HeaderName = HeaderName::from_static("x-neptune-answered-by");
const CONFIDENCE: HeaderName = HeaderName::from_static("x-neptune-confidence");
const INFO: HeaderName = HeaderName::from_static("x-neptune-info");
/// Larger batches are described as a whole.
const MAX_LISTED: usize = 256;

/// How the samples of a request were answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    answered_by: String,
    decision: String,
    confidence: Option<String>,
    /// How the samples came through the chain of gateways, if there is one.
    path: Option<HeaderValue>,
    /// Whether this gateway does not call its own cloud, for the gateway that asked.
    is_away: bool,
}

impl Verdict {
    /// Describes the outcomes, and the least confidence.
    pub fn from_outcomes(outcomes: &[Outcome], signals: Option<&[Signal]>) -> Self {
        let least = signals.and_then(least).and_then(Result::ok);
        Self {
            answered_by: listed(outcomes, |outcome| outcome.side()),
            decision: listed(outcomes, |outcome| outcome.as_str()),
            confidence: least.map(|confidence| format!("{confidence:.4}")),
            path: None,
            is_away: false,
        }
    }

    /// Returns the side that answered, per row.
    pub fn answered_by(&self) -> &str {
        &self.answered_by
    }

    /// Adds the headers with the side, the decision and the confidence.
    pub fn describe(&self, answer: &mut Answer) {
        let confidence = self.confidence.as_deref().map(|value| (CONFIDENCE, value));
        let described = [(ANSWERED_BY, &*self.answered_by), (DECISION, &*self.decision)];
        for (name, value) in described.into_iter().chain(confidence) {
            if let Ok(value) = HeaderValue::from_str(value) {
                answer.headers_mut().insert(name, value);
            }
        }
        if let Some(path) = &self.path {
            answer.headers_mut().insert(PATH, path.clone());
        }
        if self.is_away {
            answer.headers_mut().insert(UPPER, AWAY);
        }
    }

    /// Adds a sentence for the reader of the answer.
    pub fn explain(answer: &mut Answer, text: &'static str) {
        answer.headers_mut().insert(INFO, HeaderValue::from_static(text));
    }

    /// Returns the verdict as a comment of an event stream.
    pub fn comment(&self) -> String {
        let Self { answered_by, decision, confidence, .. } = self;
        let confidence = confidence.as_deref().unwrap_or("none");
        format!(": answered-by={answered_by} decision={decision} confidence={confidence}\n\n")
    }
}

/// One text if all are equal, else one per sample.
fn listed(outcomes: &[Outcome], text: impl Fn(&Outcome) -> &'static str) -> String {
    let mut texts = outcomes.iter().map(&text);
    let first = texts.next().unwrap_or("edge");
    if texts.all(|text| text == first) {
        first.to_owned()
    } else if outcomes.len() > MAX_LISTED {
        "mixed".to_owned()
    } else {
        outcomes.iter().map(text).collect::<Vec<_>>().join(",")
    }
}

/// The least confidence; without any, the reason of the first sample.
pub fn least(signals: &[Signal]) -> Option<Signal> {
    let confidences = signals.iter().filter_map(|signal| signal.ok());
    let least = confidences.min_by(f64::total_cmp).map(Ok);
    least.or_else(|| signals.first().copied())
}

impl Exchange {
    /// Counts answered samples. The comparisons of another gateway are none.
    pub(super) fn count(&self, outcomes: &[Outcome]) {
        if self.hops.is_shadow {
            return;
        }
        if self.service.config.id.is_none() {
            self.gateway.count(outcomes, &[], self.client());
            return;
        }
        let above = self.upper.samples(answered_above(outcomes));
        let tiers: Vec<usize> = above.iter().map(|sample| sample.distance).collect();
        self.gateway.count(outcomes, &tiers, self.client());
        let metrics = &self.gateway.metrics;
        for outcome in outcomes {
            metrics.tier(&self.service.config.service, outcome.as_str());
        }
        for (tier, decision) in above.iter().flat_map(UpperSample::entries) {
            metrics.tier(tier, decision);
        }
    }

    /// How so many samples that the cloud answered count: a gateway in its place may show that no
    /// gateway above got help.
    pub(super) fn of_cloud(&self, decision: Decision, count: usize) -> Vec<Outcome> {
        if self.service.config.id.is_none() {
            return vec![Outcome::Cloud(decision); count];
        }
        let outcome = |sample: UpperSample<'_>| {
            if sample.has_fallen_back { Outcome::FallbackAbove } else { Outcome::Cloud(decision) }
        };
        self.upper.samples(count).into_iter().map(outcome).collect()
    }

    /// Describes the outcomes of this request, in a chain with those of the gateways above.
    pub(super) fn verdict(&self, outcomes: &[Outcome], signals: Option<&[Signal]>) -> Verdict {
        let verdict = Verdict::from_outcomes(outcomes, signals);
        let config = &self.service.config;
        if config.id.is_none() {
            return verdict;
        }
        let mut above = self.upper.samples(answered_above(outcomes)).into_iter();
        let samples = outcomes.iter().map(|outcome| {
            let above = if outcome.is_from_cloud() { above.next() } else { None };
            (outcome.as_str(), above)
        });
        let path = path_header(&config.service, samples);
        let is_away = self.hops.is_passed_on() && self.gateway.cloud_state().is_away();
        Verdict { path, is_away, ..verdict }
    }
}

/// The samples that the cloud answered.
fn answered_above(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.is_from_cloud()).count()
}

#[cfg(test)]
mod tests {
    use neptune_cascade::Unjudged;

    use super::*;

    #[test]
    fn rows_are_listed_unless_they_are_equal_or_many() {
        let (edge, cloud) = (Outcome::Edge(Decision::Easy), Outcome::Cloud(Decision::Hard));
        let signals = [Ok(0.9), Err(Unjudged::Empty), Ok(0.25)];
        let verdict = Verdict::from_outcomes(&[edge, cloud, Outcome::Fallback], Some(&signals));
        assert_eq!(verdict.answered_by, "edge,cloud,edge");
        assert_eq!(verdict.decision, "easy,hard,fallback");
        assert_eq!(verdict.confidence.as_deref(), Some("0.2500"));
        assert_eq!(Verdict::from_outcomes(&[edge; 300], None).answered_by, "edge");
        let mut many = vec![edge; 300];
        many[7] = cloud;
        assert_eq!(Verdict::from_outcomes(&many, None).answered_by, "mixed");
        assert_eq!(least(&[Err(Unjudged::Empty)]), Some(Err(Unjudged::Empty)));
    }
}

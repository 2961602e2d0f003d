//! Counts samples, and describes in headers who answered them and why.

use hyper::header::{HeaderName, HeaderValue};
use neptune_cascade::Signal;

use super::Exchange;
use crate::{decision::Outcome, server::Answer};

const ANSWERED_BY: HeaderName = HeaderName::from_static("x-neptune-answered-by");
const DECISION: HeaderName = HeaderName::from_static("x-neptune-decision");
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
}

impl Verdict {
    /// Describes the outcomes, and the least confidence.
    pub fn of(outcomes: &[Outcome], signals: Option<&[Signal]>) -> Self {
        let least = signals.and_then(least).and_then(Result::ok);
        Self {
            answered_by: listed(outcomes, |outcome| outcome.side()),
            decision: listed(outcomes, |outcome| outcome.as_str()),
            confidence: least.map(|confidence| format!("{confidence:.4}")),
        }
    }

    /// Who answered, per row.
    pub fn answered_by(&self) -> &str {
        &self.answered_by
    }

    /// Adds the headers.
    pub fn describe(&self, answer: &mut Answer) {
        let confidence = self.confidence.as_deref().map(|value| (CONFIDENCE, value));
        let described = [(ANSWERED_BY, &*self.answered_by), (DECISION, &*self.decision)];
        for (name, value) in described.into_iter().chain(confidence) {
            if let Ok(value) = HeaderValue::from_str(value) {
                answer.headers_mut().insert(name, value);
            }
        }
    }

    /// Adds a sentence for the reader of the answer.
    pub fn explain(answer: &mut Answer, text: &'static str) {
        answer.headers_mut().insert(INFO, HeaderValue::from_static(text));
    }

    /// As a comment of a stream.
    pub fn comment(&self) -> String {
        let Self { answered_by, decision, confidence } = self;
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
        if !self.hops.is_shadow {
            self.gateway.count(outcomes);
        }
    }
}

#[cfg(test)]
mod tests {
    use neptune_cascade::{Unjudged, policy::Decision};

    use super::*;

    #[test]
    fn rows_are_listed_unless_they_are_equal_or_many() {
        let (edge, cloud) = (Outcome::Edge(Decision::Easy), Outcome::Cloud(Decision::Hard));
        let signals = [Ok(0.9), Err(Unjudged::Empty), Ok(0.25)];
        let verdict = Verdict::of(&[edge, cloud, Outcome::Fallback], Some(&signals));
        assert_eq!(verdict.answered_by, "edge,cloud,edge");
        assert_eq!(verdict.decision, "easy,hard,fallback");
        assert_eq!(verdict.confidence.as_deref(), Some("0.2500"));
        assert_eq!(Verdict::of(&[edge; 300], None).answered_by, "edge");
        let mut many = vec![edge; 300];
        many[7] = cloud;
        assert_eq!(Verdict::of(&many, None).answered_by, "mixed");
        assert_eq!(least(&[Err(Unjudged::Empty)]), Some(Err(Unjudged::Empty)));
    }
}

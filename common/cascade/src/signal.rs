//! What an output of the edge's model yields: a confidence, or the reason why there is none.

use std::fmt;

/// A confidence: the higher, the surer. A sample is hard if it is below the threshold.
///
/// Confidences are from 0 to 1. Rounding, and probabilities that do not add up to 1, can give a
/// value slightly below 0; the controllers treat it as 0.
pub type Signal = Result<f64, Unjudged>;

/// Why a sample has no confidence. Such a sample is answered by the edge and counted on its own: a
/// broken edge model must not overload the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unjudged {
    /// No classes, boxes or tokens.
    Empty,
    /// A value that has to be finite is infinite or not a number.
    NotFinite,
    /// A probability or score outside 0..=1, or a log-probability above 0.
    OutOfRange,
    /// A distribution over one class is always sure.
    SingleClass,
    /// A box without a score.
    Malformed,
    /// The answer has no scores or log-probabilities, or fewer alternatives than the signal needs.
    Missing,
    /// Requests of this kind, or for this model, are not decided.
    Undecided,
    /// None of the labels is among the alternatives of the first token.
    NoLabel,
}

impl Unjudged {
    /// The reason as text, for logs and headers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "the output is empty",
            Self::NotFinite => "a value is infinite or not a number",
            Self::OutOfRange => "a value is out of range",
            Self::SingleClass => "there is only one class",
            Self::Malformed => "a box has no score",
            Self::Missing => "scores or log-probabilities are missing",
            Self::Undecided => "such requests are not decided",
            Self::NoLabel => "none of the labels is among the alternatives",
        }
    }
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Unjudged {}

/// Checks numbers that have to be from 0 to 1.
pub(crate) fn check_units(values: &[f64]) -> Result<(), Unjudged> {
    if values.is_empty() {
        return Err(Unjudged::Empty);
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Err(Unjudged::NotFinite);
    }
    if values.iter().any(|value| !(0.0..=1.0).contains(value)) {
        return Err(Unjudged::OutOfRange);
    }
    Ok(())
}

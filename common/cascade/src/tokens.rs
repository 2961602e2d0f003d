//! Confidence of a language model, from the log-probabilities of its answer's tokens.
//!
//! The caller passes the tokens of the answer only: those of reasoning, of the syntax of tool calls
//! and the stop token are left out.

use crate::number::{count, length};
use crate::signal::{Signal, Unjudged};

/// Log-probabilities above 0 by less than this are 0: servers round.
const ROUNDING: f64 = 1e-3;

/// One token of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token<'a> {
    /// The natural logarithm of its probability, at most 0.
    pub logprob: f64,
    /// The most probable tokens at its place, in any order, with their log-probabilities. It may
    /// contain the token itself. Empty if the server gives none.
    pub top: &'a [(&'a str, f64)],
}

/// Which confidence is computed from the log-probabilities l of n tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenSignal {
    /// exp(Σ l / n), the geometric mean of the probabilities. The default: zero-shot it is as good
    /// as trained routers, and better out of distribution (arXiv 2605.02241).
    Mean,
    /// exp(min l): the least sure token decides.
    Min,
    /// exp(Q(l)) with the quantile Q of this share, 0 to 1, by nearest rank: of sorted l, the one
    /// at ceil(share n). Not biased by length, unlike sums (Chow-Quantile, arXiv 2404.10136).
    Quantile(f64),
    /// Mean of p1 - p2, the probabilities of the two most probable tokens. Needs two alternatives
    /// per token.
    Margin,
    /// For classification: the probability of the best label when only the labels count, at the
    /// first token. The probabilities of tokens that belong to a label are added. A label that is
    /// not among the alternatives is at most as probable as the least of them, and counts as much.
    Choice(Vec<String>),
}

impl TokenSignal {
    /// The confidence of an answer with these tokens, in order. An answer that the limit of tokens
    /// ended is judged by the tokens that it has: it is what the client gets.
    ///
    /// # Errors
    /// No tokens, a log-probability that is not finite or above 0, missing alternatives, or none
    /// that belongs to a label.
    pub fn confidence(&self, tokens: &[Token<'_>]) -> Signal {
        if tokens.is_empty() {
            return Err(Unjudged::Empty);
        }
        match self {
            Self::Mean => {
                let all = logprobs(tokens)?;
                Ok((all.iter().sum::<f64>() / length(all.len())).exp())
            }
            Self::Min => Ok(logprobs(tokens)?.into_iter().fold(0.0, f64::min).exp()),
            Self::Quantile(share) => quantile(logprobs(tokens)?, *share).map(f64::exp),
            Self::Margin => margin(tokens),
            Self::Choice(labels) => choice(tokens[0].top, labels),
        }
    }
}

fn logprobs(tokens: &[Token<'_>]) -> Result<Vec<f64>, Unjudged> {
    tokens.iter().map(|token| checked(token.logprob)).collect()
}

fn checked(logprob: f64) -> Result<f64, Unjudged> {
    match logprob {
        l if !l.is_finite() => Err(Unjudged::NotFinite),
        l if l > ROUNDING => Err(Unjudged::OutOfRange),
        l => Ok(l.min(0.0)),
    }
}

/// A share outside 0..=1, or not a number, is the nearest one: the least or the greatest value.
fn quantile(mut values: Vec<f64>, share: f64) -> Signal {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to the number of values after clamping; the cast turns NaN into 0"
    )]
    let rank = (share.clamp(0.0, 1.0) * length(values.len())).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().ok_or(Unjudged::Empty)
}

fn margin(tokens: &[Token<'_>]) -> Signal {
    let mut sum = 0.0;
    for token in tokens {
        if token.top.len() < 2 {
            return Err(Unjudged::Missing);
        }
        let mut greatest = [f64::NEG_INFINITY; 2];
        for (_, logprob) in token.top {
            let logprob = checked(*logprob)?;
            if logprob > greatest[0] {
                greatest = [logprob, greatest[0]];
            } else {
                greatest[1] = greatest[1].max(logprob);
            }
        }
        sum += greatest[0].exp() - greatest[1].exp();
    }
    Ok(sum / length(tokens.len()))
}

fn choice(top: &[(&str, f64)], labels: &[String]) -> Signal {
    match labels.len() {
        0 => return Err(Unjudged::NoLabel),
        1 => return Err(Unjudged::SingleClass),
        _ if top.is_empty() => return Err(Unjudged::Missing),
        _ => {}
    }
    let mut sums: Vec<Option<f64>> = vec![None; labels.len()];
    let mut least = 1.0_f64;
    for (text, logprob) in top {
        let probability = checked(*logprob)?.exp();
        least = least.min(probability);
        if let Some(label) = label_of(text, labels) {
            *sums[label].get_or_insert(0.0) += probability;
        }
    }
    if sums.iter().all(Option::is_none) {
        return Err(Unjudged::NoLabel);
    }
    let best = sums.iter().flatten().copied().fold(0.0, f64::max);
    let total: f64 = sums.iter().map(|sum| sum.unwrap_or(least)).sum();
    // All probabilities can be too small for an f64.
    if total > 0.0 { Ok((best / total).min(1.0)) } else { Ok(1.0 / count(labels.len() as u64)) }
}

/// The label that a token begins, without regard to case and surrounding space. A token that begins
/// several labels belongs to none, unless it is all of one.
fn label_of(token: &str, labels: &[String]) -> Option<usize> {
    let token = token.trim().to_lowercase();
    if token.is_empty() {
        return None;
    }
    let lower = |label: &String| label.trim().to_lowercase();
    if let Some(whole) = labels.iter().position(|label| lower(label) == token) {
        return Some(whole);
    }
    let mut begun = labels.iter().enumerate().filter(|(_, label)| lower(label).starts_with(&token));
    match (begun.next(), begun.next()) {
        (Some((label, _)), None) => Some(label),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn plain(logprobs: &[f64]) -> Vec<Token<'static>> {
        logprobs.iter().map(|logprob| Token { logprob: *logprob, top: &[] }).collect()
    }

    fn judge(signal: &TokenSignal, tokens: &[Token<'_>]) -> Signal {
        signal.confidence(tokens)
    }

    fn yes_or_no() -> TokenSignal {
        TokenSignal::Choice(vec!["Yes".to_owned(), "No".to_owned()])
    }

    fn close(signal: Signal, expected: f64) {
        assert!((signal.unwrap() - expected).abs() < 1e-9, "{signal:?}, expected {expected}");
    }

    #[test]
    fn mean_min_and_quantile_are_probabilities() {
        let tokens = plain(&[0.5_f64.ln(), 0.125_f64.ln(), 1.0_f64.ln()]);
        close(judge(&TokenSignal::Mean, &tokens), (0.5 * 0.125_f64).cbrt());
        close(judge(&TokenSignal::Min, &tokens), 0.125);
        for (share, expected) in [(0.0, 0.125), (0.1, 0.125), (0.5, 0.5), (1.0, 1.0), (7.0, 1.0)] {
            close(judge(&TokenSignal::Quantile(share), &tokens), expected);
        }
        close(judge(&TokenSignal::Quantile(f64::NAN), &tokens), 0.125);
    }

    #[test]
    fn margin_is_the_mean_difference_of_the_two_most_probable_tokens() {
        let (first, second) = (
            [("a", 0.7_f64.ln()), ("b", 0.2_f64.ln())],
            [("c", 0.4_f64.ln()), ("d", 0.5_f64.ln())],
        );
        let tokens = [Token { logprob: -0.1, top: &first }, Token { logprob: -0.1, top: &second }];
        close(judge(&TokenSignal::Margin, &tokens), 0.3);
        let alone = [("a", -0.1)];
        let tokens = [Token { logprob: -0.1, top: &alone }];
        assert_eq!(judge(&TokenSignal::Margin, &tokens), Err(Unjudged::Missing));
    }

    #[test]
    fn choice_is_the_probability_of_the_best_label_among_the_labels() {
        for (top, expected) in [
            (&[("Yes", 0.6), ("No", 0.2), ("Maybe", 0.1)][..], 0.75),
            (&[(" yes", 0.5), ("YES", 0.25), ("n", 0.25)], 0.75),
            (&[("Ye", 0.8), ("No", 0.2)], 0.8),
            // "No" is not listed: it has at most the 0.1 of "Sure".
            (&[("Yes", 0.4), ("Sure", 0.1)], 0.8),
        ] {
            let top: Vec<_> = top.iter().map(|(text, p)| (*text, f64::ln(*p))).collect();
            close(judge(&yes_or_no(), &[Token { logprob: -0.1, top: &top }]), expected);
        }
    }

    #[test]
    fn token_that_begins_two_labels_belongs_to_none() {
        let labels = ["spam", "sport"].map(str::to_owned);
        assert_eq!(label_of("sp", &labels), None);
        assert_eq!(label_of("spo", &labels), Some(1));
        assert_eq!(label_of("", &labels), None);
        assert_eq!(label_of("a", &["a", "ab"].map(str::to_owned)), Some(0));
    }

    #[test]
    fn choice_without_labels_or_alternatives_is_unjudged() {
        let other = [("Perhaps", -0.1)];
        for (signal, top, reason) in [
            (yes_or_no(), &other[..], Unjudged::NoLabel),
            (yes_or_no(), &[], Unjudged::Missing),
            (TokenSignal::Choice(vec![]), &other, Unjudged::NoLabel),
            (TokenSignal::Choice(vec!["Yes".to_owned()]), &other, Unjudged::SingleClass),
            (yes_or_no(), &[("Yes", f64::NAN)], Unjudged::NotFinite),
        ] {
            assert_eq!(judge(&signal, &[Token { logprob: -0.1, top }]), Err(reason), "{signal:?}");
        }
        close(judge(&yes_or_no(), &[Token { logprob: 0.0, top: &[("Yes", -1e300)] }]), 0.5);
    }

    #[test]
    fn invalid_answers_are_unjudged_with_their_reason() {
        for signal in [TokenSignal::Mean, TokenSignal::Min, TokenSignal::Quantile(0.1)] {
            for (logprobs, reason) in [
                (&[][..], Unjudged::Empty),
                (&[-0.1, f64::NAN], Unjudged::NotFinite),
                (&[f64::NEG_INFINITY, -0.1], Unjudged::NotFinite),
                (&[0.5], Unjudged::OutOfRange),
            ] {
                assert_eq!(judge(&signal, &plain(logprobs)), Err(reason), "{signal:?}");
            }
        }
        close(judge(&TokenSignal::Mean, &plain(&[1e-7])), 1.0);
    }

    proptest! {
        #[test]
        fn no_answer_fails(
            values in prop::collection::vec((prop::num::f64::ANY, prop::num::f64::ANY), 0..6),
            share in prop::num::f64::ANY,
        ) {
            let tops: Vec<_> = values.iter().map(|(a, b)| [("Yes", *a), ("x", *b)]).collect();
            let tokens: Vec<_> = values
                .iter()
                .zip(&tops)
                .map(|((logprob, _), top)| Token { logprob: *logprob, top })
                .collect();
            for signal in [
                TokenSignal::Mean, TokenSignal::Min, TokenSignal::Quantile(share),
                TokenSignal::Margin, yes_or_no(),
            ] {
                if let Ok(confidence) = judge(&signal, &tokens) {
                    prop_assert!((0.0..=1.0).contains(&confidence), "{signal:?}: {confidence}");
                }
            }
        }
    }
}

//! The decisions of joint inference without code: how sure the edge's model is, which samples go to
//! the cloud, how many, and what to do while the cloud does not answer.
//!
//! Everything here is a value or a pure function. There is no clock, no random number generator and
//! no I/O: the caller passes the time and uniform numbers in [0, 1).
//!
//! # Guarantees
//! - No input makes a function panic. What cannot be judged is [`Unjudged`], with its reason.
//! - State that can be saved continues exactly like an uninterrupted run: sums are integers.
//! - The bounds that the modules name hold for any sequence of inputs.
//!
//! ```
//! use neptune_cascade::confidence::{ClassScores, ClassSignal};
//! use neptune_cascade::policy::{Decision, Goal, Policy, Route, Settings, Upload};
//! use neptune_cascade::Share;
//!
//! let ratio = Share::new(0.2).expect("a number from 0 to 1");
//! let mut policy = Policy::new(Settings::new(Goal::UploadRatio(ratio), 0.5));
//! // The edge's answer. 0.42 is a random number.
//! let signal = ClassSignal::CrossEntropy.confidence(&[0.4, 0.3, 0.3], ClassScores::Probabilities);
//! assert_eq!(policy.decide(signal, Route::Open, 0.42), Decision::Hard);
//! // The cloud's answer is the same class.
//! policy.uploaded(signal.unwrap_or_default(), Upload::Answered(Some(true)));
//! ```

#![deny(missing_docs)]

pub mod agreement;
pub mod binomial;
pub mod boxes;
pub mod breaker;
pub mod budget;
pub mod calibration;
pub mod cap;
pub mod compare;
pub mod confidence;
mod decayed;
pub mod drift;
pub mod floor;
#[cfg(test)]
mod golden;
mod number;
pub mod policy;
pub mod quantile;
pub mod rows;
mod signal;
pub mod sse;
#[cfg(test)]
mod testing;
pub mod tokens;
pub mod wilson;

pub use number::Share;
pub use signal::{Signal, Unjudged};

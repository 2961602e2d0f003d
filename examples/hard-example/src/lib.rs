//! Hard-example rules: they decide from the small model's output for a sample whether the big model
//! is asked.
//!
//! This crate only decides. It reads no environment and makes no calls; a worker passes the values
//! of `HEM_NAME` and `HEM_PARAMETERS` to [`Rule::new`] and each output to [`Rule::is_hard`]. The
//! formulas are those of `neptune-cascade`; this crate is what a worker of one's own needs of it.
//!
//! | `HEM_NAME` | parameters (default) | uses | hard when |
//! |---|---|---|---|
//! | `IBT` | `threshold_img` (0.5), `threshold_box` (0.5) | boxes | count(score <= `threshold_box`) / n >= 1 - `threshold_img` |
//! | `Threshold` | `threshold` (0.5) | boxes | mean(score) < `threshold` |
//! | `CrossEntropy` | `threshold_cross_entropy` (0.5) | class probabilities | 1 + Σ(p ln p) / ln n < `threshold_cross_entropy` |
//! | `Random` | `random_ratio` (0.3) | nothing | uniform number in [0, 1) < `random_ratio` |
//! | `CloudOnly`, `EdgeOnly` | none | nothing | always, never |
//!
//! Names, parameters, defaults and formulas are those of the rules that `KubeEdge` Sedna ships
//! (`lib/sedna/algorithms/hard_example_mining`), so that existing manifests keep their meaning. The
//! score that `CrossEntropy` compares is a confidence: 1 when one class has all the probability, 0
//! when all n classes are equally probable. Raising any threshold or ratio makes more samples hard.
//!
//! # Guarantees
//! - An invalid output is not hard, because a broken small model must not overload the big one: no
//!   boxes, no probabilities, a box with fewer than five numbers, a score or probability outside
//!   0..=1 or not a number.
//! - A distribution over one class is not hard (ln 1 = 0 would divide by zero), and p ln p is 0 at
//!   p = 0, its limit.
//! - Decisions are pure, except for `Random`, which keeps a generator.

mod generator;
mod parameters;
mod rule;

pub use parameters::Error;
pub use rule::{Prediction, Rule};

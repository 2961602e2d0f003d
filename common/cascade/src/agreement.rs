//! Estimates, without labels, how often the answers agree with the cloud's model.
//!
//! Some easy samples are also sent to the cloud: shadows. With the share d of shadows on which the
//! models disagree, and the share r of samples that the cloud answered,
//!
//! ```text
//! agreement = 1 - d (1 - r)
//! ```
//!
//! with Wilson's interval of d, over the last 512 shadows. It is agreement with the cloud's model,
//! not correctness. Samples that the edge answered because the cloud did not (fallbacks), or
//! because the cap was reached, are not in it: no shadow represents them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::number::count;
use crate::wilson::{Interval, Z_95, interval};

/// Shadows per block, and number of blocks. The estimate is of the last 448 to 512 shadows.
const BLOCK: u64 = 64;
const BLOCKS: usize = 8;
/// No honest block counts more samples.
const MAX_COUNT: u64 = 1 << 48;

/// Counts of the recent past. They can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Agreement {
    /// The blocks of shadows, the newest one last.
    blocks: VecDeque<Block>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    shadows: u64,
    disagreed: u64,
    /// Number of easy samples.
    easy: u64,
    /// Number of hard samples that the cloud answered.
    answered: u64,
}

/// An estimate of the agreement of the answers with the cloud's model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Share of samples whose answer agrees with the cloud's model, 0 to 1.
    pub agreement: f64,
    /// The 95 % confidence interval of the agreement.
    pub interval: Interval,
    /// Number of shadows from which it is estimated.
    pub shadows: u64,
}

impl Agreement {
    /// Whether a saved state can be continued.
    pub fn is_valid(&self) -> bool {
        let is_possible = |block: &Block| {
            block.disagreed <= block.shadows
                && block.shadows <= BLOCK
                && block.easy <= MAX_COUNT
                && block.answered <= MAX_COUNT
        };
        self.blocks.len() <= BLOCKS && self.blocks.iter().all(is_possible)
    }

    /// The edge answered an easy sample.
    pub fn easy(&mut self) {
        let block = self.current();
        block.easy = block.easy.saturating_add(1).min(MAX_COUNT);
    }

    /// The cloud answered a hard sample.
    pub fn answered(&mut self) {
        let block = self.current();
        block.answered = block.answered.saturating_add(1).min(MAX_COUNT);
    }

    /// The cloud answered a shadow.
    pub fn shadow(&mut self, agreed: bool) {
        let block = self.current();
        block.shadows = block.shadows.saturating_add(1);
        block.disagreed = block.disagreed.saturating_add(u64::from(!agreed));
        if block.shadows >= BLOCK {
            self.blocks.push_back(Block::default());
            if self.blocks.len() > BLOCKS {
                self.blocks.pop_front();
            }
        }
    }

    /// The estimate, or `None` without shadows.
    pub fn estimate(&self) -> Option<Estimate> {
        let sum =
            |part: fn(&Block) -> u64| self.blocks.iter().map(part).fold(0, u64::saturating_add);
        let shadows = sum(|block| block.shadows);
        if shadows == 0 {
            return None;
        }
        let (easy, answered) = (sum(|block| block.easy), sum(|block| block.answered));
        let kept = if easy + answered == 0 { 1.0 } else { count(easy) / count(easy + answered) };
        let (disagreed, trials) = (count(sum(|block| block.disagreed)), count(shadows));
        let Interval { low, high } = interval(disagreed, trials, Z_95);
        Some(Estimate {
            agreement: 1.0 - disagreed / trials * kept,
            interval: Interval { low: 1.0 - high * kept, high: 1.0 - low * kept },
            shadows,
        })
    }

    fn current(&mut self) -> &mut Block {
        if self.blocks.is_empty() {
            self.blocks.push_back(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Uniform;

    #[test]
    fn nothing_is_estimated_without_shadows() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.estimate(), None);
        agreement.easy();
        assert_eq!(agreement.estimate(), None);
        agreement.shadow(true);
        let estimate = agreement.estimate().unwrap();
        assert!(
            (estimate.agreement - 1.0).abs() < 1e-12 && estimate.interval.low < 0.3,
            "{estimate:?}"
        );
    }

    #[test]
    fn disagreement_counts_only_for_the_easy_share() {
        let mut agreement = Agreement::default();
        for sample in 0..100 {
            if sample < 20 {
                agreement.answered();
            } else {
                agreement.easy();
            }
            if sample >= 60 {
                agreement.shadow(sample != 60 && sample != 61);
            }
        }
        // 2 of 40 shadows disagree, and 80 % of the samples are easy.
        let estimate = agreement.estimate().unwrap();
        assert!((estimate.agreement - 0.96).abs() < 1e-12, "{estimate:?}");
        let (low, high) = (1.0 - 0.8 * 0.165_0, 1.0 - 0.8 * 0.013_8);
        assert!((estimate.interval.low - low).abs() < 1e-3, "{estimate:?}");
        assert!((estimate.interval.high - high).abs() < 1e-3, "{estimate:?}");
    }

    #[test]
    fn estimate_follows_the_last_512_shadows() {
        let mut agreement = Agreement::default();
        for shadow in 0..3_000 {
            agreement.easy();
            agreement.shadow(shadow < 1_500);
        }
        let estimate = agreement.estimate().unwrap();
        assert!(estimate.agreement.abs() < 1e-12, "{estimate:?}");
        assert!((448..=512).contains(&estimate.shadows), "{estimate:?}");
        assert!(agreement.is_valid());
    }

    /// The share of uploads is 0.2, 6 % of the easy samples disagree, and there are about 240
    /// shadows per run.
    #[test]
    fn actual_agreement_is_in_the_interval_in_93_of_100_runs() {
        let runs = (0..1_000).filter(|seed| {
            let mut random = Uniform::new(*seed);
            let mut agreement = Agreement::default();
            for _ in 0..3_000 {
                if random.next() < 0.2 {
                    agreement.answered();
                    continue;
                }
                agreement.easy();
                if random.next() < 0.1 {
                    agreement.shadow(random.next() >= 0.06);
                }
            }
            let Interval { low, high } = agreement.estimate().unwrap().interval;
            (low..=high).contains(&(1.0 - 0.06 * 0.8))
        });
        let runs = runs.count();
        assert!(runs >= 930, "{runs} of 1000");
    }

    #[test]
    fn damaged_counts_are_not_valid() {
        for block in [
            Block { disagreed: 1, ..Block::default() },
            Block { shadows: BLOCK + 1, ..Block::default() },
            Block { easy: u64::MAX, ..Block::default() },
        ] {
            assert!(!Agreement { blocks: [block].into() }.is_valid(), "{block:?}");
        }
        assert!(!Agreement { blocks: [Block::default(); BLOCKS + 1].into() }.is_valid());
    }

    #[test]
    fn saved_counts_continue_exactly() {
        let mut agreement = Agreement::default();
        for shadow in 0..500 {
            agreement.easy();
            agreement.shadow(shadow % 7 != 0);
        }
        let text = serde_json::to_string(&agreement).unwrap();
        assert_eq!(serde_json::from_str::<Agreement>(&text).unwrap(), agreement);
    }
}

//! The scores of a batch: the confidence of each row, and whether two rows agree.

use neptune_cascade::{
    Signal, Unjudged, boxes,
    compare::{DetectedBox, best_class, same_boxes, same_class},
};

use crate::config::Rule;

/// The least numbers of a box.
const MIN_BOX: usize = 5;

/// The scores of the rows of a batch. A row without readable scores is unjudged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    rows: Vec<Option<Row>>,
}

/// The numbers of one row; of boxes, with the numbers per box.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The numbers in order.
    pub numbers: Vec<f64>,
    /// Size of the last dimension: of boxes, the numbers per box.
    pub width: usize,
}

impl Scores {
    /// The scores of rows.
    pub const fn new(rows: Vec<Option<Row>>) -> Self {
        Self { rows }
    }

    /// No scores, for as many rows.
    pub fn missing(rows: usize) -> Self {
        Self { rows: vec![None; rows] }
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// The rows that are chosen.
    #[must_use]
    pub fn select(&self, chosen: &[usize]) -> Self {
        Self { rows: chosen.iter().map(|row| self.rows.get(*row).cloned().flatten()).collect() }
    }

    /// The class with the greatest score of a row, and the number of classes; `None` if it has none.
    pub fn class(&self, row: usize) -> Option<(usize, usize)> {
        let numbers = &self.rows.get(row)?.as_ref()?.numbers;
        Some((best_class(numbers)?, numbers.len()))
    }

    /// Computes the confidence of each row.
    pub fn signals(&self, rule: &Rule, mut random: impl FnMut() -> f64) -> Vec<Signal> {
        let signal = |row: &Option<Row>| match (rule, row) {
            (Rule::Random, _) => Ok(random()),
            (Rule::Constant, _) => Ok(0.0),
            (Rule::Classes(signal, scores), Some(row)) => signal.confidence(&row.numbers, *scores),
            (Rule::Boxes(signal), Some(row)) => signal.confidence(&boxes::scores(&row.boxes())?),
            (Rule::Tokens(_), _) | (_, None) => Err(Unjudged::Missing),
        };
        self.rows.iter().map(signal).collect()
    }

    /// Whether row `edge` of these and row `cloud` of the others agree; `None` if they cannot be
    /// compared.
    pub fn agree(&self, edge: usize, others: &Self, cloud: usize, rule: &Rule) -> Option<bool> {
        let edge = self.rows.get(edge)?.as_ref()?;
        let cloud = others.rows.get(cloud)?.as_ref()?;
        match rule {
            Rule::Boxes(_) => Some(same_boxes(&edge.detected()?, &cloud.detected()?)),
            _ => same_class(&edge.numbers, &cloud.numbers),
        }
    }
}

impl Row {
    fn boxes(&self) -> Vec<&[f64]> {
        self.numbers.chunks(self.width.max(1)).collect()
    }

    fn detected(&self) -> Option<Vec<DetectedBox>> {
        let detected = |numbers: &&[f64]| {
            let corners = numbers.get(..4)?.try_into().ok()?;
            #[expect(clippy::cast_possible_truncation, reason = "labels are small whole numbers")]
            let class = numbers.get(MIN_BOX).map_or(0, |label| *label as i64);
            Some(DetectedBox { corners, class })
        };
        self.boxes().iter().map(detected).collect()
    }
}

#[cfg(test)]
mod tests {
    use neptune_cascade::boxes::BoxSignal;

    use super::*;

    #[test]
    fn boxes_are_judged_and_compared_per_image() {
        let row = |numbers: &[f64]| Some(Row { numbers: numbers.to_vec(), width: 6 });
        let rule = Rule::Boxes(BoxSignal::MeanScore);
        let image = [0.0, 0.0, 10.0, 10.0, 0.9, 1.0];
        let scores = Scores::new(vec![row(&image), None, row(&[])]);
        let signals = scores.signals(&rule, || 0.0);
        assert_eq!(signals, [Ok(0.9), Err(Unjudged::Missing), Err(Unjudged::Empty)]);
        let other = Scores::new(vec![row(&[0.0, 0.0, 10.0, 9.0, 0.3, 1.0]), row(&[])]);
        assert_eq!(scores.agree(0, &other, 0, &rule), Some(true));
        assert_eq!(scores.agree(0, &other, 1, &rule), Some(false));
        assert_eq!(scores.agree(1, &other, 0, &rule), None);
    }
}

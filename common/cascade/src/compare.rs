//! Whether the edge's and the cloud's answers to a sample agree.

/// The class with the greatest value. Of equal ones, the first. `None` without values, or with one
/// that is not a number.
pub fn best_class(values: &[f64]) -> Option<usize> {
    let mut best = None;
    for (class, value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if best.is_none_or(|(_, greatest)| *value > greatest) {
            best = Some((class, *value));
        }
    }
    best.map(|(class, _)| class)
}

/// Whether two classifiers name the same class, from their probabilities or logits. `None` if one
/// of them has no class, or if they have different classes.
pub fn same_class(edge: &[f64], cloud: &[f64]) -> Option<bool> {
    if edge.len() != cloud.len() {
        return None;
    }
    Some(best_class(edge)? == best_class(cloud)?)
}

/// Whether two texts begin with the same label, but for case, white space and punctuation at the
/// ends of words. `None` if one text begins with none, and without labels: two models say the same
/// in other words, and equality of texts would not be agreement.
pub fn same_text(edge: &str, cloud: &str, labels: &[String]) -> Option<bool> {
    let (edge, cloud) = (normal(edge), normal(cloud));
    let labels = labels.iter().map(|label| normal(label)).filter(|label| !label.is_empty());
    let labels: Vec<_> = labels.collect();
    // The longest, so that "no one" is not "no".
    let label = |words: &[String]| {
        let begun = labels.iter().enumerate().filter(|(_, label)| words.starts_with(label));
        begun.max_by_key(|(_, label)| label.len()).map(|(index, _)| index)
    };
    Some(label(&edge)? == label(&cloud)?)
}

/// Whether a text contains an expected one as whole words, in upper or lower case.
pub fn contains_text(text: &str, expected: &str) -> bool {
    let (text, expected) = (words(text), words(expected));
    !expected.is_empty() && text.windows(expected.len()).any(|window| window == expected)
}

/// The sequences of letters and digits.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|character: char| !character.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

fn normal(text: &str) -> Vec<String> {
    let words = text
        .split_whitespace()
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase());
    words.filter(|word| !word.is_empty()).collect()
}

/// A box that a detector returned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectedBox {
    /// `[xmin, ymin, xmax, ymax]`, in any unit.
    pub corners: [f64; 4],
    /// The class of the object.
    pub class: i64,
}

/// The overlap (intersection over union) from which two boxes show the same object.
pub const MIN_OVERLAP: f64 = 0.5;

/// Whether two detectors found the same objects: each box of one has its own box of the other, with
/// the same class and an overlap of at least [`MIN_OVERLAP`].
pub fn same_boxes(edge: &[DetectedBox], cloud: &[DetectedBox]) -> bool {
    if edge.len() != cloud.len() {
        return false;
    }
    let mut free: Vec<&DetectedBox> = cloud.iter().collect();
    edge.iter().all(|detected| {
        let overlaps = free.iter().enumerate().filter(|(_, other)| other.class == detected.class);
        let best = overlaps
            .map(|(index, other)| (index, overlap(detected.corners, other.corners)))
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        match best {
            Some((index, overlap)) if overlap >= MIN_OVERLAP => {
                free.swap_remove(index);
                true
            }
            _ => false,
        }
    })
}

/// Intersection over union, 0 to 1. Boxes without an area, or with corners that are not numbers,
/// overlap nothing.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |[x1, y1, x2, y2]: [f64; 4]| (x2 - x1).max(0.0) * (y2 - y1).max(0.0);
    let shared = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let union = area(a) + area(b) - shared;
    if shared.is_finite() && union.is_finite() && union > 0.0 { shared / union } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_compared_by_their_greatest_value() {
        for (edge, cloud, expected) in [
            (&[0.1, 0.9][..], &[-3.0, 8.0][..], Some(true)),
            (&[0.9, 0.1], &[0.1, 0.9], Some(false)),
            (&[0.5, 0.5], &[0.9, 0.1], Some(true)),
            (&[0.5], &[0.9, 0.1], None),
            (&[0.5, f64::NAN], &[0.9, 0.1], None),
            (&[], &[], None),
        ] {
            assert_eq!(same_class(edge, cloud), expected, "{edge:?} {cloud:?}");
        }
    }

    #[test]
    fn texts_are_compared_by_labels() {
        let labels = ["yes", "no", "no one"].map(str::to_owned);
        for (edge, cloud, labels, expected) in [
            ("Paris.", "Paris.", &[][..], None),
            ("Yes, it is", " yes.", &labels, Some(true)),
            ("No one", "no", &labels, Some(false)),
            ("Yesterday", "yes", &labels, None),
        ] {
            assert_eq!(same_text(edge, cloud, labels), expected, "{edge:?} {cloud:?}");
        }
    }

    #[test]
    fn expected_text_is_found_as_whole_words() {
        for (text, expected, is_found) in [
            ("It is **kuala  lumpur**, of course.", "Kuala Lumpur", true),
            ("Lumpur Kuala", "Kuala Lumpur", false),
            ("4 + 5 = 9", "9", true),
            ("90", "9", false),
            ("anything", " .", false),
            ("", "a", false),
        ] {
            assert_eq!(contains_text(text, expected), is_found, "{text} {expected}");
        }
    }

    #[test]
    fn boxes_are_matched_one_to_one_by_class_and_overlap() {
        let detected = |x: f64, class| DetectedBox { corners: [x, 0.0, x + 10.0, 10.0], class };
        let edge = [detected(0.0, 1), detected(50.0, 2)];
        for (cloud, expected) in [
            (vec![detected(50.0, 2), detected(1.0, 1)], true),
            (vec![detected(50.0, 2), detected(1.0, 3)], false),
            (vec![detected(50.0, 2), detected(6.0, 1)], false),
            (vec![detected(50.0, 2)], false),
            (vec![detected(0.0, 1), detected(0.0, 1)], false),
            (vec![detected(f64::NAN, 1), detected(50.0, 2)], false),
        ] {
            assert_eq!(same_boxes(&edge, &cloud), expected, "{cloud:?}");
        }
        assert!(same_boxes(&[], &[]));
        // Both overlap the same box of the cloud.
        let twice = [detected(0.0, 1), detected(1.0, 1)];
        assert!(!same_boxes(&twice, &[detected(0.0, 1), detected(50.0, 1)]));
        assert!(same_boxes(&twice, &[detected(1.0, 1), detected(0.0, 1)]));
        let flat = DetectedBox { corners: [1.0; 4], class: 1 };
        assert!(!same_boxes(&[flat], &[flat]));
    }
}

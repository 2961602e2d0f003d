//! Suggests an existing name for a misspelled one. Pure.

/// The candidate with the smallest edit distance to a name, if the distance is that of a typing
/// error.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // One character in four, at least one and at most three.
    let max_distance = (name.chars().count() / 4).clamp(1, 3);
    candidates
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= max_distance)
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, _)| (1..=max_distance).contains(distance))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelling_finds_the_nearest_name() {
        let table: &[(&str, &[&str], Option<&str>)] = &[
            ("big-modle", &["small-model", "big-model"], Some("big-model")),
            ("big-model", &["big-model"], None),
            ("bigmodel", &["big-model"], Some("big-model")),
            ("edge00", &["edge0", "edge1"], Some("edge0")),
            ("edge9", &["edge1", "edge0"], Some("edge0")),
            ("cloud", &["edge0"], None),
            ("a", &["b", "ab"], Some("ab")),
            ("resnet-quantised-v3", &["resnet-quantized-v2"], Some("resnet-quantized-v2")),
            ("x", &[], None),
            ("größe", &["grosse", "größen"], Some("größen")),
        ];
        for (name, candidates, expected) in table {
            assert_eq!(nearest(name, candidates.iter().copied()), *expected, "{name}");
        }
    }
}

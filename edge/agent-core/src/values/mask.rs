//! Replaces values of Secrets in texts that leave the node, such as the last lines of a log. It is a
//! net, not a promise: a program may print a value in another form.

use neptune_wire::SecretBytes;

/// Shortest value in bytes that is replaced. Shorter ones are in many other texts.
const MIN_BYTES: usize = 8;
/// What replaces a value.
const REPLACEMENT: &str = "***";

/// The values that are replaced.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Mask {
    /// Longest first, so that no rest of a longer value remains.
    texts: Vec<SecretBytes>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({} values)", self.texts.len())
    }
}

impl Mask {
    /// Replaces these values, and each line of those with several lines.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let lines = values.into_iter().flat_map(|value| [value].into_iter().chain(value.lines()));
        let mut texts: Vec<&str> =
            lines.map(str::trim).filter(|text| text.len() >= MIN_BYTES).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        texts.dedup();
        Self { texts: texts.iter().map(|it| SecretBytes::new(it.as_bytes().to_vec())).collect() }
    }

    /// Returns the text without the values.
    pub fn apply(&self, text: String) -> String {
        let values = self.texts.iter().filter_map(SecretBytes::expose_text);
        values.fold(text, |text, value| {
            if text.contains(value) { text.replace(value, REPLACEMENT) } else { text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_eight_bytes_and_their_lines_are_replaced() {
        let mask = Mask::new(["short", "rtsp://u:pw@h", "pw-longer-value", "-----A\nQUJDREVG\n"]);
        for (text, expected) in [
            ("open rtsp://u:pw@h/main", "open ***/main"),
            ("short pw-longer-value.", "short ***."),
            ("line QUJDREVG", "line ***"),
            ("QUJDREV", "QUJDREV"),
            ("", ""),
        ] {
            assert_eq!(mask.apply(text.to_owned()), expected);
        }
        assert_eq!(Mask::new(["password", "password-2"]).apply("password-2".into()), "***");
        assert_eq!(format!("{mask:?}"), "Mask(4 values)");
        assert_eq!(Mask::default().apply("text".into()), "text");
    }
}

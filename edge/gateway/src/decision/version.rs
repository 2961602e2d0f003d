//! Which version of the edge's model answers. Pure.

/// Answers in a row of another version after which it is the model's. While servers of two versions
/// answer, as in a rolling update, the version that is known stays.
const IN_A_ROW: u32 = 16;

/// The version, as configured or as the answers name it.
#[derive(Debug, Default)]
pub(super) struct ModelVersion {
    known: Option<String>,
    /// The version of the last answers, if it is another one, and how many there were.
    other: Option<(String, u32)>,
}

impl ModelVersion {
    /// The version that was saved.
    pub(super) const fn new(known: Option<String>) -> Self {
        Self { known, other: None }
    }

    pub(super) fn known(&self) -> Option<&str> {
        self.known.as_deref()
    }

    /// Sets the version from now on. Returns whether another one was known.
    pub(super) fn set(&mut self, version: &str) -> bool {
        self.other = None;
        if self.known() == Some(version) {
            return false;
        }
        self.known.replace(version.to_owned()).is_some()
    }

    /// An answer names its version. Returns whether the model has another one since now.
    pub(super) fn observe(&mut self, version: &str) -> bool {
        if self.known().is_none_or(|known| known == version) {
            return self.set(version);
        }
        let times = match &mut self.other {
            Some((other, times)) if other == version => {
                *times += 1;
                *times
            }
            _ => {
                self.other = Some((version.to_owned(), 1));
                1
            }
        };
        times >= IN_A_ROW && self.set(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_changes_after_some_answers_in_a_row() {
        let mut version = ModelVersion::default();
        assert!(!version.observe("1"), "the first one that is known");
        for answer in 1..IN_A_ROW {
            assert!(!version.observe("2"), "{answer}");
        }
        assert!(!version.observe("1"), "the old version is still there");
        for answer in 1..IN_A_ROW {
            assert!(!version.observe("2"), "{answer}");
        }
        assert!(version.observe("2"));
        assert_eq!(version.known(), Some("2"));
        assert!(!version.observe("1"), "an answer that was in flight");
        assert!(version.set("1") && !version.set("1"));
    }
}

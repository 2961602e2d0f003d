//! The last answers of the cloud that could not be used. Pure.

/// Answers in a row that could not be used.
#[derive(Debug, Default)]
pub(super) struct InvalidAnswers {
    in_a_row: u32,
    text: String,
}

impl InvalidAnswers {
    /// Counts one more answer in a row that cannot be used.
    pub(super) fn push(&mut self, text: String) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.text = text;
    }

    /// What is wrong with the last one, if there were at least so many.
    pub(super) fn text(&self, in_a_row: u32) -> Option<&str> {
        (self.in_a_row >= in_a_row).then_some(&*self.text)
    }
}

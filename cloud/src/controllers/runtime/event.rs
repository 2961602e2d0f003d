//! A Kubernetes Event to be.

/// An Event to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Whether somebody may have to do something.
    pub warning: bool,
    /// One word for programs.
    pub reason: String,
    /// For people.
    pub note: String,
}

impl ObjectEvent {
    /// Something went well.
    pub fn normal(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.to_owned(), note: note.into() }
    }

    /// Something did not.
    pub fn warning(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: true, reason: reason.to_owned(), note: note.into() }
    }
}

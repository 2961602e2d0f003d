//! Everything that can keep a dataset from being counted, and whether trying again may help. No I/O here.

use std::path::{Path, PathBuf};

use crate::format::Format;

/// Why a dataset has no count. Cloneable, so that a report can be handed to several readers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown format {given:?}; known formats: {}", Format::known())]
    UnknownFormat { given: String },
    #[error("option {option}: {reason}")]
    BadOption { option: &'static str, reason: String },
    #[error("{}: the path of a dataset must be absolute, without \"..\"", path.display())]
    NotAbsolute { path: PathBuf },
    #[error("{}: outside the directories that datasets may be in", path.display())]
    OutsideAllowed { path: PathBuf },
    #[error("{}: a symbolic link leads outside the directories that datasets may be in", path.display())]
    LinkLeaves { path: PathBuf },
    #[error("{}: not found", path.display())]
    Missing { path: PathBuf },
    #[error("{}: permission denied", path.display())]
    Denied { path: PathBuf },
    #[error("{}: format {format} needs a {needed}", path.display())]
    WrongKind { path: PathBuf, format: Format, needed: &'static str },
    #[error("{}: {message}", path.display())]
    Io { path: PathBuf, message: String },
    #[error("{}: it kept changing while it was counted", path.display())]
    Unstable { path: PathBuf },
    /// `offset` is in bytes from the beginning of the data, of the record that is corrupt.
    #[error("tfrecord: corrupt record at byte {offset}: {reason}")]
    CorruptRecord { offset: u64, reason: &'static str },
    /// `offset` is in bytes from the beginning of the data.
    #[error("json: at byte {offset}: {reason}")]
    Json { offset: u64, reason: &'static str },
    #[error("json: no member {member:?} in the object at the top")]
    NoSuchMember { member: String },
    #[error("csv: no column {column}; columns: {columns}")]
    NoSuchColumn { column: String, columns: String },
    #[error("xml: {reason}")]
    Annotation { reason: String },
    #[error("counting was stopped")]
    Stopped,
}

/// What the agent can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The resource must change: trying again with the same one gives the same.
    Spec,
    /// The node's files must change; that is watched for, and tried again.
    Node,
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Self::UnknownFormat { .. } | Self::BadOption { .. } | Self::NotAbsolute { .. } => {
                Class::Spec
            }
            _ => Class::Node,
        }
    }

    /// The data was read and is not of its format: reading it again gives the same.
    pub(crate) fn is_of_content(&self) -> bool {
        matches!(
            self,
            Self::CorruptRecord { .. }
                | Self::Json { .. }
                | Self::NoSuchMember { .. }
                | Self::NoSuchColumn { .. }
        )
    }

    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Self::Missing { path }
            }
            std::io::ErrorKind::PermissionDenied => Self::Denied { path },
            _ => Self::Io { path, message: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn io_errors_become_the_conditions_that_a_user_can_act_on() {
        let path = Path::new("/data/a.csv");
        let of = |kind: io::ErrorKind| Error::io(path, &io::Error::from(kind));
        assert_eq!(of(io::ErrorKind::NotFound), Error::Missing { path: path.to_owned() });
        assert_eq!(of(io::ErrorKind::PermissionDenied), Error::Denied { path: path.to_owned() });
        assert!(matches!(of(io::ErrorKind::TimedOut), Error::Io { .. }));
    }

    #[test]
    fn only_what_a_new_spec_alone_can_heal_is_of_class_spec() {
        assert_eq!(Error::UnknownFormat { given: "x".into() }.class(), Class::Spec);
        assert_eq!(Error::Missing { path: "/x".into() }.class(), Class::Node);
        assert_eq!(Error::OutsideAllowed { path: "/x".into() }.class(), Class::Node);
    }
}

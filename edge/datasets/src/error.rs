//! The errors of this crate, and whether a retry can succeed. Pure.

use std::path::{Path, PathBuf};

use neptune_sources::{DatasetFormat, FormatError};

/// The reason why a dataset cannot be counted.
///
/// Messages name the object and the problem. They name no remedy: the caller knows the name of the
/// field or flag that the user has to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// The object names an unknown format, or an option that the format cannot use.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The path is relative, or has a `..` component.
    #[error("{}: dataset path must be absolute and must not contain \"..\"", path.display())]
    InvalidPath {
        /// Path of the dataset.
        path: PathBuf,
    },
    /// The path is in none of the directories of the [`PathPolicy`](crate::PathPolicy).
    #[error("{}: path is outside the allowed data directories", path.display())]
    OutsideAllowed {
        /// Path of the dataset.
        path: PathBuf,
    },
    /// A symbolic link leads outside the directories of the [`PathPolicy`](crate::PathPolicy).
    #[error("{}: symbolic link leads outside the allowed data directories", path.display())]
    SymlinkOutsideAllowed {
        /// Path of the dataset or of a file in it.
        path: PathBuf,
    },
    /// The file or directory does not exist.
    #[error("{}: not found", path.display())]
    NotFound {
        /// Path of the dataset or of a file in it.
        path: PathBuf,
    },
    /// The process has no permission to read the file or directory.
    #[error("{}: permission denied", path.display())]
    PermissionDenied {
        /// Path of the dataset or of a file in it.
        path: PathBuf,
    },
    /// The path is a directory where the format needs a file, or the other way round.
    #[error("{}: format {format} needs a {needed}", path.display())]
    WrongFileType {
        /// Path of the dataset.
        path: PathBuf,
        /// Format of the dataset.
        format: DatasetFormat,
        /// What the format needs: `file` or `directory`.
        needed: &'static str,
    },
    /// Any other error of the file system or of a reader.
    #[error("{}: {message}", path.display())]
    Io {
        /// Path or URL of the source.
        path: PathBuf,
        /// Error of the operating system.
        message: String,
    },
    /// The file was truncated in each of several attempts to count it.
    #[error("{}: file changed while it was counted", path.display())]
    ChangedWhileCounting {
        /// Path of the dataset.
        path: PathBuf,
    },
    /// A `TFRecord` file has a record with a wrong checksum or an impossible length.
    #[error("tfrecord: corrupt record at byte {offset}: {reason}")]
    CorruptRecord {
        /// Start of the corrupt record, in bytes from the start of the data.
        offset: u64,
        /// What is wrong with the record.
        reason: &'static str,
    },
    /// A json file does not have the expected structure.
    #[error("json: at byte {offset}: {reason}")]
    MalformedJson {
        /// Position of the mistake, in bytes from the start of the data.
        offset: u64,
        /// What is wrong at that position.
        reason: &'static str,
    },
    /// A json file lacks the configured member.
    #[error("json: no member {member:?} in the top-level object")]
    NoSuchMember {
        /// Name of the missing member, from option `member`.
        member: String,
    },
    /// A csv file lacks the configured label column.
    #[error("csv: no column {column}; columns: {columns}")]
    NoSuchColumn {
        /// Name or index of the column in option `labelColumn`.
        column: String,
        /// The first 20 columns of the file.
        columns: String,
    },
    /// A file is not a Pascal VOC annotation.
    #[error("xml: {reason}")]
    MalformedAnnotation {
        /// What is wrong with the file.
        reason: String,
    },
    /// The caller called [`ReadMeter::stop`](crate::ReadMeter::stop) during the count.
    #[error("counting was stopped")]
    Stopped,
}

/// What has to change before a count can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetErrorClass {
    /// The Dataset resource. A retry with the same specification fails again.
    Spec,
    /// The files on the node. A watch detects the change and counts again.
    Node,
}

impl DatasetError {
    /// What has to change before a count can succeed.
    pub fn class(&self) -> DatasetErrorClass {
        match self {
            Self::Format(_) | Self::InvalidPath { .. } => DatasetErrorClass::Spec,
            _ => DatasetErrorClass::Node,
        }
    }

    /// Whether the data was read and is malformed, so that reading the same data fails again.
    pub(crate) fn is_malformed_data(&self) -> bool {
        matches!(
            self,
            Self::CorruptRecord { .. }
                | Self::MalformedJson { .. }
                | Self::NoSuchMember { .. }
                | Self::NoSuchColumn { .. }
                | Self::MalformedAnnotation { .. }
        )
    }

    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Self::NotFound { path }
            }
            std::io::ErrorKind::PermissionDenied => Self::PermissionDenied { path },
            _ => Self::Io { path, message: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;

    use super::*;

    #[test]
    fn common_io_errors_have_their_own_variants() {
        let path = Path::new("/data/a.csv");
        let error = |kind: io::ErrorKind| DatasetError::io(path, &io::Error::from(kind));
        assert_eq!(
            error(io::ErrorKind::NotFound),
            DatasetError::NotFound { path: path.to_owned() }
        );
        assert_eq!(
            error(io::ErrorKind::PermissionDenied),
            DatasetError::PermissionDenied { path: path.to_owned() }
        );
        assert!(matches!(error(io::ErrorKind::TimedOut), DatasetError::Io { .. }));
    }

    #[test]
    fn only_errors_of_the_specification_have_class_spec() {
        let unknown = "x".parse::<DatasetFormat>().unwrap_err();
        assert_eq!(DatasetError::from(unknown).class(), DatasetErrorClass::Spec);
        assert_eq!(DatasetError::NotFound { path: "/x".into() }.class(), DatasetErrorClass::Node);
        assert_eq!(
            DatasetError::OutsideAllowed { path: "/x".into() }.class(),
            DatasetErrorClass::Node
        );
    }
}

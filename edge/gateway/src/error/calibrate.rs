//! Why labelled samples cannot be read or answered.

use std::{io, path::PathBuf};

use crate::config::Protocol;

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The data cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The format is neither given nor known from the name.
    #[error("the format of {0} is not known from its name; give --format csv or --format jsonl")]
    Format(PathBuf),
    /// The format has nothing for the protocol.
    #[error("protocol {} needs samples in {needed}; give --format {needed} and such --data", protocol.as_str())]
    FormatOfProtocol {
        /// The protocol of the configuration.
        protocol: Protocol,
        /// The format that it needs.
        needed: &'static str,
    },
    /// A sample that cannot be used.
    #[error("{path}, line {line}: {reason}")]
    Sample {
        /// Path of the file with the sample.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The file or directory has no samples.
    #[error("{0} has no samples; a directory needs files of the format")]
    Empty(PathBuf),
    /// The delimiter is not one byte.
    #[error("--delimiter {0:?} is not an ASCII character")]
    Delimiter(char),
    /// The configuration has no cloud to compare with.
    #[error("the configuration has no cloud to compare with; add cloud.url")]
    NoCloud,
    /// The model is not named.
    #[error("the model on the node has no name; give --model, or add edge.model")]
    NoModel,
    /// The rule does not give a confidence of classes or texts.
    #[error(
        "hardExample.algorithm does not give a confidence of classes or texts; use LogProb, CrossEntropy, MaxProbability or Margin"
    )]
    Rule,
    /// The model's input does not fit the samples.
    #[error("the samples do not fit the model: {0}")]
    Input(String),
    /// A model server does not answer.
    #[error("the model server of the {side} at {address} did not answer {what}: {reason}")]
    NoAnswer {
        /// The side of the server: `edge` or `cloud`.
        side: &'static str,
        /// Address of the model server.
        address: String,
        /// The request: which samples, or the metadata.
        what: String,
        /// Why there is no answer, after all attempts.
        reason: String,
    },
    /// An answer has no scores or text.
    #[error("the answer of the {side} to {what} cannot be used: {reason}")]
    Answer {
        /// The side of the server: `edge` or `cloud`.
        side: &'static str,
        /// The request: which samples, or the metadata.
        what: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The token cannot be read or used.
    #[error("token file {path}: {reason}")]
    Token {
        /// Path of the token file.
        path: PathBuf,
        /// What is wrong with the file or the token.
        reason: String,
    },
    /// The plot cannot be written.
    #[error("cannot write {path}: {source}; choose another --svg")]
    Write {
        /// Path of the plot.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl CalibrateError {
    /// Whether another run with the same files and options fails as well.
    pub const fn is_configuration(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. } | Self::Answer { .. } | Self::Write { .. })
    }
}

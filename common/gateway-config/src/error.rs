//! What can be wrong with a configuration.

use std::path::PathBuf;

use crate::{Algorithm, Protocol, ScoreKind, UrlProblem};

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, an unknown field, or a value of the wrong type.
    #[error("{0}{remedy}", remedy = remedy(.0))]
    Json(#[from] serde_json::Error),
    /// A share is not from 0 to 1.
    #[error("{field} is {value}; it has to be from 0 to 1")]
    Share {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// Two goals.
    #[error("give uploadRatio or agreement, not both: one is held, the other follows")]
    TwoGoals,
    /// Texts are not compared.
    #[error(
        "goal.agreement compares the answers of a language model by their labels: give labels, or \
         goal.uploadRatio instead"
    )]
    AgreementWithoutLabels,
    /// The cap prevents the goal.
    #[error("maxUploadRatio {cap} is below uploadRatio {ratio}")]
    CapBelowGoal {
        /// The cap.
        cap: f64,
        /// The goal.
        ratio: f64,
    },
    /// The algorithm reads what the protocol does not have.
    #[error("{algorithm:?} does not read the answers of {}; {}", protocol.as_str(), advice(*.protocol))]
    Algorithm {
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
    },
    /// The algorithm reads another kind of scores.
    #[error("{algorithm:?} does not read {kind:?}; change hardExample.kind or algorithm")]
    Kind {
        /// The algorithm.
        algorithm: Algorithm,
        /// The kind.
        kind: ScoreKind,
    },
    /// `choice` without labels.
    #[error("choice needs at least two labels; add hardExample.labels")]
    Labels,
    /// `Random` without a ratio.
    #[error("Random needs goal.uploadRatio")]
    RandomWithoutRatio,
    /// The edge's address.
    #[error("edge.address {0:?} is not host:port")]
    EdgeAddress(String),
    /// The edge's address of gRPC.
    #[error("edge.grpcAddress {0:?} is not host:port")]
    EdgeGrpcAddress(String),
    /// gRPC with a protocol that has none.
    #[error("{field} needs protocol oip; remove it, or change protocol {}", protocol.as_str())]
    GrpcProtocol {
        /// The field.
        field: &'static str,
        /// The protocol.
        protocol: Protocol,
    },
    /// A field of gRPC without the others.
    #[error("{field} needs {needed}; add {needed}, or remove {field}")]
    GrpcIncomplete {
        /// The field.
        field: &'static str,
        /// The one that is absent.
        needed: &'static str,
    },
    /// An address of the cloud.
    #[error("{field} {url:?}: {why}")]
    CloudUrl {
        /// The field.
        field: &'static str,
        /// The address.
        url: String,
        /// What is wrong.
        why: UrlProblem,
    },
    /// A header of `neverUpload`.
    #[error("neverUpload.headers: {0:?} is not \"name: value\"")]
    Header(String),
    /// The identity of the service.
    #[error("id {0:?} has to be 1 to 64 letters, digits and '-'")]
    Id(String),
    /// The directory of the capture.
    #[error("capture.directory {0:?} is not an absolute path")]
    CaptureDirectory(PathBuf),
    /// The bound of the capture.
    #[error("capture.maxBytes is {found}; it has to be at least {least}")]
    CaptureBytes {
        /// The least value.
        least: u64,
        /// The value.
        found: u64,
    },
    /// No answer of the permitted size would have room.
    #[error("limits.maxAnswerBytes is {found}; it has to be at least maxBodyBytes, {least}")]
    AnswerBytes {
        /// `maxBodyBytes`.
        least: usize,
        /// The value.
        found: usize,
    },
    /// A limit of 0.
    #[error("limits.{0} has to be at least 1")]
    Limit(&'static str),
}

/// What to do about a field or value that this version does not know: a newer controller may have
/// written it.
fn remedy(error: &serde_json::Error) -> &'static str {
    let text = error.to_string();
    if !text.starts_with("unknown ") {
        return "";
    }
    concat!(
        "; neptune-gateway ",
        env!("CARGO_PKG_VERSION"),
        " does not know it: correct it, or use an image of the controller's version \
         (--gateway-image)"
    )
}

const fn advice(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Openai => "use LogProb",
        Protocol::Oip | Protocol::Tfserving => "use MaxProbability, Margin or CrossEntropy",
    }
}

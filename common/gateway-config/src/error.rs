//! What can be wrong with a configuration.

use std::path::PathBuf;

use crate::{Algorithm, ClientsError, Protocol, ScoreKind, UrlProblem};

/// Why a configuration is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON, or has an unknown field or a value of the wrong type.
    #[error("{0}{remedy}", remedy = remedy(.0))]
    Json(#[from] serde_json::Error),
    /// A share is not from 0 to 1.
    #[error("{field} is {value}; it has to be from 0 to 1")]
    Share {
        /// Path of the field.
        field: &'static str,
        /// The value of the field.
        value: f64,
    },
    /// Both goals, `uploadRatio` and `agreement`, are given.
    #[error("give uploadRatio or agreement, not both: one is enforced, the other follows")]
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
        /// The value of `maxUploadRatio`.
        cap: f64,
        /// The value of `uploadRatio`.
        ratio: f64,
    },
    /// The algorithm reads what the protocol does not have.
    #[error("{algorithm:?} does not read the answers of {}; {}", protocol.as_str(), advice(*.protocol))]
    Algorithm {
        /// The value of `hardExample.algorithm`.
        algorithm: Algorithm,
        /// The value of `protocol`.
        protocol: Protocol,
    },
    /// The algorithm reads another kind of scores.
    #[error("{algorithm:?} does not read {kind:?}; change hardExample.kind or algorithm")]
    Kind {
        /// The value of `hardExample.algorithm`.
        algorithm: Algorithm,
        /// The value of `hardExample.kind`.
        kind: ScoreKind,
    },
    /// The rule `choice` has fewer than two labels.
    #[error("choice needs at least two labels; add hardExample.labels")]
    Labels,
    /// The algorithm `Random` has no ratio.
    #[error("Random needs goal.uploadRatio")]
    RandomWithoutRatio,
    /// The edge's address is not `host:port`.
    #[error("edge.address {0:?} is not host:port")]
    EdgeAddress(String),
    /// The edge's gRPC address is not `host:port`.
    #[error("edge.grpcAddress {0:?} is not host:port")]
    EdgeGrpcAddress(String),
    /// A field for gRPC is given with a protocol that has no gRPC.
    #[error("{field} needs protocol oip; remove it, or change protocol {}", protocol.as_str())]
    GrpcProtocol {
        /// Path of the field.
        field: &'static str,
        /// The value of `protocol`.
        protocol: Protocol,
    },
    /// A field for gRPC is given without the one that it needs.
    #[error("{field} needs {needed}; add {needed}, or remove {field}")]
    GrpcIncomplete {
        /// Path of the given field.
        field: &'static str,
        /// Path of the missing field.
        needed: &'static str,
    },
    /// An address of the cloud is not valid.
    #[error("{field} {url:?}: {why}")]
    CloudUrl {
        /// Path of the field.
        field: &'static str,
        /// The address as given.
        url: String,
        /// The problem of the address.
        why: UrlProblem,
    },
    /// A header of `neverUpload` is not `name: value`.
    #[error("neverUpload.headers: {0:?} is not \"name: value\"")]
    Header(String),
    /// The identity of the service.
    #[error("id {0:?} has to be 1 to 64 letters, digits and '-'")]
    Id(String),
    /// The directory of the capture.
    #[error("capture.directory {0:?} is not an absolute path")]
    CaptureDirectory(PathBuf),
    /// The maximum size of the capture is too small.
    #[error("capture.maxBytes is {bytes}; it has to be at least {least}")]
    CaptureBytes {
        /// The smallest permitted size in bytes.
        least: u64,
        /// The size in bytes as given.
        bytes: u64,
    },
    /// No answer of the permitted size would have room.
    #[error("limits.maxAnswerBytes is {bytes}; it has to be at least maxBodyBytes, {least}")]
    AnswerBytes {
        /// The value of `maxBodyBytes` in bytes.
        least: usize,
        /// The value of `maxAnswerBytes` in bytes.
        bytes: usize,
    },
    /// The list of clients.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// A limit is 0.
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

//! Messages between a joining node and the join server, as JSON over TLS.

use crate::token::{JoinSecret, TokenId};
use neptune_wire::NodeName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The path of the only route of the join server. Its method is POST.
pub const JOIN_PATH: &str = "/v1/join";

/// A name in the certificate of the join server at any address. The node checks it.
pub const JOIN_SERVER_NAME: &str = "join.neptune";

/// The version of these messages.
pub const JOIN_VERSION: u32 = 1;

/// The largest request and the largest answer in bytes.
pub const MAX_JOIN_BODY: usize = 16 * 1024;

/// What a node sends to join.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// The version of the message, [`JOIN_VERSION`].
    pub version: u32,
    /// The name of the node.
    pub node: NodeName,
    /// The ID of the token.
    pub id: TokenId,
    /// The secret of the token.
    pub secret: JoinSecret,
    /// A certificate signing request in PEM, signed with the node's key, with the node's name as
    /// its common name.
    pub csr: String,
    /// The version of the agent, for the log of the server.
    pub agent_version: String,
    /// The processor of the node, as Rust names it: `x86_64`, `aarch64`.
    pub arch: String,
}

/// What a node gets. It contains no secret: the key stays on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinAnswer {
    /// The certificate of the node in PEM.
    pub certificate: String,
    /// The certificates of the authority in PEM. There can be several.
    pub ca: String,
    /// The broker of the fleet: `mqtts://HOST:PORT`.
    pub broker_url: String,
    /// The topic prefix of the fleet.
    pub topic_prefix: String,
    /// Seconds since 1970 at the server, to report a clock that is wrong.
    pub time: i64,
    /// What the operator should know, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Why a node did not get a certificate, with an HTTP status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRefusal {
    /// The reason. Unknown reasons of later versions are read as [`RefusalReason::RequestInvalid`].
    pub reason: RefusalReason,
    /// A sentence with the remedy.
    pub message: String,
}

/// The reasons of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// No token has this ID, or its secret differs.
    TokenRefused,
    /// The token has expired.
    TokenExpired,
    /// Another key has used the token.
    TokenUsed,
    /// The node has another trusted key, and the token does not replace it.
    NodeKeyKnown,
    /// The node is revoked, and the token does not replace it.
    NodeRevoked,
    /// More requests came from this address, or more connections are open, than allowed.
    TooManyRequests,
    /// The server has no authority yet, or cannot reach the API server.
    NotReady,
    /// The request is no request of this version, or its signing request does not fit.
    #[serde(other)]
    RequestInvalid,
}

impl RefusalReason {
    /// The HTTP status of the refusal.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::RequestInvalid => 400,
            Self::TokenRefused | Self::TokenExpired => 401,
            Self::NodeRevoked => 403,
            Self::TokenUsed | Self::NodeKeyKnown => 409,
            Self::TooManyRequests => 429,
            Self::NotReady => 503,
        }
    }

    /// Whether the same request can succeed later.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::TooManyRequests | Self::NotReady)
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn debug_output_of_a_request_has_no_secret() {
        let request: JoinRequest = serde_json::from_str(
            r#"{"version":1,"node":"edge0","id":"k3f7q2ab","secret":"abcdefghijklmnopqrstuvwxyy",
                "csr":"","agentVersion":"0.2.0","arch":"x86_64"}"#,
        )
        .unwrap();
        assert!(!format!("{request:?}").contains("abcdefgh"));
        assert!(serde_json::to_string(&request).unwrap().contains("abcdefgh"));
    }

    #[test]
    fn reason_of_a_later_version_is_an_invalid_request() {
        let refusal: JoinRefusal =
            serde_json::from_str(r#"{"reason":"QuotaSpent","message":"later"}"#).unwrap();
        assert_eq!(refusal.reason, RefusalReason::RequestInvalid);
        assert_eq!(refusal.reason.status(), 400);
    }
}

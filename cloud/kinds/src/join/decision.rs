//! What the join server answers to a request, and what it writes to the token first. The facts are
//! the token, the `EdgeNode` and the time.

use jiff::Timestamp;
use neptune_api::EdgeNode;
use neptune_join::{JoinRefusal, JoinSecret, RefusalReason};
use neptune_wire::{KeyPin, NodeName};

use super::token_entry::{TokenEntry, TokenUse};
use crate::nodes::keys::KeyRecord;

/// A request whose signing request was verified.
#[derive(Debug, Clone, Copy)]
pub struct JoinAttempt<'a> {
    /// The node that asks, which is also the name in the signing request.
    pub node: &'a NodeName,
    /// The secret of the token that the request names.
    pub secret: &'a JoinSecret,
    /// The key of the signing request.
    pub pin: &'a KeyPin,
    /// A serial number that no certificate has yet, 16 hex digits.
    pub fresh_serial: &'a str,
}

/// What the cluster has about the request.
#[derive(Debug, Clone, Copy, Default)]
pub struct JoinFacts<'a> {
    /// The token that the request names.
    pub token: Option<&'a TokenEntry>,
    /// The `EdgeNode` of the node.
    pub edge_node: Option<&'a EdgeNode>,
    /// Whether there is a Node of that name.
    pub has_node: bool,
}

/// What to do with a request: first write, then answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct JoinDecision {
    /// The next version of the token, if it changes. The answer is given only after it was written
    /// to the version of the `ConfigMap` that the decision is about.
    pub write: Option<TokenEntry>,
    /// A certificate, or why there is none.
    pub answer: Result<JoinGrant, JoinRefusal>,
}

/// The permission to sign a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinGrant {
    /// The serial number of the certificate. It is the same for each use of a token.
    pub serial: String,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// Decides about a request.
///
/// | Token | Node | Answer |
/// |---|---|---|
/// | missing, or 5 wrong secrets before | any | `TokenRefused` |
/// | another secret | any | `TokenRefused`, and counts |
/// | of another node | any | `RequestInvalid` |
/// | has ended | any | `TokenExpired` |
/// | used by another key | any | `TokenUsed` |
/// | without `replace`, or its use is recorded | revoked | `NodeRevoked` |
/// | without `replace`, or its use is recorded | has another key | `NodeKeyKnown` |
/// | otherwise | any | a certificate |
pub fn decide(attempt: JoinAttempt<'_>, facts: JoinFacts<'_>, now: Timestamp) -> JoinDecision {
    let node = attempt.node;
    let Some(token) = facts.token.filter(|token| !token.is_closed()) else {
        return refuse(RefusalReason::TokenRefused, wrong_token(node));
    };
    if !token.matches(attempt.secret) {
        let write =
            Some(TokenEntry { failures: token.failures.saturating_add(1), ..token.clone() });
        return JoinDecision { write, ..refuse(RefusalReason::TokenRefused, wrong_token(node)) };
    }
    if &token.node != node {
        let text = format!(
            "the token is for node {}, and node {node} used it: neptune-cloud enroll {node}",
            token.node
        );
        return refuse(RefusalReason::RequestInvalid, text);
    }
    if token.expires <= now {
        let text = format!("the token ended at {}: neptune-cloud enroll {node}", token.expires);
        return refuse(RefusalReason::TokenExpired, text);
    }
    if let Some(used) = token.used_by.as_ref().filter(|used| &used.pin != attempt.pin) {
        let text = format!(
            "the key {} of node {node} used the token at {}; if that was not you: neptune-cloud revoke {node}",
            used.pin.short(),
            used.time
        );
        return refuse(RefusalReason::TokenUsed, text);
    }
    if let Some(refused) = refused_node(attempt, token, facts.edge_node) {
        return refused;
    }
    let used = token.used_by.clone();
    let (serial, write) = if let Some(used) = used {
        (used.serial, None)
    } else {
        let (pin, serial) = (attempt.pin.clone(), attempt.fresh_serial.to_owned());
        let used = TokenUse { pin, serial: serial.clone(), time: now };
        (serial, Some(TokenEntry { used_by: Some(used), ..token.clone() }))
    };
    let exists = facts.has_node || facts.edge_node.is_some_and(|it| !it.spec.requires_node);
    let missing = format!(
        "NodeMissing: there is neither a Node nor an EdgeNode {node} yet; the controller creates the EdgeNode"
    );
    let warnings = if exists { Vec::new() } else { vec![missing] };
    JoinDecision { write, answer: Ok(JoinGrant { serial, warnings }) }
}

/// Refuses a node that is revoked or has another key, unless the token replaces it. A use that is
/// recorded replaces nothing: what a person decided since then stands.
fn refused_node(
    attempt: JoinAttempt<'_>,
    token: &TokenEntry,
    edge_node: Option<&EdgeNode>,
) -> Option<JoinDecision> {
    let (node, edge_node) = (attempt.node, edge_node?);
    let is_recorded = |used: &TokenUse| edge_node.spec.certificate_serials.contains(&used.serial);
    if token.replace && !token.used_by.as_ref().is_some_and(is_recorded) {
        return None;
    }
    if edge_node.spec.revoked {
        let text = format!("node {node} is revoked: neptune-cloud enroll {node} --replace");
        return Some(refuse(RefusalReason::NodeRevoked, text));
    }
    let record = KeyRecord::from_edge_node(edge_node);
    let known = record.trusted.or(record.seen).filter(|known| known != attempt.pin)?;
    let text = format!(
        "node {node} has the key {}, and the request has {}: neptune-cloud enroll {node} --replace",
        known.short(),
        attempt.pin.short()
    );
    Some(refuse(RefusalReason::NodeKeyKnown, text))
}

fn refuse(reason: RefusalReason, message: String) -> JoinDecision {
    JoinDecision { write: None, answer: Err(JoinRefusal { reason, message }) }
}

/// The same text for each wrong ID and secret: it does not tell which of both is wrong.
fn wrong_token(node: &NodeName) -> String {
    format!("the token is not known, or its secret is wrong: neptune-cloud enroll {node}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{EdgeNodeSpec, EdgeNodeStatus};
    use neptune_wire::fixtures::pin;
    use proptest::prelude::*;

    use super::{super::token_entry::MAX_FAILURES, *};

    fn secret(character: char) -> JoinSecret {
        format!("{}a", character.to_string().repeat(25)).parse().unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn token() -> TokenEntry {
        TokenEntry::new("edge0".parse().unwrap(), &secret('b'), at(1000), false)
    }

    fn used(key: u8) -> TokenEntry {
        let use_ = TokenUse { pin: pin(key), serial: "5".repeat(16), time: at(10) };
        TokenEntry { used_by: Some(use_), ..token() }
    }

    fn replacing(token: TokenEntry) -> TokenEntry {
        TokenEntry { replace: true, ..token }
    }

    fn spec(key: Option<u8>, revoked: bool) -> EdgeNodeSpec {
        let trusted_key = key.map(|key| pin(key).0);
        EdgeNodeSpec { trusted_key, revoked, ..EdgeNodeSpec::default() }
    }

    /// The decision about key 1 of edge0, with the secret of the token, at 100 s.
    fn ask(token: Option<&TokenEntry>, spec: Option<EdgeNodeSpec>) -> JoinDecision {
        ask_as(1, 'b', token, spec)
    }

    fn ask_as(
        key: u8,
        character: char,
        token: Option<&TokenEntry>,
        spec: Option<EdgeNodeSpec>,
    ) -> JoinDecision {
        let (node, pin, secret) = ("edge0".parse().unwrap(), pin(key), secret(character));
        let fresh_serial = &format!("{key:016}");
        let attempt = JoinAttempt { node: &node, secret: &secret, pin: &pin, fresh_serial };
        let edge_node = spec.map(|spec| EdgeNode::new("edge0", spec));
        let edge_node = edge_node.as_ref();
        decide(attempt, JoinFacts { token, edge_node, has_node: false }, at(100))
    }

    fn reason(decision: &JoinDecision) -> RefusalReason {
        decision.answer.as_ref().unwrap_err().reason
    }

    #[test]
    fn first_use_is_written_before_the_certificate_is_given() {
        let decision = ask(Some(&token()), Some(spec(None, false)));
        let grant = decision.answer.unwrap();
        assert_eq!((grant.serial.as_str(), grant.warnings.len()), ("0000000000000001", 0));
        let written = decision.write.unwrap().used_by.unwrap();
        assert_eq!(written, TokenUse { pin: pin(1), serial: grant.serial, time: at(100) });
    }

    #[test]
    fn same_key_gets_the_same_serial_again_and_nothing_is_written() {
        let decision = ask(Some(&used(1)), Some(spec(Some(1), false)));
        assert_eq!(decision.answer.unwrap().serial, "5".repeat(16));
        assert_eq!(decision.write, None);
    }

    #[test]
    fn refusals_have_their_reason_and_change_nothing() {
        use RefusalReason::*;
        let closed = TokenEntry { failures: MAX_FAILURES, ..token() };
        let foreign = TokenEntry { node: "edge1".parse().unwrap(), ..token() };
        let ended = TokenEntry { expires: at(100), ..token() };
        let recorded = |key: u8, revoked| EdgeNodeSpec {
            certificate_serials: vec!["5".repeat(16)],
            ..spec(Some(key), revoked)
        };
        for (token, spec, expected) in [
            (None, None, TokenRefused),
            (Some(closed), None, TokenRefused),
            (Some(foreign), None, RequestInvalid),
            (Some(ended), None, TokenExpired),
            (Some(used(2)), None, TokenUsed),
            (Some(replacing(used(2))), None, TokenUsed),
            (Some(token()), Some(spec(None, true)), NodeRevoked),
            (Some(token()), Some(spec(Some(2), false)), NodeKeyKnown),
            // What was decided after the use was recorded stands.
            (Some(replacing(used(1))), Some(recorded(1, true)), NodeRevoked),
            (Some(replacing(used(1))), Some(recorded(2, false)), NodeKeyKnown),
        ] {
            let decision = ask(token.as_ref(), spec);
            assert_eq!((reason(&decision), &decision.write), (expected, &None));
            let message = decision.answer.unwrap_err().message;
            assert!(message.contains("neptune-cloud "), "{message}");
        }
    }

    #[test]
    fn replacing_token_joins_a_revoked_node_and_one_with_another_key() {
        for spec in [spec(Some(2), false), spec(Some(2), true), spec(None, true)] {
            assert!(ask(Some(&replacing(token())), Some(spec)).answer.is_ok());
        }
    }

    #[test]
    fn key_that_the_controller_saw_first_is_known_too() {
        let mut object = EdgeNode::new("edge0", EdgeNodeSpec::default());
        let trusted_key = Some(pin(2).0);
        object.status = Some(EdgeNodeStatus { trusted_key, ..EdgeNodeStatus::default() });
        let (node, pin, secret, token) = ("edge0".parse().unwrap(), pin(1), secret('b'), token());
        let attempt = JoinAttempt { node: &node, secret: &secret, pin: &pin, fresh_serial: "1" };
        let facts = JoinFacts { token: Some(&token), edge_node: Some(&object), has_node: true };
        assert_eq!(reason(&decide(attempt, facts, at(0))), RefusalReason::NodeKeyKnown);
    }

    #[test]
    fn unknown_node_joins_with_a_warning() {
        let absent = EdgeNodeSpec { requires_node: true, ..spec(None, false) };
        for spec in [None, Some(absent)] {
            let grant = ask(Some(&token()), spec).answer.unwrap();
            assert!(grant.warnings[0].starts_with("NodeMissing: "), "{grant:?}");
        }
    }

    #[test]
    fn five_wrong_secrets_close_the_token_for_the_right_one() {
        let mut token = token();
        for count in 1..=MAX_FAILURES {
            let decision = ask_as(1, 'c', Some(&token), None);
            assert_eq!(reason(&decision), RefusalReason::TokenRefused);
            token = decision.write.unwrap();
            assert_eq!(token.failures, count);
        }
        assert_eq!(reason(&ask(Some(&token), None)), RefusalReason::TokenRefused);
    }

    proptest! {
        /// Both decide about the version that they read; the second write to the same version
        /// fails, and its request is decided again.
        #[test]
        fn of_two_joins_at_once_one_key_gets_certificates(
            keys in proptest::collection::vec(1_u8..4, 2..6),
            stale in proptest::collection::vec(any::<bool>(), 6),
        ) {
            let (mut stored, mut version) = (token(), 0);
            let mut read = (stored.clone(), version);
            let mut granted = Vec::new();
            for (key, is_stale) in keys.into_iter().zip(stale) {
                if !is_stale {
                    read = (stored.clone(), version);
                }
                let mut decision = ask_as(key, 'b', Some(&read.0), None);
                if decision.write.is_some() && read.1 != version {
                    read = (stored.clone(), version);
                    decision = ask_as(key, 'b', Some(&read.0), None);
                }
                if let Some(write) = decision.write {
                    (stored, version) = (write, version + 1);
                }
                if let Ok(grant) = decision.answer {
                    granted.push((key, grant.serial));
                }
            }
            granted.dedup();
            prop_assert_eq!(granted.len(), 1);
            let used = stored.used_by.unwrap();
            prop_assert_eq!(&granted[0], &(granted[0].0, used.serial));
            prop_assert_eq!(used.pin, pin(granted[0].0));
        }
    }
}

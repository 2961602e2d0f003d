//! Handles one request to join: reads what the cluster has, writes the decision, and signs.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, Client};
use neptune_cloud_kinds::{
    error_class::Class,
    join::{
        decision::{JoinAttempt, JoinFacts, JoinGrant, decide},
        token_entry::entries,
    },
};
use neptune_join::{JOIN_VERSION, JoinAnswer, JoinRefusal, JoinRequest, RefusalReason};
use neptune_pinned_tls::{Authority, Serial, SigningRequest};
use neptune_wire::NodeName;
use tokio::sync::Mutex;

use super::tokens;
use crate::{error::Error, kubernetes::edge_node_writes};

/// Attempts to write tokens that another server, `enroll` or the controller write at the same time.
const MAX_ATTEMPTS: u32 = 5;

/// What signs certificates, and where tokens and nodes are.
pub struct Joins {
    /// The authority of the fleet.
    pub authority: Authority,
    /// The client of the API server.
    pub client: Client,
    /// The namespace of the tokens.
    pub namespace: String,
    /// Held from the read of the tokens to their write: all tokens are in one object, and of requests
    /// that write at the same time only one would succeed. Other servers are not excluded.
    pub turn: Mutex<()>,
}

/// What the answer contains besides the certificate.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The broker of the fleet: `mqtts://HOST:PORT`.
    pub broker_url: String,
    /// The topic prefix of the fleet.
    pub topic_prefix: String,
}

impl Joins {
    /// Answers a request. Its token is written before.
    ///
    /// # Errors
    /// Why the node gets no certificate.
    pub async fn answer(
        &self,
        request: &JoinRequest,
        addresses: Addresses,
    ) -> Result<JoinAnswer, JoinRefusal> {
        let csr = check(request)?;
        let grant = self.grant(request, &csr).await?;
        let serial: Serial = grant.serial.parse().map_err(|_| not_ready("the token"))?;
        let certificate = self.authority.sign_node(&csr, serial).map_err(|error| {
            tracing::error!(%error, node = %request.node, "cannot sign the certificate of a node");
            not_ready("the authority")
        })?;
        Ok(JoinAnswer {
            certificate,
            ca: self.authority.certificate().to_owned(),
            broker_url: addresses.broker_url,
            topic_prefix: addresses.topic_prefix,
            time: now().as_second(),
            warnings: grant.warnings,
        })
    }

    /// Decides about the version of the token that was read, and writes it. If it changed meanwhile,
    /// decides again.
    async fn grant(
        &self,
        request: &JoinRequest,
        csr: &SigningRequest,
    ) -> Result<JoinGrant, JoinRefusal> {
        let maps = tokens::api(&self.client, &self.namespace);
        let random = neptune_program::random::secure().map_err(|error| {
            tracing::error!(%error, "no random numbers");
            not_ready("the server")
        })?;
        let fresh_serial = &Serial::from_random(random).to_string();
        let node = &request.node;
        let _turn = self.turn.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            let map = tokens::get(&maps).await.map_err(|error| unreachable_api(&error))?;
            let (mut tokens, _) = entries(&tokens::data(&map));
            let token = tokens.remove(&request.id);
            // A client without a token causes no further request to the API server.
            let is_permitted = token.as_ref().is_some_and(|token| token.matches(&request.secret));
            let (edge_node, has_node) = if is_permitted {
                self.nodes(node).await.map_err(|error| unreachable_api(&error))?
            } else {
                (None, false)
            };
            let attempt =
                JoinAttempt { node, secret: &request.secret, pin: csr.pin(), fresh_serial };
            let (token, edge_node) = (token.as_ref(), edge_node.as_ref());
            let decision = decide(attempt, JoinFacts { token, edge_node, has_node }, now());
            let Some(written) = decision.write else { return decision.answer };
            let mut next: ConfigMap = map;
            tokens::insert(&mut next, &request.id, &written);
            match tokens::replace(&maps, &next).await {
                Ok(_) => return decision.answer,
                Err(error) if error.class() == Class::Conflict => {}
                Err(error) => return Err(unreachable_api(&error)),
            }
        }
        Err(not_ready("the token, which other requests write at the same time,"))
    }

    async fn nodes(&self, node: &NodeName) -> Result<(Option<neptune_api::EdgeNode>, bool), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let edge_node = edge_node_writes::get(&self.client, node).await?;
        let object = nodes.get_opt(node.as_str()).await;
        let object = object.map_err(Error::api(format!("get Node {node}")))?;
        Ok((edge_node, object.is_some()))
    }
}

/// Checks what needs no fact of the cluster.
fn check(request: &JoinRequest) -> Result<SigningRequest, JoinRefusal> {
    let invalid = |message: String| JoinRefusal { reason: RefusalReason::RequestInvalid, message };
    if request.version != JOIN_VERSION {
        return Err(invalid(format!(
            "version {} of the request is not supported; this server has version {JOIN_VERSION}: install the version of neptune-edge that fits",
            request.version
        )));
    }
    let csr = SigningRequest::from_pem(&request.csr).map_err(|error| invalid(error.to_string()))?;
    if csr.name() != request.node.as_str() {
        return Err(invalid(format!(
            "the certificate signing request names {:?}, and the request is of node {}",
            csr.name(),
            request.node
        )));
    }
    Ok(csr)
}

fn not_ready(what: &str) -> JoinRefusal {
    let message = format!("{what} is not ready; run the same command again in a minute");
    JoinRefusal { reason: RefusalReason::NotReady, message }
}

fn unreachable_api(error: &Error) -> JoinRefusal {
    tracing::warn!(%error, "cannot read or write what a join needs");
    not_ready("the API server")
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_pinned_tls::TlsKey;

    use super::*;

    fn request(name: &str) -> JoinRequest {
        JoinRequest {
            version: JOIN_VERSION,
            node: "edge0".parse().unwrap(),
            id: "abcdefgh".parse().unwrap(),
            secret: "abcdefghijklmnopqrstuvwxya".parse().unwrap(),
            csr: TlsKey::generate().signing_request(name),
            agent_version: "0.2.0".to_owned(),
            arch: "x86_64".to_owned(),
        }
    }

    #[test]
    fn request_of_another_version_or_name_is_refused_before_the_cluster_is_asked() {
        assert!(check(&request("edge0")).is_ok());
        for (request, text) in [
            (JoinRequest { version: 2, ..request("edge0") }, "version 2"),
            (JoinRequest { csr: "text".to_owned(), ..request("edge0") }, "is not valid"),
            (request("edge1"), "names \"edge1\""),
        ] {
            let refusal = check(&request).unwrap_err();
            assert_eq!(refusal.reason, RefusalReason::RequestInvalid);
            assert!(refusal.message.contains(text), "{}", refusal.message);
        }
    }
}

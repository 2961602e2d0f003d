//! What the active controller keeps of joins: it records each join in the `EdgeNode`, removes
//! tokens that have ended, and writes the files of the broker.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt as _, api::PostParams};
use neptune_backoff::Backoff;
use neptune_cloud_kinds::{
    error_class::Class,
    join::{
        addresses::broker_names,
        record::{is_recorded, recorded, revoked_serials},
        token_entry::{TokenEntry, entries},
    },
};
use neptune_join::TokenId;
use neptune_pinned_tls::Authority;
use serde_json::json;

use super::{
    broker_secret::{BROKER_SECRET, listed_serials, next_broker_secret},
    now_seconds, tokens,
};
use crate::{
    controllers::runtime::Context,
    error::Error,
    kubernetes::{FIELD_MANAGER, edge_node_writes, follow},
};

/// The longest time until a changed `EdgeNode` or address is seen.
const TICK: Duration = Duration::from_secs(2);

/// The delay after a failure.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(32));

/// What the active controller needs to keep joins.
#[derive(Debug, Clone)]
pub struct JoinSettings {
    /// The authority of the fleet.
    pub authority: Arc<Authority>,
    /// The namespace of the controller.
    pub namespace: String,
    /// The addresses of the broker for nodes. Without them those of the cluster's nodes are used.
    pub broker_addresses: Vec<String>,
}

struct JoinMaintainer<'a> {
    context: &'a Context,
    settings: &'a JoinSettings,
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    /// Both as the watch or the last write returned them.
    tokens: Option<ConfigMap>,
    broker: Option<Secret>,
}

/// Keeps joins, indefinitely. A revoked node is on the broker's list within 3 seconds, while the
/// API server answers.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn maintain_joins(context: &Context, settings: &JoinSettings) {
    let maps = tokens::api(context.client(), &settings.namespace);
    let secrets: Api<Secret> = Api::namespaced(context.client().clone(), &settings.namespace);
    let mut tokens = pin!(follow(maps.clone(), tokens::TOKENS));
    let mut broker = pin!(follow(secrets.clone(), BROKER_SECRET));
    let (tokens_now, broker_now) = (None, None);
    let mut maintainer =
        JoinMaintainer { context, settings, maps, secrets, tokens: tokens_now, broker: broker_now };
    let (mut delay, mut failures) = (TICK, 0_u32);
    loop {
        tokio::select! {
            Some(watched) = tokens.next() => maintainer.see_tokens(watched),
            Some(watched) = broker.next() => maintainer.see_broker(watched),
            () = tokio::time::sleep(delay) => {}
        }
        match maintainer.reconcile(Timestamp::now()).await {
            Ok(()) => (delay, failures) = (TICK, 0),
            // The watch brings the other write.
            Err(error) if error.class() == Class::Conflict => delay = TICK,
            Err(error) => {
                failures = failures.saturating_add(1);
                delay = RETRY.step(failures);
                if failures == 1 {
                    tracing::warn!(%error, "cannot keep the joins of nodes; retrying");
                }
            }
        }
    }
}

impl JoinMaintainer<'_> {
    fn see_tokens(&mut self, watched: Option<ConfigMap>) {
        if let Some(map) = &watched {
            for (id, why) in entries(&tokens::data(map)).1 {
                tracing::warn!(%id, why, "join token is not readable; ignored");
            }
        } else {
            self.warn_missing("ConfigMap", tokens::TOKENS);
        }
        self.tokens = watched;
    }

    fn see_broker(&mut self, watched: Option<Secret>) {
        if watched.is_none() {
            self.warn_missing("Secret", BROKER_SECRET);
        }
        self.broker = watched;
    }

    fn warn_missing(&self, kind: &str, name: &str) {
        let namespace = &self.settings.namespace;
        tracing::warn!(
            "{kind} {namespace}/{name} does not exist; apply the manifests, or: kubectl -n {namespace} create {} {name}",
            if kind == "Secret" { "secret generic" } else { "configmap" }
        );
    }

    /// A failure of one part does not stop the other.
    async fn reconcile(&mut self, now: Timestamp) -> Result<(), Error> {
        let kept = self.keep_tokens(now).await;
        let written = self.write_broker_files().await;
        kept.and(written)
    }

    async fn keep_tokens(&mut self, now: Timestamp) -> Result<(), Error> {
        let Some(map) = &self.tokens else { return Ok(()) };
        let mut data = tokens::data(map);
        let (tokens, _) = entries(&data);
        let recorded = self.record(&tokens).await;
        let nodes = &self.context.caches().nodes;
        data.retain(|key, _| {
            let Some(token) = key.parse().ok().and_then(|id: TokenId| tokens.get(&id)) else {
                return true;
            };
            let object = nodes.edge_node(token.node.as_str());
            let is_recorded = is_recorded(object.as_ref().map(|object| &object.spec), token);
            !token.is_spent(is_recorded, now)
        });
        let certificate = self.settings.authority.certificate();
        data.insert(tokens::AUTHORITY.to_owned(), certificate.to_owned());
        if map.data.as_ref() != Some(&data) {
            let next = ConfigMap { data: Some(data), ..map.clone() };
            self.tokens = Some(tokens::replace(&self.maps, &next).await?);
        }
        recorded
    }

    /// Records the uses of tokens in the `EdgeNodes`. Returns the first failure, after all.
    async fn record(&self, tokens: &BTreeMap<TokenId, TokenEntry>) -> Result<(), Error> {
        let client = self.context.client();
        let mut result = Ok(());
        for token in tokens.values() {
            let node = &token.node;
            let object = self.context.caches().nodes.edge_node(node.as_str());
            let Some(next) = recorded(object.as_ref().map(|object| &object.spec), token) else {
                continue;
            };
            let written = if let Some(object) = object {
                let spec = json!({
                    "trustedKey": next.trusted_key,
                    "certificateSerials": next.certificate_serials,
                    "revoked": next.revoked,
                });
                edge_node_writes::patch_spec(client, node, object.resource_version(), spec).await
            } else {
                edge_node_writes::create(client, node, next).await.map(drop)
            };
            match written {
                Ok(()) => tracing::info!(%node, "the join of the node is recorded"),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    async fn write_broker_files(&mut self) -> Result<(), Error> {
        let Some(secret) = &self.broker else { return Ok(()) };
        let JoinSettings { authority, namespace, broker_addresses } = self.settings;
        let nodes = &self.context.caches().nodes;
        let objects = nodes.objects().state();
        let cluster = objects.iter().map(AsRef::as_ref);
        let domain = self.context.cluster_domain();
        let names = broker_names(broker_addresses, cluster, namespace, domain);
        let edge_nodes = nodes.edge_nodes();
        let specs = edge_nodes.iter().map(|object| &object.spec);
        let revoked = revoked_serials(specs, &listed_serials(secret, authority));
        let Some(next) = next_broker_secret(secret, authority, &names, &revoked, now_seconds())?
        else {
            return Ok(());
        };
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.secrets.replace(BROKER_SECRET, &params, &next).await;
        let step = format!("update Secret {namespace}/{BROKER_SECRET}");
        self.broker = Some(written.map_err(Error::api(step))?);
        tracing::info!(revoked = revoked.len(), "files of the broker written");
        Ok(())
    }
}

//! Validates a write like the controllers do, and answers the review. Requests objects that the
//! caches lack from the API server: a model that was just applied may not be cached yet.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    core::{
        DynamicObject, Status,
        admission::{AdmissionRequest, AdmissionResponse},
    },
};
use neptune_api::EdgeNode;
use neptune_cloud_kinds::{
    each_kind,
    finding::{Finding, Missing, Referent},
    with_kind,
    worker::restart,
};
use neptune_cloud_metrics::ReviewOutcome;
use serde::de::DeserializeOwned;

use super::{
    decision::{Decision, MissingReferences, decide},
    request::{ReviewedChange, is_of_kind, is_reviewed, reviewed_change},
    suggestion::nearest,
};
use crate::{
    cache::Cached as _,
    controllers::runtime::{Context, Controller, read_config},
};

/// Timeout of one lookup at the API server. The whole review may take 5 seconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Answers admission reviews with findings about the spec and missing references.
#[derive(Clone)]
pub struct Reviewer {
    context: Context,
    references: MissingReferences,
}

impl Reviewer {
    /// Uses the caches of the controller's context.
    pub fn new(context: Context, references: MissingReferences) -> Self {
        Self { context, references }
    }

    /// The answer to a review.
    pub async fn answer(&self, request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
        let mut decision = Decision::default();
        if is_reviewed(request) {
            each_kind!(K => if is_of_kind::<K>(request) {
                decision = self.review::<K>(request).await;
            });
        }
        self.context.metrics().reviewed(match &decision {
            Decision { denied: Some(_), .. } => ReviewOutcome::Denied,
            Decision { warnings, .. } if warnings.is_empty() => ReviewOutcome::Allowed,
            Decision { .. } => ReviewOutcome::Warned,
        });
        let mut response = AdmissionResponse::from(request);
        if let Some(why) = decision.denied {
            tracing::info!(
                kind = request.kind.kind,
                namespace = request.namespace,
                name = request.name,
                reason = why,
                "write denied"
            );
            response = response.deny(&why);
            response.result = Status::failure(&why, "Forbidden").with_code(403);
        }
        response.warnings = Some(decision.warnings).filter(|warnings| !warnings.is_empty());
        response
    }

    async fn review<K: Controller>(&self, request: &AdmissionRequest<DynamicObject>) -> Decision {
        let change: ReviewedChange<K> = match reviewed_change(request) {
            Ok(Some(change)) => change,
            Ok(None) => return Decision::default(),
            Err(warning) => return Decision { denied: None, warnings: vec![warning] },
        };
        let context = &self.context;
        let mut facts = change.object.facts(context);
        K::use_config(&mut facts, Box::pin(read_config(&change.object, context)).await);
        let (findings, node_warnings) = match change.object.validate(&facts) {
            Ok(valid) => (Vec::new(), change.object.node_warnings(&facts, &valid)),
            Err(findings) => (findings, Vec::new()),
        };
        let mut findings = context.explain(findings);
        let namespace = change.object.meta().namespace.clone().unwrap_or_default();
        self.confirm(&mut findings, &namespace).await;
        let before = change.old.as_ref().map(|old| old.findings(context)).unwrap_or_default();
        let suggestion = |missing: &Missing| self.suggestion(missing, &namespace);
        let mut decision = decide(K::RESOURCE, &findings, &before, self.references, suggestion);
        let restart = restart::problem(change.object.meta());
        let known = change.old.as_ref().and_then(|old| restart::problem(old.meta()));
        if restart != known {
            decision.deny(restart);
        }
        decision.warnings.extend(change.object.warnings(&facts));
        decision.warnings.extend(node_warnings);
        decision
    }

    /// Drops findings on objects that the caches lack and the API server has, or for which it does
    /// not answer.
    async fn confirm(&self, findings: &mut Vec<Finding>, namespace: &str) {
        let missing = join_all(findings.iter().map(|finding| async {
            match &finding.missing {
                Some(missing) => self.is_missing(missing, namespace).await,
                None => true,
            }
        }));
        let mut missing = missing.await.into_iter();
        findings.retain(|_| missing.next().unwrap_or(true));
    }

    async fn is_missing(&self, Missing { referent, name }: &Missing, namespace: &str) -> bool {
        let client = self.context.client().clone();
        let lookup = async {
            match referent {
                Referent::Object(resource) => Ok::<_, kube::Error>(with_kind!(*resource, K => {
                    is_absent::<K>(Api::namespaced(client, namespace), name).await?
                })),
                Referent::Node => {
                    let has_node = !is_absent::<Node>(Api::all(client.clone()), name).await?;
                    Ok(!has_node && is_absent::<EdgeNode>(Api::all(client), name).await?)
                }
            }
        };
        match tokio::time::timeout(TIMEOUT, lookup).await {
            Ok(Ok(missing)) => missing,
            Ok(Err(error)) => {
                tracing::warn!(name, %error, "cannot check whether a referenced object exists");
                false
            }
            Err(_) => {
                tracing::warn!(name, "cannot check whether a referenced object exists: timeout");
                false
            }
        }
    }

    /// The existing name that the user may have meant.
    fn suggestion(&self, missing: &Missing, namespace: &str) -> Option<String> {
        let caches = self.context.caches();
        let names: Vec<String> = match missing.referent {
            Referent::Object(resource) => with_kind!(resource, K => {
                let here = |object: &K| object.namespace().as_deref() == Some(namespace);
                names(&K::cache(caches).state_filter(here))
            }),
            Referent::Node => caches.nodes.names().into_iter().collect(),
        };
        nearest(&missing.name, names.iter().map(String::as_str)).map(str::to_owned)
    }
}

async fn is_absent<K>(api: Api<K>, name: &str) -> Result<bool, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    Ok(api.get_opt(name).await?.is_none())
}

fn names<K: kube::Resource>(objects: &[Arc<K>]) -> Vec<String> {
    objects.iter().map(|object| object.name_any()).collect()
}

//! Looks at a write with what the cluster has, as the controllers would at the object, and answers the
//! review. Asks the API server for what the copies lack: a model that was applied a moment ago is there.

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
use serde::de::DeserializeOwned;

use super::{
    decision::{Decision, decide},
    request::{ReviewedChange, is_of_kind, is_reviewed, reviewed_change},
    suggestion::nearest,
};
use crate::{
    cache::Cached as _,
    cli::MissingReferences,
    controllers::runtime::{Context, Controller},
    finding::{Finding, Missing, Referent},
    metrics,
};

/// For the API server's answer on one name. The review itself has 5 seconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Answers reviews.
#[derive(Clone)]
pub struct Reviewer {
    context: Context,
    references: MissingReferences,
}

impl Reviewer {
    /// With the copies of a controller.
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
            Decision { denied: Some(_), .. } => metrics::ReviewOutcome::Denied,
            Decision { warnings, .. } if warnings.is_empty() => metrics::ReviewOutcome::Allowed,
            Decision { .. } => metrics::ReviewOutcome::Warned,
        });
        let mut response = AdmissionResponse::from(request);
        if let Some(why) = decision.denied {
            tracing::info!(
                kind = request.kind.kind,
                namespace = request.namespace,
                name = request.name,
                why,
                "denied"
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
        let mut findings = change.object.findings(context);
        let namespace = change.object.meta().namespace.clone().unwrap_or_default();
        self.confirm(&mut findings, &namespace).await;
        let before = change.old.as_ref().map(|old| old.findings(context)).unwrap_or_default();
        let suggestion = |missing: &Missing| self.suggestion(missing, &namespace);
        decide(K::RESOURCE, &findings, &before, self.references, suggestion)
    }

    /// Drops what is missing in the copies and not in the cluster, or of which that cannot be told.
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
        let asked = async {
            match referent {
                Referent::Object(resource) => with_kind!(*resource, K => {
                    lacks::<K>(Api::namespaced(client, namespace), name).await
                }),
                Referent::Node => lacks::<Node>(Api::all(client), name).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(Ok(missing)) => missing,
            Ok(Err(error)) => {
                tracing::warn!(name, %error, "cannot tell whether it is there");
                false
            }
            Err(_) => {
                tracing::warn!(name, "cannot tell whether it is there: no answer in time");
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
            Referent::Node => names(&caches.nodes.state()),
        };
        nearest(&missing.name, names.iter().map(String::as_str)).map(str::to_owned)
    }
}

async fn lacks<K>(api: Api<K>, name: &str) -> Result<bool, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    Ok(api.get_opt(name).await?.is_none())
}

fn names<K: kube::Resource>(objects: &[Arc<K>]) -> Vec<String> {
    objects.iter().map(|object| object.name_any()).collect()
}

//! Validating admission webhooks: a write is evaluated, sent to the matching webhooks, and stored
//! when all of them allow it.
//!
//! As in an API server, the reviewed object is complete and has passed all other checks, and dry
//! runs are reviewed too. The writes of the built-in controllers are not reviewed.

mod call;
mod matching;
mod review;
mod warning;

use futures::future::join_all;
use serde_json::Value;

use crate::cluster::{Cluster, State};
use crate::object::{ObjectKey, meta_str};
use crate::status::ApiError;
use crate::verbs::{Call, Reply};
use matching::Write;
use review::Answer;
pub use warning::headers;

/// A review for one webhook: its entry of the configuration, the uid of the review, and the
/// `AdmissionReview`.
struct Review {
    webhook: Value,
    uid: String,
    body: Value,
}

/// A write that webhooks have to allow first.
struct Pending {
    reviews: Vec<Review>,
    key: ObjectKey,
    /// The resourceVersion of the object that the write was evaluated on; "" for a new object.
    base_version: String,
    result: Reply,
}

/// The outcome of the first pass under the lock.
enum Step {
    Done(Reply),
    Pending(Pending),
}

/// Executes a write of one object unless a webhook denies it. Warnings of the webhooks are added to
/// `warnings`.
///
/// # Errors
/// Those of `change`, a denial, or a failed call of a webhook with `failurePolicy: Fail`.
pub async fn write(
    cluster: &Cluster,
    call: &Call,
    is_delete: bool,
    warnings: &mut Vec<String>,
    change: impl Fn(&mut State, &Call) -> Result<Reply, ApiError>,
) -> Result<Reply, ApiError> {
    let dry_run = call.options.dry_run()?;
    loop {
        let step = cluster.write(|state| begin(state, call, is_delete, &change))?;
        let pending = match step {
            Step::Done(reply) => return Ok(reply),
            Step::Pending(pending) => pending,
        };
        let mut received = Vec::new();
        let allowed = send(&pending.reviews, &mut received).await;
        if dry_run || allowed.is_err() {
            warnings.append(&mut received);
            return allowed.map(|()| pending.result);
        }
        let done = cluster.write(|state| {
            let current = version(state, call, &pending.key);
            (current == pending.base_version).then(|| change(state, call))
        });
        // None: the object was changed meanwhile, so the webhooks have to review the write on the
        // new state.
        if let Some(done) = done {
            warnings.append(&mut received);
            return done;
        }
    }
}

fn begin(
    state: &mut State,
    call: &Call,
    is_delete: bool,
    change: &impl Fn(&mut State, &Call) -> Result<Reply, ApiError>,
) -> Result<Step, ApiError> {
    if !matching::any(state) {
        return change(state, call).map(Step::Done);
    }
    let addresses = state.services;
    let result = change(state, &Call { options: call.options.as_dry_run(), ..call.clone() });
    state.services = addresses;
    let result = result?;
    let object = if is_delete { Value::Null } else { result.body.clone() };
    let key = if is_delete { call.key() } else { ObjectKey::from_object(&object) };
    let old = state.store.get(&call.resource.storage, &key);
    let old = old.map_or(Value::Null, |old| call.resource.in_version(&old));
    let write = Write {
        resource: &call.resource,
        subresource: call.endpoint.subresource(),
        operation: match (is_delete, old.is_null()) {
            (true, _) => "DELETE",
            (false, true) => "CREATE",
            (false, false) => "UPDATE",
        },
        namespace: &call.namespace,
        object: &object,
        old: &old,
    };
    let reviews: Vec<Review> = matching::matching(state, &write)
        .into_iter()
        .map(|webhook| {
            let uid = uuid::Uuid::new_v4().to_string();
            let body = review::request(&write, &call.options, &uid);
            Review { webhook, uid, body }
        })
        .collect();
    if reviews.is_empty() {
        return change(state, call).map(Step::Done);
    }
    let base_version = meta_str(&old, "resourceVersion").to_owned();
    Ok(Step::Pending(Pending { reviews, key, base_version, result }))
}

fn version(state: &State, call: &Call, key: &ObjectKey) -> String {
    let stored = state.store.get(&call.resource.storage, key);
    stored.map(|stored| meta_str(&stored, "resourceVersion").to_owned()).unwrap_or_default()
}

/// Calls all webhooks concurrently. The first denial, or failure with `failurePolicy: Fail`,
/// decides.
async fn send(reviews: &[Review], warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let answers = join_all(reviews.iter().map(|Review { webhook, uid, body }| async move {
        let name = webhook["name"].as_str().unwrap_or_default();
        let response = call::send(webhook, body).await;
        let answer = response.and_then(|response| review::answer(name, uid, &response));
        answer.or_else(|why| match webhook["failurePolicy"].as_str() {
            Some("Ignore") => {
                tracing::warn!(webhook = name, why, "failed calling webhook, failing open");
                Ok(Answer::default())
            }
            _ => Err(ApiError::internal(&format!("failed calling webhook {name:?}: {why}"))),
        })
    }))
    .await;
    let mut first = None;
    for answer in answers {
        let refusal = match answer {
            Ok(answer) => {
                warnings.extend(answer.warnings);
                answer.denied
            }
            Err(error) => Some(error),
        };
        first = first.or(refusal);
    }
    first.map_or(Ok(()), Err)
}

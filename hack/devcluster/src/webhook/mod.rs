//! Validating admission webhooks: a write is tried out, shown to the webhooks that want to see it, and carried out when they agree.
//!
//! As in an API server, what they see is complete and has passed every other check, and they are asked for dry runs too. Not asked:
//! for the scale subresource, for deletes of whole collections, and for what this server's own controllers do.

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
use matching::{Hook, Write};
use review::Answer;
pub use warning::headers;

/// A write that webhooks want to see.
struct Pending {
    hooks: Vec<(Hook, String, Value)>,
    key: ObjectKey,
    /// The version of the object over which it was tried out; "" for none.
    over: String,
    tried: Reply,
}

/// What is known under the lock.
enum Step {
    Done(Reply),
    Ask(Pending),
}

/// Carries out a write of one object, unless a webhook denies it. What webhooks warn of is added to `warnings`.
///
/// # Errors
/// As `change` has them, a denial, or a webhook that could not be asked and must be.
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
            Step::Ask(pending) => pending,
        };
        let mut said = Vec::new();
        let agreed = ask(&pending.hooks, &mut said).await;
        if dry_run || agreed.is_err() {
            warnings.append(&mut said);
            return agreed.map(|()| pending.tried);
        }
        let done = cluster.write(|state| {
            let now = version(state, call, &pending.key);
            (now == pending.over).then(|| change(state, call))
        });
        // Otherwise somebody wrote meanwhile, and the webhooks have seen what is not so any more.
        if let Some(done) = done {
            warnings.append(&mut said);
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
    let tried = change(state, &Call { options: call.options.as_dry_run(), ..call.clone() });
    state.services = addresses;
    let tried = tried?;
    let object = if is_delete { Value::Null } else { tried.body.clone() };
    let key = if is_delete { call.key() } else { ObjectKey::of(&object) };
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
    let hooks: Vec<_> = matching::hooks(state, &write)
        .into_iter()
        .map(|hook| {
            let uid = uuid::Uuid::new_v4().to_string();
            let review = review::request(&hook, &write, &call.options, &uid);
            (hook, uid, review)
        })
        .collect();
    if hooks.is_empty() {
        return change(state, call).map(Step::Done);
    }
    let over = meta_str(&old, "resourceVersion").to_owned();
    Ok(Step::Ask(Pending { hooks, key, over, tried }))
}

fn version(state: &State, call: &Call, key: &ObjectKey) -> String {
    let held = state.store.get(&call.resource.storage, key);
    held.map(|held| meta_str(&held, "resourceVersion").to_owned()).unwrap_or_default()
}

/// Asks all at once. The first that denies, or that fails and must not, decides.
async fn ask(hooks: &[(Hook, String, Value)], warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let answers = join_all(hooks.iter().map(|(hook, uid, review)| async move {
        let name = hook.webhook["name"].as_str().unwrap_or_default();
        let body = call::ask(&hook.webhook, review).await;
        let answer = body.and_then(|body| review::answer(name, uid, &body));
        answer.or_else(|why| match hook.webhook["failurePolicy"].as_str() {
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

//! GET of objects and of lists.

use serde_json::Value;

use super::{Call, Reply};
use crate::cluster::State;
use crate::selector::Selector;
use crate::status::ApiError;

pub fn get(state: &State, call: &Call) -> Result<Reply, ApiError> {
    check_version(state, call)?;
    call.current(state).map(Reply::ok)
}

/// The selectors of a request.
pub fn selector(call: &Call) -> Result<Selector, ApiError> {
    let mut fields = call.options.get("fieldSelector").to_owned();
    if !call.name.is_empty() {
        // A watch of one object by its path.
        fields = format!("metadata.name={}", call.name);
    }
    Selector::parse(call.options.get("labelSelector"), &fields, &call.resource.selectable)
}

/// Refuses a `resourceVersion` that the store has not reached.
fn check_version(state: &State, call: &Call) -> Result<(), ApiError> {
    let wanted = call
        .options
        .version()
        .map_err(|fault| ApiError::bad_request(format!("invalid resource version: {fault}")))?;
    let current = state.store.version();
    match wanted {
        Some(wanted) if wanted > current => Err(ApiError::too_large_version(wanted, current)),
        _ => Ok(()),
    }
}

/// All selected objects in the version of the request. `limit` is ignored: a list is one page.
pub fn list(state: &State, call: &Call) -> Result<Reply, ApiError> {
    let selector = selector(call)?;
    check_version(state, call)?;
    if !call.options.get("continue").is_empty() {
        let detail = "invalid continue token: continue key is not valid";
        return Err(ApiError::bad_request(detail));
    }
    let namespace =
        (call.resource.namespaced && !call.namespace.is_empty()).then_some(call.namespace.as_str());
    let items: Vec<Value> = state
        .store
        .list(&call.resource.storage, namespace)
        .map(|object| call.resource.in_version(object))
        .filter(|object| selector.matches(object))
        .collect();
    Ok(Reply::ok(call.resource.list(items, state.store.version())))
}

//! GET of objects and of lists, in pages.

use serde_json::Value;

use super::{Call, Reply};
use crate::cluster::State;
use crate::object::ObjectKey;
use crate::selector::Selector;
use crate::status::ApiError;

pub fn get(state: &State, call: &Call) -> Result<Reply, ApiError> {
    if let Some(wanted) = call.options.number("resourceVersion")? {
        check_version(state, wanted)?;
    }
    call.current(state).map(Reply::ok)
}

/// The selectors of a request.
pub fn selector(call: &Call) -> Result<Selector, ApiError> {
    let mut selector = call.options.get("fieldSelector").to_owned();
    if !call.name.is_empty() {
        // A watch of one object by its path.
        selector = format!("metadata.name={}", call.name);
    }
    Selector::parse(call.options.get("labelSelector"), &selector, &call.resource.selectable)
}

fn check_version(state: &State, wanted: u64) -> Result<(), ApiError> {
    let current = state.store.version();
    if wanted > current { Err(ApiError::too_large_version(wanted, current)) } else { Ok(()) }
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.";

/// Objects in the version of the request, all or a page of them.
pub fn list(state: &State, call: &Call) -> Result<Reply, ApiError> {
    let options = &call.options;
    let selector = selector(call)?;
    if let Some(wanted) = options.number("resourceVersion")? {
        check_version(state, wanted)?;
        if options.get("resourceVersionMatch") == "Exact" && wanted != state.store.version() {
            return Err(ApiError::expired(format!(
                "The resourceVersion for the provided list is too old: {wanted}"
            )));
        }
    } else if !options.get("resourceVersionMatch").is_empty() {
        return Err(ApiError::bad_request(
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    let limit = options.number("limit")?.filter(|limit| *limit > 0);
    let (version, after) = match options.get("continue") {
        "" => (state.store.version(), None),
        token => {
            let (version, after) = parse_token(token)
                .ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
            if state.store.since(version).is_err() {
                return Err(ApiError::expired(CONTINUE_EXPIRED));
            }
            (version, Some(after))
        }
    };
    let namespace =
        (call.resource.namespaced && !call.namespace.is_empty()).then_some(call.namespace.as_str());
    let mut found = state
        .store
        .list(&call.resource.storage, namespace)
        .filter(|object| after.as_ref().is_none_or(|after| ObjectKey::of(object) > *after))
        .map(|object| call.resource.in_version(object))
        .filter(|object| selector.matches(object));
    let items: Vec<Value> = match limit {
        Some(limit) => found.by_ref().take(usize::try_from(limit).unwrap_or(usize::MAX)).collect(),
        None => found.by_ref().collect(),
    };
    let remaining = found.count();
    let token = items.last().filter(|_| remaining > 0).map(|last| {
        let key = ObjectKey::of(last);
        format!("{version}/{}/{}", key.namespace, key.name)
    });
    let mut list = call.resource.list(items, version);
    if let Some(token) = token {
        list["metadata"]["continue"] = token.into();
        if options.get("labelSelector").is_empty() && options.get("fieldSelector").is_empty() {
            list["metadata"]["remainingItemCount"] = remaining.into();
        }
    }
    Ok(Reply::ok(list))
}

/// The version of the first page, and the last object that was sent.
fn parse_token(token: &str) -> Option<(u64, ObjectKey)> {
    let mut parts = token.splitn(3, '/');
    let version = parts.next()?.parse().ok()?;
    Some((version, ObjectKey::new(parts.next()?, parts.next()?)))
}

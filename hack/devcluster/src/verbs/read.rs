//! GET of objects and of lists, in pages.

use serde_json::Value;

use super::{Call, Reply};
use crate::cluster::State;
use crate::field::FieldError;
use crate::object::ObjectKey;
use crate::selector::Selector;
use crate::status::{ApiError, GroupName};

pub fn get(state: &State, call: &Call) -> Result<Reply, ApiError> {
    if let Some(wanted) = version(call)? {
        check_version(state, wanted)?;
    }
    call.current(state).map(Reply::ok)
}

fn version(call: &Call) -> Result<Option<u64>, ApiError> {
    let version = call.options.version();
    version.map_err(|fault| ApiError::bad_request(format!("invalid resource version: {fault}")))
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
    check_options(call)?;
    let wanted = version(call)?;
    if let Some(wanted) = wanted {
        check_version(state, wanted)?;
        if options.get("resourceVersionMatch") == "Exact" && wanted != state.store.version() {
            return Err(ApiError::expired(format!(
                "The resourceVersion for the provided list is too old: {wanted}"
            )));
        }
    }
    // What is at hand, which version 0 asks for, comes as a whole.
    let limit = options.number("limit")?.filter(|limit| *limit > 0 && wanted != Some(0));
    let (version, after) = match options.get("continue") {
        "" => (state.store.version(), None),
        token => {
            if wanted.is_some_and(|version| version > 0) {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (version, after) = parse_token(token).ok_or_else(|| {
                ApiError::bad_request("invalid continue token: continue key is not valid")
            })?;
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

/// What options a list may have beside each other.
fn check_options(call: &Call) -> Result<(), ApiError> {
    let matching = call.options.get("resourceVersionMatch");
    let error = if !call.options.get("sendInitialEvents").is_empty() {
        FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    } else if !matching.is_empty() && call.options.get("resourceVersion").is_empty() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        FieldError::forbidden("resourceVersionMatch", why)
    } else if !matches!(matching, "" | "Exact" | "NotOlderThan") {
        let known = ["Exact", "NotOlderThan", ""];
        FieldError::unsupported("resourceVersionMatch", matching, &known)
    } else {
        return Ok(());
    };
    let kind = GroupName { group: "meta.k8s.io", name: "ListOptions" };
    Err(ApiError::invalid(kind, "", &[error]))
}

/// The version of the first page, and the last object that was sent.
fn parse_token(token: &str) -> Option<(u64, ObjectKey)> {
    let mut parts = token.splitn(3, '/');
    let version = parts.next()?.parse().ok()?;
    Some((version, ObjectKey::new(parts.next()?, parts.next()?)))
}

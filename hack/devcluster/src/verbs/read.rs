//! GET of objects and of lists.

use serde_json::Value;

use super::{Call, Reply};
use crate::cluster::State;
use crate::object::ObjectKey;
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

/// Where a page of a list continues: after this object, in this version.
#[derive(Debug, PartialEq, Eq)]
struct Continuation {
    version: u64,
    after: ObjectKey,
}

impl std::fmt::Display for Continuation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, after } = self;
        write!(formatter, "{version}/{}/{}", after.namespace, after.name)
    }
}

impl std::str::FromStr for Continuation {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let invalid = "invalid continue token: continue key is not valid";
        let parts: Vec<_> = text.splitn(3, '/').collect();
        match (parts.as_slice(), parts[0].parse()) {
            ([_, namespace, name], Ok(version)) => {
                Ok(Self { version, after: ObjectKey::new(namespace, name) })
            }
            _ => Err(ApiError::bad_request(invalid)),
        }
    }
}

/// The selected objects: all of them, or a page of `limit`. All pages show the version of the first.
pub fn list(state: &State, call: &Call) -> Result<Reply, ApiError> {
    let selector = selector(call)?;
    check_version(state, call)?;
    let limit = call.options.number("limit")?.filter(|limit| *limit > 0);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let continuation = match call.options.get("continue") {
        "" => None,
        text => Some(text.parse::<Continuation>()?),
    };
    let version = continuation.as_ref().map_or(state.store.version(), |page| page.version);
    let objects = state.store.list_at(&call.resource.storage, version).map_err(|_| {
        ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        )
    })?;
    let after = continuation.map(|page| page.after);
    let is_wanted = |key: &ObjectKey| {
        let all = !call.resource.namespaced || call.namespace.is_empty();
        (all || key.namespace == call.namespace) && after.as_ref().is_none_or(|after| key > after)
    };
    let mut selected = objects
        .iter()
        .filter(|(key, _)| is_wanted(key))
        .map(|(key, object)| (key, call.resource.in_version(object)))
        .filter(|(_, object)| selector.matches(object));
    let (keys, items): (Vec<_>, Vec<Value>) = selected.by_ref().take(limit).unzip();
    let rest = selected.next().and(keys.last());
    let rest = rest.map(|last| Continuation { version, after: (*last).clone() });
    let mut list = call.resource.list(items, version);
    if let Some(rest) = rest {
        list["metadata"]["continue"] = rest.to_string().into();
    }
    Ok(Reply::ok(list))
}

//! POST on a collection: creates objects.

use serde_json::{Value, json};

use super::{Call, Reply, fresh_identity};
use crate::admit;
use crate::apply::record_update;
use crate::cluster::State;
use crate::crd;
use crate::object::{self, ObjectKey};
use crate::prepare;
use crate::status::{ApiError, GroupName};

const NAMESPACES: &str = "/namespaces";

pub fn create(state: &mut State, call: &Call, body: Value) -> Result<Reply, ApiError> {
    let (mut value, warnings) = call.decode(body)?;
    call.with_writer(|writer| record_update(None, &mut value, call.resource.schema(), writer))?;
    let body = insert(state, call, value)?;
    Ok(Reply { code: 201, body, warnings })
}

/// Completes, validates and stores a new object.
pub fn insert(state: &mut State, call: &Call, mut value: Value) -> Result<Value, ApiError> {
    let resource = &call.resource;
    check_definition(state, call, object::name(&value))?;
    let (uid, suffix) = &call.identity;
    prepare::create(resource, &mut value, &call.namespace, call.options.now, suffix, uid)?;
    if resource.namespaced {
        check_namespace(state, call, object::name(&value))?;
    }
    if !resource.custom && resource.plural == "services" {
        allocate_address(state, &mut value);
    }
    admit::check(resource, &value, None)?;
    if *resource.storage == *crd::STORAGE {
        value["status"] = crd::initial_status(&value);
    }
    let key = ObjectKey::from_object(&value);
    if let Some(existing) = state.store.get(&resource.storage, &key) {
        let error = ApiError::already_exists(resource.as_plural(), &key.name);
        return Err(if object::is_deleting(&existing) {
            ApiError { message: format!("object is being deleted: {}", error.message), ..error }
        } else {
            error
        });
    }
    call.store(state, value)
}

/// Refuses a new object of a kind whose definition is being deleted.
fn check_definition(state: &State, call: &Call, name: &str) -> Result<(), ApiError> {
    let kind = call.resource.as_plural();
    let definition = state.store.get(crd::STORAGE, &ObjectKey::new("", &kind.to_string()));
    if call.resource.custom
        && definition.is_some_and(|definition| crd::has_condition(&definition, "Terminating"))
    {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::forbidden(kind, name, why));
    }
    Ok(())
}

fn check_namespace(state: &State, call: &Call, name: &str) -> Result<(), ApiError> {
    let namespace = &call.namespace;
    let Some(existing) = state.store.get(NAMESPACES, &ObjectKey::new("", namespace)) else {
        return Err(ApiError::not_found(GroupName { group: "", name: "namespaces" }, namespace));
    };
    if !object::is_deleting(&existing) {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let cause = json!({"reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"});
    Err(ApiError::forbidden(call.resource.as_plural(), name, &why).with_cause(cause))
}

/// Allocates the address and the node ports of a service.
fn allocate_address(state: &mut State, value: &mut Value) {
    let spec = &mut value["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    if spec["clusterIP"].as_str().unwrap_or_default().is_empty() {
        state.services += 1;
        let [_, _, high, low] = state.services.to_be_bytes();
        spec["clusterIP"] = format!("10.96.{high}.{low}").into();
    }
    spec["clusterIPs"] = json!([spec["clusterIP"]]);
    if matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        for (position, port) in
            spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
        {
            if port["nodePort"].is_null() {
                port["nodePort"] = (30_000 + state.services as usize * 10 + position).into();
            }
        }
    }
}

/// Creates a namespace at the start of the server.
pub fn namespace(state: &mut State, name: &str, now: jiff::Timestamp) {
    let mut value = json!({
        "apiVersion": "v1", "kind": "Namespace", "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        "metadata": {"name": name, "uid": fresh_identity().0, "creationTimestamp": object::stamp(now)},
    });
    value["metadata"]["labels"] = json!({"kubernetes.io/metadata.name": name});
    state.put(NAMESPACES, value);
}

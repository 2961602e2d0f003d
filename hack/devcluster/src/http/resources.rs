//! Answers requests for objects: finds the kind, and calls the verb or opens the watch.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use serde_json::Value;

use super::{json_response, plain};
use crate::admit::Endpoint;
use crate::cluster::{Cluster, State};
use crate::request::{Options, ResourcePath};
use crate::status::ApiError;
use crate::verbs::{Call, Reply, create, delete, fresh_identity, patch, read, scale, update};
use crate::{decode, render, watch, webhook};

/// The response to one request; texts for `Warning` headers are added to `warnings`.
pub async fn answer(
    cluster: &Arc<Cluster>,
    method: &Method,
    path: ResourcePath,
    options: &Options,
    media: &str,
    bytes: &Bytes,
    warnings: &mut Vec<String>,
) -> Result<Response, ApiError> {
    if !options.accepts_json() {
        return Err(ApiError::not_acceptable(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ));
    }
    let resource = cluster
        .read(|state| state.registry.find(&path.group, &path.version, &path.plural).cloned());
    let Some(resource) = resource else {
        return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    // Namespaces are cluster-scoped objects, although their paths look namespaced.
    if path.namespace.is_some() && !resource.namespaced {
        return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    let endpoint = match path.subresource.as_deref() {
        None => Endpoint::Main,
        Some("status") if resource.has_status => Endpoint::Status,
        Some("scale") if resource.scale.is_some() => Endpoint::Scale,
        Some(_) if resource.custom => {
            let name = path.name.unwrap_or_default();
            return Err(ApiError::not_found(resource.as_plural(), &name));
        }
        Some(_) => return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n")),
    };
    let call = Call {
        resource: resource.clone(),
        endpoint,
        namespace: path.namespace.unwrap_or_default(),
        name: path.name.unwrap_or_default(),
        options: options.clone(),
        identity: fresh_identity(),
    };
    if options.flag("watch") && *method == Method::GET && endpoint == Endpoint::Main {
        return open_watch(cluster, call);
    }
    if resource.namespaced
        && call.namespace.is_empty()
        && (!call.name.is_empty() || *method != Method::GET)
    {
        return Err(ApiError::method_not_allowed(resource.as_plural()));
    }
    let reply = if *method == Method::GET {
        cluster.read(|state| get(state, &call))?
    } else {
        let change = |state: &mut State, call: &Call| write(state, call, method, media, bytes);
        webhook::write(cluster, &call, *method == Method::DELETE, warnings, change).await?
    };
    warnings.extend(reply.warnings);
    let body = render::answer(&resource, reply.body, options);
    Ok(json_response(reply.code, &body))
}

fn open_watch(cluster: &Arc<Cluster>, call: Call) -> Result<Response, ApiError> {
    let stream = watch::open(cluster, call)?;
    let mut response = Response::new(Body::from_stream(stream));
    let media = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    Ok(response)
}

fn get(state: &State, call: &Call) -> Result<Reply, ApiError> {
    if call.endpoint == Endpoint::Scale {
        return scale::get(state, call);
    }
    if call.name.is_empty() { read::list(state, call) } else { read::get(state, call) }
}

fn write(
    state: &mut State,
    call: &Call,
    method: &Method,
    media: &str,
    bytes: &Bytes,
) -> Result<Reply, ApiError> {
    let named = !call.name.is_empty();
    let kind = call.resource.kind.as_str();
    call.options.field_validation()?;
    match (call.endpoint, method.as_str()) {
        (Endpoint::Main, "POST") if !named => {
            create::create(state, call, decode::typed(media, bytes, kind)?)
        }
        (Endpoint::Scale, "PUT") => {
            scale::update(state, call, &decode::typed(media, bytes, "Scale")?)
        }
        (Endpoint::Scale, "PATCH") => scale::patch(state, call, media, bytes),
        (_, "PUT") if named => update::update(state, call, decode::typed(media, bytes, kind)?),
        (_, "PATCH") if named => patch::patch(state, call, media, bytes),
        (Endpoint::Main, "DELETE") if named => {
            delete::delete(state, call, &delete_options(media, bytes)?)
        }
        (Endpoint::Main, "PUT" | "PATCH") if call.resource.custom => {
            Err(ApiError::bad_request("name must be provided"))
        }
        _ => Err(ApiError::method_not_allowed(call.resource.as_plural())),
    }
}

fn delete_options(media: &str, bytes: &Bytes) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    decode::object(media, bytes, "DeleteOptions")
}

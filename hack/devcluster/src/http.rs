//! The HTTP side: routes a request to a document, a verb or a watch, and writes the answer. Reads the clock once a request.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{self, Query, Request};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::admit::Endpoint;
use crate::authorize::{self, User};
use crate::cluster::{Cluster, State};
use crate::patch::{APPLY, Patch};
use crate::render;
use crate::request::{Options, ResourcePath, percent_decoded};
use crate::status::ApiError;
use crate::verbs::{Call, Reply, create, delete, fresh_identity, patch, read, scale, update};
use crate::{decode, discovery, openapi, watch, webhook};

/// As in API servers; kubectl sends it with `--as`, and other clients where the kubeconfig has `as`.
const IMPERSONATE: header::HeaderName = header::HeaderName::from_static("impersonate-user");
/// As in API servers.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

pub async fn handle(
    extract::State(cluster): extract::State<Arc<Cluster>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri)
        .map(|query| query.0)
        .unwrap_or_default();
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut options =
        Options::new(query, text(header::ACCEPT), text(header::USER_AGENT), Timestamp::now());
    options.kind = match parts.method.as_str() {
        "POST" => "CreateOptions",
        "PUT" => "UpdateOptions",
        "PATCH" => "PatchOptions",
        "DELETE" => "DeleteOptions",
        _ => "GetOptions",
    };
    let path = percent_decoded(parts.uri.path());
    if let Some(response) = document(&cluster, &parts.method, &path, &options) {
        return response;
    }
    let Some(path) = ResourcePath::parse(&path) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    let Ok(bytes) = to_bytes(body, BODY_LIMIT).await else {
        return failure(&ApiError::request_too_large(BODY_LIMIT));
    };
    let media = media_type(&parts.headers);
    tracing::debug!(method = %parts.method, uri = %parts.uri, "request");
    // There is no authentication: who names nobody is the administrator, and may be anybody.
    text(IMPERSONATE).clone_into(&mut options.user);
    let user = Some(&options.user).filter(|name| !name.is_empty());
    let refused = user.and_then(|name| {
        let user = User(name.clone());
        let check = |state: &State| {
            authorize::check_request(state, &user, &parts.method, &path, &options, &media)
        };
        cluster.read(check).err()
    });
    if let Some(error) = refused {
        return failure(&error);
    }
    let mut warnings = Vec::new();
    let answered =
        answer(&cluster, &parts.method, path, &options, &media, &bytes, &mut warnings).await;
    let mut response = answered.unwrap_or_else(|error| failure(&error));
    for warning in webhook::headers(&warnings) {
        if let Ok(value) = HeaderValue::from_bytes(warning.as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

fn media_type(headers: &HeaderMap) -> String {
    let text =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_owned()
}

fn plain(code: StatusCode, text: &'static str) -> Response {
    (code, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

fn json_response(code: u16, media: &str, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media =
        HeaderValue::from_str(media).unwrap_or(HeaderValue::from_static("application/json"));
    (code, [(header::CONTENT_TYPE, media)], body.to_string()).into_response()
}

fn failure(error: &ApiError) -> Response {
    json_response(error.code, "application/json", &error.to_status())
}

/// Answers that describe the server itself; none for paths of resources.
fn document(cluster: &Cluster, method: &Method, path: &str, options: &Options) -> Option<Response> {
    if method != Method::GET && method != Method::HEAD {
        return None;
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let ok = |body: Value| Some(json_response(200, "application/json", &body));
    match parts.as_slice() {
        [""] => ok(
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        ),
        ["healthz" | "livez" | "readyz", ..] => Some(plain(StatusCode::OK, "ok")),
        ["version"] => ok(discovery::version()),
        ["api" | "apis"] => Some(cluster.read(|state| groups(state, parts[0] == "api", options))),
        ["openapi", "v2"] => Some(cluster.read(|state| openapi_v2(state, options))),
        ["openapi", "v3"] => ok(cluster.read(|state| openapi::v3::index(&state.registry))),
        ["openapi", "v3", rest @ ..] => {
            let (group, version) = match rest {
                ["api", version] => ("", *version),
                ["apis", group, version] => (*group, *version),
                _ => return None,
            };
            cluster
                .read(|state| openapi::v3::document(&state.registry, group, version))
                .and_then(ok)
        }
        ["api", version] => {
            cluster.read(|state| discovery::resources(&state.registry, "", version)).and_then(ok)
        }
        ["apis", group] => {
            cluster.read(|state| discovery::group(&state.registry, group)).and_then(ok)
        }
        ["apis", group, version] => {
            cluster.read(|state| discovery::resources(&state.registry, group, version)).and_then(ok)
        }
        _ => None,
    }
}

fn groups(state: &State, core: bool, options: &Options) -> Response {
    for form in ["v2", "v2beta1"] {
        if options
            .accept
            .contains(&format!("g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList"))
        {
            let media =
                format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
            return json_response(200, &media, &discovery::aggregated(&state.registry, core, form));
        }
    }
    let body = if core {
        discovery::core_versions("127.0.0.1")
    } else {
        discovery::groups(&state.registry)
    };
    json_response(200, "application/json", &body)
}

/// Only the protobuf form exists: no client asks for another.
fn openapi_v2(state: &State, options: &Options) -> Response {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if !options.accept.contains("proto-openapi.spec.v2") {
        return failure(&ApiError::not_acceptable(PROTOBUF));
    }
    let document = openapi::v2::document(&state.registry);
    ([(header::CONTENT_TYPE, PROTOBUF)], document).into_response()
}

async fn answer(
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
    let found = cluster
        .read(|state| state.registry.find(&path.group, &path.version, &path.plural).cloned());
    let Some(resource) = found else {
        return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    // Namespaces are cluster-scoped objects under a path that looks namespaced.
    if path.namespace.is_some() && !resource.namespaced {
        return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    let endpoint = if path.subresource.as_deref() == Some("status") {
        Endpoint::Status
    } else {
        Endpoint::Main
    };
    let wants_watch = options.flag("watch") && *method == Method::GET && path.subresource.is_none();
    let call = Call {
        resource: resource.clone(),
        endpoint,
        namespace: path.namespace.unwrap_or_default(),
        name: path.name.unwrap_or_default(),
        options: options.clone(),
        identity: fresh_identity(),
    };
    if wants_watch {
        let stream = watch::open(cluster, call)?;
        let mut response = Response::new(Body::from_stream(stream));
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return Ok(response);
    }
    if resource.namespaced
        && call.namespace.is_empty()
        && (!call.name.is_empty() || *method != Method::GET)
    {
        return Err(ApiError::method_not_allowed(resource.as_plural()));
    }
    let part = match path.subresource.as_deref() {
        None => Part::Main,
        Some("status") if resource.has_status => Part::Status,
        Some("scale") if resource.scale.is_some() => Part::Scale,
        Some(_) if resource.custom => {
            return Err(ApiError::not_found(resource.as_plural(), &call.name));
        }
        Some(_) => return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n")),
    };
    warnings.extend(resource.deprecated.clone());
    let reply = if *method == Method::GET {
        cluster.read(|state| read(state, &call, part))?
    } else {
        let change =
            |state: &mut State, call: &Call| write(state, call, part, method, media, bytes);
        let is_delete = *method == Method::DELETE;
        if part == Part::Scale || is_delete && call.name.is_empty() {
            cluster.write(|state| change(state, &call))?
        } else {
            webhook::write(cluster, &call, is_delete, warnings, change).await?
        }
    };
    warnings.extend(reply.warnings);
    let body = render::answer(&resource, reply.body, options);
    Ok(json_response(reply.code, "application/json", &body))
}

/// What of an object a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Main,
    Status,
    Scale,
}

fn read(state: &State, call: &Call, part: Part) -> Result<Reply, ApiError> {
    match (part, &call.resource.scale) {
        (Part::Scale, Some(scale)) => scale::get(state, call, scale),
        (Part::Main, _) if call.name.is_empty() => read::list(state, call),
        _ => read::get(state, call),
    }
}

fn write(
    state: &mut State,
    call: &Call,
    part: Part,
    method: &Method,
    media: &str,
    bytes: &Bytes,
) -> Result<Reply, ApiError> {
    let named = !call.name.is_empty();
    let kind = call.resource.kind.as_str();
    call.options.field_validation()?;
    match (part, method.as_str(), &call.resource.scale) {
        (Part::Main, "POST", _) if !named => {
            create::create(state, call, decode::typed(media, bytes, kind)?)
        }
        (Part::Main | Part::Status, "PUT", _) if named => {
            update::update(state, call, decode::typed(media, bytes, kind)?)
        }
        (Part::Main | Part::Status, "PATCH", _) if named => patch::patch(state, call, media, bytes),
        (Part::Main, "DELETE", _) => {
            let options = delete_options(media, bytes)?;
            if named {
                delete::delete(state, call, &options)
            } else {
                delete::delete_collection(state, call, &options)
            }
        }
        (Part::Scale, "PUT", Some(scale)) => {
            scale::update(state, call, scale, &decode::object(media, bytes, "Scale")?.value)
        }
        (Part::Scale, "PATCH", Some(scale)) if media != APPLY => {
            let patch = Patch::parse(media, decode::yaml(bytes)?.value)?;
            scale::patch(state, call, scale, &patch)
        }
        (Part::Main, "PUT" | "PATCH", _) if call.resource.custom => {
            Err(ApiError::bad_request("name must be provided"))
        }
        _ => Err(ApiError::method_not_allowed(call.resource.as_plural())),
    }
}

fn delete_options(media: &str, bytes: &Bytes) -> Result<Value, ApiError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    decode::object(media, bytes, "DeleteOptions").map(|body| body.value)
}

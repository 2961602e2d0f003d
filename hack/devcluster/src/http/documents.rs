//! Answers the paths that describe the server: health, version, discovery and `OpenAPI`.

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{failure, json_response, plain};
use crate::cluster::{Cluster, State};
use crate::request::Options;
use crate::status::ApiError;
use crate::{discovery, openapi};

/// The document at a path; none for paths of objects.
pub fn find(cluster: &Cluster, method: &Method, path: &str, options: &Options) -> Option<Response> {
    if method != Method::GET && method != Method::HEAD {
        return None;
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => Some(plain(StatusCode::OK, "ok")),
        ["openapi", "v2"] => Some(cluster.read(|state| openapi_v2(state, options))),
        parts => {
            let body = cluster.read(|state| body(state, parts))?;
            Some(json_response(200, &body))
        }
    }
}

fn body(state: &State, parts: &[&str]) -> Option<Value> {
    let registry = &state.registry;
    match parts {
        [""] => Some(
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        ),
        ["version"] => Some(discovery::version()),
        ["api"] => Some(discovery::core_versions("127.0.0.1")),
        ["apis"] => Some(discovery::groups(registry)),
        ["api", version] => discovery::resources(registry, "", version),
        ["apis", group] => discovery::group(registry, group),
        ["apis", group, version] => discovery::resources(registry, group, version),
        ["openapi", "v3"] => Some(openapi::v3::index(registry)),
        ["openapi", "v3", "api", version] => openapi::v3::document(registry, "", version),
        ["openapi", "v3", "apis", group, version] => {
            openapi::v3::document(registry, group, version)
        }
        _ => None,
    }
}

/// Only the protobuf form exists: no client of ours requests another one.
fn openapi_v2(state: &State, options: &Options) -> Response {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if !options.accept.contains("proto-openapi.spec.v2") {
        return failure(&ApiError::not_acceptable(PROTOBUF));
    }
    let document = openapi::v2::document(&state.registry);
    ([(header::CONTENT_TYPE, PROTOBUF)], document).into_response()
}

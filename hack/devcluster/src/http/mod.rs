//! The HTTP entry point: reads a request, authorizes it, and writes the response. Reads the clock
//! once per request.
//!
//! `documents` answers the paths that describe the server, `resources` those of objects.

mod documents;
mod resources;

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{self, Query, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::Value;

use crate::authorize::{self, User};
use crate::cluster::{Cluster, State};
use crate::request::{Options, ResourcePath, percent_decoded};
use crate::status::ApiError;
use crate::webhook;

/// Sent by `kubectl --as` and by clients whose kubeconfig has `as`.
const IMPERSONATE: header::HeaderName = header::HeaderName::from_static("impersonate-user");
/// Limit of an API server for request bodies, in bytes.
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
    if let Some(response) = documents::find(&cluster, &parts.method, &path, &options) {
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
    // Clients are not authenticated: one that impersonates nobody is the administrator.
    text(IMPERSONATE).clone_into(&mut options.user);
    let user = Some(&options.user).filter(|name| !name.is_empty());
    let refusal = user.and_then(|name| {
        let user = User(name.clone());
        let check = |state: &State| {
            authorize::check_request(state, &user, &parts.method, &path, &options, &media)
        };
        cluster.read(check).err()
    });
    if let Some(error) = refusal {
        return failure(&error);
    }
    let mut warnings = Vec::new();
    let answer =
        resources::answer(&cluster, &parts.method, path, &options, &media, &bytes, &mut warnings);
    let mut response = answer.await.unwrap_or_else(|error| failure(&error));
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

fn json_response(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn failure(error: &ApiError) -> Response {
    json_response(error.code, &error.to_status())
}

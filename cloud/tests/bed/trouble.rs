//! Stands between the controller and the API server, and refuses what the test wants refused.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode, header::HOST},
    response::{IntoResponse as _, Response},
};
use kube::Client;
use serde_json::json;

/// What is refused, and how. Cheap to clone.
#[derive(Clone)]
pub struct Trouble(Arc<Inner>);

struct Inner {
    client: Client,
    rule: Mutex<Option<Rule>>,
    refused: AtomicUsize,
}

struct Rule {
    method: &'static str,
    part_of_path: &'static str,
    code: u16,
}

impl Trouble {
    /// Starts with none, on an address of its own.
    pub async fn before(client: Client) -> (Self, String) {
        let inner = Inner { client, rule: Mutex::new(None), refused: AtomicUsize::new(0) };
        let trouble = Self(Arc::new(inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(pass).with_state(trouble.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (trouble, url)
    }

    /// From now on these requests get that code; an empty text matches all.
    pub fn begin(&self, method: &'static str, part_of_path: &'static str, code: u16) {
        *self.0.rule.lock().unwrap() = Some(Rule { method, part_of_path, code });
    }

    /// No more.
    pub fn end(&self) {
        *self.0.rule.lock().unwrap() = None;
    }

    /// How many requests were refused so far.
    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::SeqCst)
    }

    fn code(&self, request: &Request<Body>) -> Option<u16> {
        let rule = self.0.rule.lock().unwrap();
        let rule = rule.as_ref()?;
        let (method, path) = (request.method().as_str(), request.uri().path());
        let hits = method.contains(rule.method) && path.contains(rule.part_of_path);
        hits.then_some(rule.code)
    }
}

async fn pass(State(trouble): State<Trouble>, mut request: Request<Body>) -> Response {
    if let Some(code) = trouble.code(&request) {
        trouble.0.refused.fetch_add(1, Ordering::SeqCst);
        let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": "Trouble", "message": "the test says no"});
        return (StatusCode::from_u16(code).unwrap(), Json(status)).into_response();
    }
    request.headers_mut().remove(HOST);
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    match trouble.0.client.send(Request::from_parts(parts, body.into())).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

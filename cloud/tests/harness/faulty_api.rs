//! An HTTP proxy between the controller and the API server that fails the requests that a test
//! selects.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
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

/// A handle of the proxy. Cheap to clone.
#[derive(Clone)]
pub struct FaultyApi(Arc<Inner>);

struct Inner {
    client: Client,
    rule: Mutex<Option<Rule>>,
    /// Method and path of each request.
    requests: Mutex<Vec<(String, String)>>,
    failed: AtomicUsize,
}

struct Rule {
    method: &'static str,
    part_of_path: &'static str,
    code: u16,
}

impl FaultyApi {
    /// Starts the proxy, which passes all requests on. Returns its address.
    pub async fn start(client: Client) -> (Self, SocketAddr) {
        let (rule, requests) = (Mutex::default(), Mutex::default());
        let inner = Inner { client, rule, requests, failed: AtomicUsize::new(0) };
        let faulty_api = Self(Arc::new(inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(pass).with_state(faulty_api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (faulty_api, address)
    }

    /// From now on requests with this method and part of the path get this code. An empty text
    /// matches all.
    pub fn fail(&self, method: &'static str, part_of_path: &'static str, code: u16) {
        *self.0.rule.lock().unwrap() = Some(Rule { method, part_of_path, code });
    }

    /// Passes all requests on again.
    pub fn recover(&self) {
        *self.0.rule.lock().unwrap() = None;
    }

    /// How many requests have failed so far.
    pub fn failed(&self) -> usize {
        self.0.failed.load(Ordering::SeqCst)
    }

    /// How many requests had this method and part of the path so far.
    pub fn requests(&self, method: &str, part_of_path: &str) -> usize {
        let requests = self.0.requests.lock().unwrap();
        let matches =
            |(verb, path): &&(String, String)| verb == method && path.contains(part_of_path);
        requests.iter().filter(matches).count()
    }

    fn code(&self, request: &Request<Body>) -> Option<u16> {
        let rule = self.0.rule.lock().unwrap();
        let rule = rule.as_ref()?;
        let (method, path) = (request.method().as_str(), request.uri().path());
        let matches = method.contains(rule.method) && path.contains(rule.part_of_path);
        matches.then_some(rule.code)
    }
}

async fn pass(State(faulty_api): State<FaultyApi>, mut request: Request<Body>) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    faulty_api.0.requests.lock().unwrap().push((method, path));
    if let Some(code) = faulty_api.code(&request) {
        faulty_api.0.failed.fetch_add(1, Ordering::SeqCst);
        let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": "Refused", "message": "refused by the test"});
        return (StatusCode::from_u16(code).unwrap(), Json(status)).into_response();
    }
    request.headers_mut().remove(HOST);
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    match faulty_api.0.client.send(Request::from_parts(parts, body.into())).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

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
use futures::StreamExt as _;
use kube::Client;
use serde_json::json;
use tokio::sync::watch;

/// A handle of the proxy. Cheap to clone.
#[derive(Clone)]
pub struct FaultyApi(Arc<Inner>);

struct Inner {
    client: Client,
    rule: Mutex<Option<Rule>>,
    /// Method and path of each request.
    requests: Mutex<Vec<(String, String)>>,
    failed: AtomicUsize,
    /// Watches whose path contains this text bring nothing.
    held: watch::Sender<Option<&'static str>>,
    /// Requests whose path contains one of these texts wait.
    held_requests: watch::Sender<&'static [&'static str]>,
}

struct Rule {
    method: &'static str,
    part_of_path: &'static str,
    code: u16,
    /// Whether the API server gets the request all the same.
    is_passed: bool,
}

impl FaultyApi {
    /// Starts the proxy, which passes all requests on. Returns its address.
    pub async fn start(client: Client) -> (Self, SocketAddr) {
        let (rule, requests) = (Mutex::default(), Mutex::default());
        let (failed, held) = (AtomicUsize::new(0), watch::Sender::new(None));
        let held_requests = watch::Sender::default();
        let inner = Inner { client, rule, requests, failed, held, held_requests };
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
        self.set_rule(Rule { method, part_of_path, code, is_passed: false });
    }

    /// From now on the API server gets these requests, and its answers are replaced by a 504.
    pub fn lose_answers(&self, method: &'static str, part_of_path: &'static str) {
        self.set_rule(Rule { method, part_of_path, code: 504, is_passed: true });
    }

    fn set_rule(&self, rule: Rule) {
        *self.0.rule.lock().unwrap() = Some(rule);
    }

    /// Passes all requests on again.
    pub fn recover(&self) {
        *self.0.rule.lock().unwrap() = None;
    }

    /// From now on the events of watches with this part of the path wait, until it is `None`.
    pub fn hold_watches(&self, part_of_path: Option<&'static str>) {
        self.0.held.send_replace(part_of_path);
    }

    /// From now on requests except for watches wait that have one of these parts of the path.
    pub fn hold_requests(&self, parts_of_path: &'static [&'static str]) {
        self.0.held_requests.send_replace(parts_of_path);
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

    fn delayed(&self, path: String, body: Body) -> Body {
        let held = self.0.held.subscribe();
        let events = body.into_data_stream().then(move |event| {
            let (mut held, path) = (held.clone(), path.clone());
            async move {
                held.wait_for(|held| !held.is_some_and(|part| path.contains(part))).await.unwrap();
                event
            }
        });
        Body::from_stream(events)
    }

    /// The code that replaces the answer of a request, and whether the API server gets it.
    fn fault(&self, request: &Request<Body>) -> Option<(u16, bool)> {
        let rule = self.0.rule.lock().unwrap();
        let rule = rule.as_ref()?;
        let (method, path) = (request.method().as_str(), request.uri().path());
        let matches = method.contains(rule.method) && path.contains(rule.part_of_path);
        matches.then_some((rule.code, rule.is_passed))
    }
}

fn refusal(code: u16) -> Response {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": "Refused", "message": "refused by the test"});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}

async fn pass(State(faulty_api): State<FaultyApi>, mut request: Request<Body>) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    faulty_api.0.requests.lock().unwrap().push((method, path));
    let fault = faulty_api.fault(&request);
    if let Some((code, is_passed)) = fault {
        faulty_api.0.failed.fetch_add(1, Ordering::SeqCst);
        if !is_passed {
            return refusal(code);
        }
    }
    request.headers_mut().remove(HOST);
    let path = request.uri().path().to_owned();
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    if !is_watch {
        let mut held = faulty_api.0.held_requests.subscribe();
        let passes = |held: &&[&str]| !held.iter().any(|part| path.contains(part));
        held.wait_for(passes).await.unwrap();
    }
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    let answer = faulty_api.0.client.send(Request::from_parts(parts, body.into())).await;
    if let Some((code, _)) = fault {
        return refusal(code);
    }
    match answer {
        Ok(answer) if is_watch => answer.map(|body| faulty_api.delayed(path, Body::new(body))),
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

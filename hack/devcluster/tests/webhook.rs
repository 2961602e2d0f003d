//! Validating admission webhooks, called over TLS. The webhook here returns the response of the
//! test.
#![allow(clippy::unwrap_used)]

mod harness;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{TestServer, WIDGET_CRD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::{Method, Response};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const WIDGETS: &str = "/apis/devcluster.example/v1/namespaces/default/widgets";
const CONFIGURATIONS: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

type Answer = Box<dyn FnMut(&Value) -> Value + Send>;

/// A server with the widget definition, and one webhook.
struct Fixture {
    server: TestServer,
    http: reqwest::Client,
    port: u16,
    authority: String,
    /// The received reviews, in order.
    seen: Arc<Mutex<Vec<Value>>>,
}

/// The response of the API server.
#[derive(Debug)]
struct Outcome {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Fixture {
    /// `answer` returns the response to a review, without the uid.
    async fn new(answer: impl FnMut(&Value) -> Value + Send + 'static) -> Self {
        // An error means that another test of this process has installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = TestServer::start().await;
        let (authority, acceptor) = certificate();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(answer)));
        tokio::spawn(listen(listener, acceptor, Arc::clone(&seen), answer));
        let fixture = Self { server, http: reqwest::Client::new(), port, authority, seen };
        let crd: Value = serde_saphyr::from_str(WIDGET_CRD).unwrap();
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(fixture.send(Method::POST, crds, "application/json", &crd).await.code, 201);
        while fixture.send(Method::GET, WIDGETS, "", &Value::Null).await.code != 200 {
            tokio::task::yield_now().await;
        }
        fixture
    }

    /// Registers the webhook for widgets; `more` overrides fields.
    async fn register(&self, more: Value) {
        let bundle = k8s_openapi::ByteString(self.authority.clone().into_bytes());
        let mut webhook = json!({
            "name": "widgets.devcluster.example", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("https://localhost:{}/review", self.port), "caBundle": bundle},
            "rules": [{"operations": ["*"], "apiGroups": ["devcluster.example"], "apiVersions": ["v1"], "resources": ["widgets"]}],
        });
        for (field, value) in more.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "test"}, "webhooks": [webhook]});
        let outcome =
            self.send(Method::POST, CONFIGURATIONS, "application/json", &configuration).await;
        assert_eq!(outcome.code, 201, "{outcome:?}");
    }

    async fn send(&self, method: Method, path: &str, media: &str, body: &Value) -> Outcome {
        let url = format!("http://{}{path}", self.server.address);
        let mut request = self.http.request(method, url);
        if !body.is_null() {
            request = request.header("content-type", media).body(body.to_string());
        }
        outcome(request.send().await.unwrap()).await
    }

    async fn create(&self, name: &str) -> Outcome {
        self.send(Method::POST, WIDGETS, "application/json", &widget(name)).await
    }

    fn last(&self) -> Value {
        self.seen.lock().unwrap().last().cloned().unwrap_or_default()
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

async fn outcome(response: Response) -> Outcome {
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let warnings = warnings.collect();
    let body = serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default();
    Outcome { code, warnings, body }
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "devcluster.example/v1", "kind": "Widget", "metadata": {"name": name},
        "spec": {"size": 3, "ports": [{"port": 80}]}})
}

fn certificate() -> (String, TlsAcceptor) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (authority.pem(), TlsAcceptor::from(Arc::new(config)))
}

async fn listen(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    seen: Arc<Mutex<Vec<Value>>>,
    answer: Arc<Mutex<Answer>>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, seen, answer) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&answer));
        tokio::spawn(async move {
            // The handshake fails when the client does not trust the certificate.
            let _ = serve_one(stream, acceptor, &seen, &answer).await;
        });
    }
}

/// Reads one request and sends the response.
async fn serve_one(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    seen: &Mutex<Vec<Value>>,
    answer: &Mutex<Answer>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let mut request = serde_json::from_slice::<Value>(&body).unwrap()["request"].take();
    let mut response = answer.lock().unwrap()(&request);
    let wait = response["wait"].take().as_u64().unwrap_or_default();
    if response["uid"].is_null() {
        response["uid"] = request["uid"].clone();
    }
    seen.lock().unwrap().push(request.take());
    tokio::time::sleep(Duration::from_secs(wait)).await;
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}).to_string();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[tokio::test]
async fn denial_and_warnings_of_the_webhook_reach_the_client() {
    let fixture = Fixture::new(|request| match request["name"].as_str() {
        Some("bad") => json!({"allowed": false, "warnings": ["size \"3\" is odd"],
            "status": {"code": 403, "reason": "Forbidden", "message": "no bad names"}}),
        _ => json!({"allowed": true, "warnings": ["größer", "größer"]}),
    })
    .await;
    fixture.register(json!({})).await;
    let denied = fixture.create("bad").await;
    assert_eq!((denied.code, &denied.body["reason"]), (403, &json!("Forbidden")));
    assert_eq!(
        denied.body["message"],
        "admission webhook \"widgets.devcluster.example\" denied the request: no bad names"
    );
    assert_eq!(denied.warnings, [r#"299 - "size \"3\" is odd""#]);
    let path = format!("{WIDGETS}/bad");
    assert_eq!(fixture.send(Method::GET, &path, "", &Value::Null).await.code, 404);
    let good = fixture.create("good").await;
    assert_eq!((good.code, good.warnings), (201, vec!["299 - \"größer\"".to_owned()]));
}

#[tokio::test]
async fn webhook_reviews_complete_and_valid_objects() {
    let fixture = Fixture::new(|_| json!({"allowed": true})).await;
    fixture.register(json!({})).await;
    let mut generated = widget("");
    generated["metadata"] = json!({"generateName": "w-"});
    let created = fixture.send(Method::POST, WIDGETS, "application/json", &generated).await.body;
    let seen = fixture.last();
    assert_eq!(seen["object"]["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(seen["name"], created["metadata"]["name"]);
    assert_eq!((&seen["operation"], &seen["oldObject"]), (&json!("CREATE"), &Value::Null));
    assert_eq!(
        seen["kind"],
        json!({"group": "devcluster.example", "version": "v1", "kind": "Widget"})
    );
    assert_eq!(seen["namespace"], "default");
    fixture.create("a").await;
    let a = format!("{WIDGETS}/a");
    let merge = "application/merge-patch+json";
    fixture.send(Method::PATCH, &a, merge, &json!({"spec": {"size": 5}})).await;
    let seen = fixture.last();
    assert_eq!((&seen["operation"], &seen["dryRun"]), (&json!("UPDATE"), &json!(false)));
    let size = |object: &str| seen[object]["spec"]["size"].clone();
    assert_eq!((size("oldObject"), size("object")), (json!(3), json!(5)));
    let dry = format!("{a}?dryRun=All");
    let tried = fixture.send(Method::PATCH, &dry, merge, &json!({"spec": {"size": 7}})).await;
    assert_eq!((tried.code, &fixture.last()["dryRun"]), (200, &json!(true)));
    let apply = format!("{WIDGETS}/applied?fieldManager=test");
    fixture.send(Method::PATCH, &apply, "application/apply-patch+yaml", &widget("applied")).await;
    assert_eq!(fixture.last()["operation"], "CREATE");
    let before = fixture.count();
    let refused = fixture.send(Method::PATCH, &a, merge, &json!({"spec": {"size": 0}})).await;
    assert_eq!((refused.code, fixture.count()), (422, before), "the schema is checked first");
    let status = format!("{a}/status");
    fixture.send(Method::PATCH, &status, merge, &json!({"status": {"phase": "x"}})).await;
    assert_eq!(fixture.count(), before, "no rule names the status");
    fixture.send(Method::DELETE, &a, "", &Value::Null).await;
    let seen = fixture.last();
    assert_eq!((&seen["operation"], &seen["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(seen["oldObject"]["spec"]["size"], 5, "the dry run changed nothing");
}

#[tokio::test]
async fn failure_policy_decides_when_the_webhook_fails() {
    let wrong_uid = || Fixture::new(|_| json!({"allowed": true, "uid": "another"}));
    for policy in ["Fail", "Ignore"] {
        let fixture = wrong_uid().await;
        fixture.register(json!({"failurePolicy": policy})).await;
        let outcome = fixture.create("a").await;
        if policy == "Ignore" {
            assert_eq!((outcome.code, outcome.warnings), (201, Vec::new()));
        } else {
            let message = outcome.body["message"].as_str().unwrap();
            assert_eq!((outcome.code, &outcome.body["reason"]), (500, &json!("InternalError")));
            assert!(message.starts_with("Internal error occurred: failed calling webhook \"widgets.devcluster.example\": expected response.uid="), "{message}");
        }
    }
}

#[tokio::test]
async fn only_certificates_of_the_ca_bundle_are_trusted() {
    let fixture = Fixture::new(|_| json!({"allowed": true})).await;
    let (unknown, _) = certificate();
    let unknown = k8s_openapi::ByteString(unknown.into_bytes());
    let own = k8s_openapi::ByteString(fixture.authority.clone().into_bytes());
    let service = json!({"service": {"name": "w", "namespace": "default"}});
    let at = |host: &str, bundle| json!({"url": format!("https://{host}:{}/", fixture.port), "caBundle": bundle});
    for (config, expected) in [
        // The same name with another key.
        (at("localhost", &unknown), "invalid peer certificate"),
        (at("127.0.0.1", &own), "certificate not valid for name"),
        (json!({"url": "https://127.0.0.1:9/"}), "onnection refused"),
        (service, "no endpoints available for service \"w\""),
    ] {
        fixture.register(json!({ "clientConfig": config })).await;
        let message = fixture.create("a").await.body["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("failed to call webhook: ") && message.contains(expected),
            "{message}"
        );
        let path = format!("{CONFIGURATIONS}/test");
        fixture.send(Method::DELETE, &path, "", &Value::Null).await;
    }
    assert_eq!(fixture.count(), 0);
}

#[tokio::test]
async fn slow_webhook_times_out_and_blocks_no_other_write() {
    let fixture = Fixture::new(|_| json!({"allowed": true, "wait": 20})).await;
    fixture.register(json!({"failurePolicy": "Ignore", "timeoutSeconds": 1})).await;
    let began = Instant::now();
    let (slow, other) = tokio::join!(fixture.create("a"), async {
        let namespaces = "/api/v1/namespaces/default/configmaps";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        let code = fixture.send(Method::POST, namespaces, "application/json", &map).await.code;
        (code, began.elapsed())
    });
    assert_eq!((slow.code, other.0), (201, 201));
    assert!(began.elapsed() >= Duration::from_secs(1) && other.1 < Duration::from_secs(1));
}

#[tokio::test]
async fn write_is_reviewed_again_after_a_concurrent_change() {
    let fixture = Fixture::new(|request| {
        let first = request["oldObject"]["metadata"]["labels"]["race"].is_null();
        json!({"allowed": true, "wait": u64::from(first && request["object"]["spec"]["size"] == 9)})
    })
    .await;
    fixture.create("a").await;
    fixture.register(json!({})).await;
    let (a, merge) = (format!("{WIDGETS}/a"), "application/merge-patch+json");
    let nine = json!({"spec": {"size": 9}});
    let slow = fixture.send(Method::PATCH, &a, merge, &nine);
    let quick = async {
        while fixture.count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let label = json!({"metadata": {"labels": {"race": "won"}}});
        fixture.send(Method::PATCH, &a, merge, &label).await
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!((slow.code, quick.code), (200, 200));
    assert_eq!(slow.body["metadata"]["labels"]["race"], "won");
    assert_eq!(fixture.last()["oldObject"]["metadata"]["labels"]["race"], "won");
    assert_eq!(fixture.count(), 3, "the slow write is reviewed twice");
}

//! Validating admission webhooks, asked over real TLS. The webhook here says what the test wants.
#![allow(clippy::unwrap_used)]

mod bed;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bed::{Bed, WIDGET_CRD};
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

/// A cluster with widgets and one webhook.
struct Stage {
    bed: Bed,
    http: reqwest::Client,
    port: u16,
    authority: String,
    /// The requests of the reviews, in order.
    seen: Arc<Mutex<Vec<Value>>>,
}

/// What an API server answered.
#[derive(Debug)]
struct Ended {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

impl Stage {
    /// `answer` makes the response of a review, without the uid.
    async fn new(answer: impl FnMut(&Value) -> Value + Send + 'static) -> Self {
        // An error means that another test of this process was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bed = Bed::start().await;
        let (authority, acceptor) = certificate();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(answer)));
        tokio::spawn(listen(listener, acceptor, Arc::clone(&seen), answer));
        let stage = Self { bed, http: reqwest::Client::new(), port, authority, seen };
        let crd: Value = serde_saphyr::from_str(WIDGET_CRD).unwrap();
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(stage.send(Method::POST, crds, "application/json", &crd).await.code, 201);
        while stage.send(Method::GET, WIDGETS, "", &Value::Null).await.code != 200 {
            tokio::task::yield_now().await;
        }
        stage
    }

    /// Registers the webhook for widgets, changed by the fields of `more`.
    async fn register(&self, more: Value) {
        let bundle = k8s_openapi::ByteString(self.authority.clone().into_bytes());
        let mut webhook = json!({
            "name": "widgets.devcluster.example", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("https://localhost:{}/look", self.port), "caBundle": bundle},
            "rules": [{"operations": ["*"], "apiGroups": ["devcluster.example"], "apiVersions": ["v1"], "resources": ["widgets"]}],
        });
        for (field, value) in more.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "test"}, "webhooks": [webhook]});
        let ended =
            self.send(Method::POST, CONFIGURATIONS, "application/json", &configuration).await;
        assert_eq!(ended.code, 201, "{ended:?}");
    }

    async fn send(&self, method: Method, path: &str, media: &str, body: &Value) -> Ended {
        let url = format!("http://{}{path}", self.bed.address);
        let mut request = self.http.request(method, url);
        if !body.is_null() {
            request = request.header("content-type", media).body(body.to_string());
        }
        ended(request.send().await.unwrap()).await
    }

    async fn create(&self, name: &str) -> Ended {
        self.send(Method::POST, WIDGETS, "application/json", &widget(name)).await
    }

    fn last(&self) -> Value {
        self.seen.lock().unwrap().last().cloned().unwrap_or_default()
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

async fn ended(response: Response) -> Ended {
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let warnings = warnings.collect();
    let body = serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default();
    Ended { code, warnings, body }
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
            // A client that does not trust us ends here.
            let _ = one(stream, acceptor, &seen, &answer).await;
        });
    }
}

/// Reads one request and answers it.
async fn one(
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
async fn a_denial_is_the_webhooks_and_what_it_warns_of_is_said_too() {
    let stage = Stage::new(|request| match request["name"].as_str() {
        Some("bad") => json!({"allowed": false, "warnings": ["size \"3\" is odd"],
            "status": {"code": 403, "reason": "Forbidden", "message": "no bad names"}}),
        _ => json!({"allowed": true, "warnings": ["größer", "größer"]}),
    })
    .await;
    stage.register(json!({})).await;
    let denied = stage.create("bad").await;
    assert_eq!((denied.code, &denied.body["reason"]), (403, &json!("Forbidden")));
    assert_eq!(
        denied.body["message"],
        "admission webhook \"widgets.devcluster.example\" denied the request: no bad names"
    );
    assert_eq!(denied.warnings, [r#"299 - "size \"3\" is odd""#]);
    let path = format!("{WIDGETS}/bad");
    assert_eq!(stage.send(Method::GET, &path, "", &Value::Null).await.code, 404);
    let good = stage.create("good").await;
    assert_eq!((good.code, good.warnings), (201, vec!["299 - \"größer\"".to_owned()]));
}

#[tokio::test]
async fn the_webhook_sees_each_write_whole_and_only_what_may_be_stored() {
    let stage = Stage::new(|_| json!({"allowed": true})).await;
    stage.register(json!({})).await;
    let mut generated = widget("");
    generated["metadata"] = json!({"generateName": "w-"});
    let made = stage.send(Method::POST, WIDGETS, "application/json", &generated).await.body;
    let seen = stage.last();
    assert_eq!(seen["object"]["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(seen["name"], made["metadata"]["name"]);
    assert_eq!((&seen["operation"], &seen["oldObject"]), (&json!("CREATE"), &Value::Null));
    assert_eq!(
        seen["kind"],
        json!({"group": "devcluster.example", "version": "v1", "kind": "Widget"})
    );
    assert_eq!(seen["namespace"], "default");
    stage.create("a").await;
    let a = format!("{WIDGETS}/a");
    let merge = "application/merge-patch+json";
    stage.send(Method::PATCH, &a, merge, &json!({"spec": {"size": 5}})).await;
    let seen = stage.last();
    assert_eq!((&seen["operation"], &seen["dryRun"]), (&json!("UPDATE"), &json!(false)));
    let size = |object: &str| seen[object]["spec"]["size"].clone();
    assert_eq!((size("oldObject"), size("object")), (json!(3), json!(5)));
    let dry = format!("{a}?dryRun=All");
    let tried = stage.send(Method::PATCH, &dry, merge, &json!({"spec": {"size": 7}})).await;
    assert_eq!((tried.code, &stage.last()["dryRun"]), (200, &json!(true)));
    let apply = format!("{WIDGETS}/applied?fieldManager=test");
    stage.send(Method::PATCH, &apply, "application/apply-patch+yaml", &widget("applied")).await;
    assert_eq!(stage.last()["operation"], "CREATE");
    let before = stage.count();
    let refused = stage.send(Method::PATCH, &a, merge, &json!({"spec": {"size": 0}})).await;
    assert_eq!((refused.code, stage.count()), (422, before), "the schema speaks first");
    let status = format!("{a}/status");
    stage.send(Method::PATCH, &status, merge, &json!({"status": {"phase": "x"}})).await;
    assert_eq!(stage.count(), before, "no rule names the status");
    stage.send(Method::DELETE, &a, "", &Value::Null).await;
    let seen = stage.last();
    assert_eq!((&seen["operation"], &seen["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!(seen["oldObject"]["spec"]["size"], 5, "the dry run changed nothing");
}

#[tokio::test]
async fn a_webhook_that_fails_forbids_or_lets_pass_as_its_policy_says() {
    let wrong_uid = || Stage::new(|_| json!({"allowed": true, "uid": "another"}));
    for policy in ["Fail", "Ignore"] {
        let stage = wrong_uid().await;
        stage.register(json!({"failurePolicy": policy})).await;
        let ended = stage.create("a").await;
        if policy == "Ignore" {
            assert_eq!((ended.code, ended.warnings), (201, Vec::new()));
        } else {
            let message = ended.body["message"].as_str().unwrap();
            assert_eq!((ended.code, &ended.body["reason"]), (500, &json!("InternalError")));
            assert!(message.starts_with("Internal error occurred: failed calling webhook \"widgets.devcluster.example\": expected response.uid="), "{message}");
        }
    }
}

#[tokio::test]
async fn only_the_authority_of_the_bundle_is_trusted_and_only_for_its_host() {
    let stage = Stage::new(|_| json!({"allowed": true})).await;
    let (stranger, _) = certificate();
    let stranger = k8s_openapi::ByteString(stranger.into_bytes());
    let own = k8s_openapi::ByteString(stage.authority.clone().into_bytes());
    let service = json!({"service": {"name": "w", "namespace": "default"}});
    let at = |host: &str, bundle| json!({"url": format!("https://{host}:{}/", stage.port), "caBundle": bundle});
    for (config, said) in [
        // It has the name of ours, and another key.
        (at("localhost", &stranger), "invalid peer certificate"),
        (at("127.0.0.1", &own), "certificate not valid for name"),
        (json!({"url": "https://127.0.0.1:9/"}), "onnection refused"),
        (service, "no endpoints available for service \"w\""),
    ] {
        stage.register(json!({ "clientConfig": config })).await;
        let message = stage.create("a").await.body["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("failed to call webhook: ") && message.contains(said),
            "{message}"
        );
        let path = format!("{CONFIGURATIONS}/test");
        stage.send(Method::DELETE, &path, "", &Value::Null).await;
    }
    assert_eq!(stage.count(), 0);
}

#[tokio::test]
async fn a_slow_webhook_has_its_seconds_and_others_do_not_wait_for_it() {
    let stage = Stage::new(|_| json!({"allowed": true, "wait": 20})).await;
    stage.register(json!({"failurePolicy": "Ignore", "timeoutSeconds": 1})).await;
    let began = Instant::now();
    let (slow, other) = tokio::join!(stage.create("a"), async {
        let namespaces = "/api/v1/namespaces/default/configmaps";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        let code = stage.send(Method::POST, namespaces, "application/json", &map).await.code;
        (code, began.elapsed())
    });
    assert_eq!((slow.code, other.0), (201, 201));
    assert!(began.elapsed() >= Duration::from_secs(1) && other.1 < Duration::from_secs(1));
}

#[tokio::test]
async fn what_was_changed_while_the_webhook_was_asked_is_shown_again() {
    let stage = Stage::new(|request| {
        let first = request["oldObject"]["metadata"]["labels"]["race"].is_null();
        json!({"allowed": true, "wait": u64::from(first && request["object"]["spec"]["size"] == 9)})
    })
    .await;
    stage.create("a").await;
    stage.register(json!({})).await;
    let (a, merge) = (format!("{WIDGETS}/a"), "application/merge-patch+json");
    let nine = json!({"spec": {"size": 9}});
    let slow = stage.send(Method::PATCH, &a, merge, &nine);
    let quick = async {
        while stage.count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let label = json!({"metadata": {"labels": {"race": "won"}}});
        stage.send(Method::PATCH, &a, merge, &label).await
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!((slow.code, quick.code), (200, 200));
    assert_eq!(slow.body["metadata"]["labels"]["race"], "won");
    assert_eq!(stage.last()["oldObject"]["metadata"]["labels"]["race"], "won");
    assert_eq!(stage.count(), 3, "asked twice for the slow one");
}

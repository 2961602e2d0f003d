//! The admission webhook: the built controller, an API server that calls it over TLS, and the real
//! kubectl.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use harness::{Harness, SERVICE, free_port, within};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration as Configuration,
        core::v1::Secret,
    },
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use neptune_api::JointInferenceService;
use neptune_harness::{
    Attack, eventually,
    under_attack::{get, judge},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const SAMPLE: &str = include_str!("../../common/api/tests/samples/jointinferenceservice.yaml");

const DENIED: &str = "admission webhook \"validate.neptune.io\" denied the request: ";

/// Starts a harness with both models and a webhook that answers.
async fn start(more: &[&str]) -> Harness {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    let port = free_port();
    webhook(&mut harness, port, more);
    answers(&harness, port).await;
    harness
}

fn webhook(harness: &mut Harness, port: u16, more: &[&str]) {
    let address = format!("127.0.0.1:{port}");
    let url = format!("https://{address}");
    harness.start_controller_with(
        &[&["--webhook-listen", &address, "--webhook-url", &url], more].concat(),
    );
}

/// Waits until the webhook is registered and serves a certificate that the API server trusts.
async fn answers(harness: &Harness, port: u16) {
    within("the webhook to answer", async {
        loop {
            let bundle = bundle(harness).await.unwrap_or_default();
            if handshake(port, "127.0.0.1", &bundle).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn bundle(harness: &Harness) -> Option<String> {
    let configurations: Api<Configuration> = Api::all(harness.client.clone());
    let webhook = configurations.get_opt("neptune").await.unwrap()?.webhooks?.pop()?;
    let bundle = webhook.client_config.ca_bundle.unwrap_or_default();
    Some(String::from_utf8(bundle.0).unwrap())
}

/// Connects as an API server that trusts these authorities.
async fn connect(port: u16, host: &str, trusted: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let host = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(host, stream).await
}

/// The certificate that the webhook serves, if these authorities signed it.
async fn handshake(port: u16, host: &str, trusted: &str) -> std::io::Result<Vec<u8>> {
    let stream = connect(port, host, trusted).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

fn sample(change: impl FnOnce(&mut Value)) -> String {
    let mut service = serde_saphyr::from_str(SAMPLE).unwrap();
    change(&mut service);
    service.to_string()
}

fn served(change: impl FnOnce(&mut Value)) -> String {
    let mut model = json!({
        "apiVersion": "sedna.io/v1alpha1", "kind": "InferenceModel", "metadata": {"name": "m"},
        "spec": {"modelName": "m", "deployToLayer": "edge", "nodeName": "edge0", "frameworkType": "tensorflow",
            "servingPort": 8501, "targetVersion": "1",
            "manifest": [{"version": "1", "downloadURL": "https://models.test/1.zip"}]},
    });
    change(&mut model);
    model.to_string()
}

fn fetched(url: &str) -> String {
    json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model", "metadata": {"name": "m"}, "spec": {"modelUrl": url}})
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn misspelled_model_name_is_a_warning_with_a_suggestion() {
    let harness = start(&[]).await;
    let misspelled = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let output = harness.kubectl(&["apply", "-f", "-"], &misspelled);
    assert!(output.ok, "{output:?}");
    assert_eq!(output.stdout, format!("jointinferenceservice.neptune.io/{SERVICE} created\n"));
    let words = "Model \"big-modle\" not found in namespace \"default\"; create it or correct spec.cloudWorker.model.name";
    assert_eq!(output.stderr, format!("Warning: {words} (did you mean \"big-model\"?)\n"));
    // Without the webhook, the condition has the same message.
    let status = harness.status("ModelNotFound", |s| s.is("Pending", "ModelNotFound")).await;
    assert_eq!(status.message, words);
    let output = harness.kubectl(&["apply", "-f", "-"], SAMPLE);
    assert_eq!((output.stderr.as_str(), output.ok), ("", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_specs_are_denied_with_the_field() {
    let harness = start(&[]).await;
    let edge = |s: &mut Value, field: &str, value: Value| s["spec"]["edgeWorker"][field] = value;
    let worker = |s: &mut Value, field: &str, value: Value| {
        s["spec"]["edgeWorker"]["workerSpec"][field] = value;
    };
    let parameters = |keys: &[&str]| {
        let list: Vec<_> = keys.iter().map(|key| json!({"key": key, "value": "1"})).collect();
        Value::from(list)
    };
    let file = |m: &mut Value, url: &str| m["spec"]["manifest"][0]["downloadURL"] = url.into();
    let cases = [
        (
            sample(|s| edge(s, "hardExampleAlgorithm", json!({"name": "cross_entropy"}))),
            "spec.edgeWorker.hardExampleAlgorithm.name \"cross_entropy\" must be spelled \"CrossEntropy\"",
        ),
        (
            sample(|s| worker(s, "parameters", parameters(&["a-b", "a_b"]))),
            "both become the environment variable A_B",
        ),
        (
            sample(|s| worker(s, "env", json!([{"name": "MODEL_URL", "value": "x"}]))),
            "spec.edgeWorker.workerSpec.env: \"MODEL_URL\" is set by Neptune",
        ),
        (
            sample(|s| worker(s, "env", json!([{"name": "A", "value": "x\0"}]))),
            "spec.edgeWorker.workerSpec.env[0].value contains a NUL character",
        ),
        (
            sample(|s| worker(s, "scriptDir", "code".into())),
            "spec.edgeWorker.workerSpec.scriptDir \"code\" must be an absolute path",
        ),
        (sample(|s| worker(s, "scriptDir", "/code/../etc".into())), "without \"..\""),
        (sample(|s| worker(s, "scriptDir", "/".into())), "not \"/\""),
        (
            sample(|s| worker(s, "scriptBootFile", "../run.py".into())),
            "spec.edgeWorker.workerSpec.scriptBootFile \"../run.py\"",
        ),
        (sample(|s| worker(s, "scriptBootFile", "".into())), "must be a file in scriptDir"),
        (
            served(|m| {
                (m["spec"]["manifest"][0]["version"], m["spec"]["targetVersion"]) =
                    ("v1".into(), "v1".into());
            }),
            "spec.manifest[0].version \"v1\" must be a whole number above 0",
        ),
        (served(|m| file(m, "/models/../etc/shadow")), "the path must not contain \"..\""),
        (
            served(|m| {
                file(m, "/models/1.zip");
                (m["spec"]["deployToLayer"], m["spec"]["nodeName"]) =
                    ("cloud".into(), "solar-corona-cloud".into());
            }),
            "Pods in the cloud have no access to files of a node",
        ),
        (fetched("/models/../etc/shadow"), "spec.modelUrl \"/models/../etc/shadow\" of Model m"),
        (served(|m| m["spec"]["servingPort"] = 0.into()), "spec.servingPort 0 must be a port"),
        (
            served(|m| drop(m["spec"].as_object_mut().unwrap().remove("servingPort"))),
            "spec.servingPort is missing",
        ),
    ];
    assert!(cases.len() >= 10);
    for (manifest, message) in &cases {
        // A dry run is reviewed like a write.
        for arguments in [&["apply", "-f", "-"][..], &["create", "--dry-run=server", "-f", "-"]] {
            let output = harness.kubectl(arguments, manifest);
            assert!(!output.ok && output.stderr.contains("(Forbidden)"), "{message}: {output:?}");
            assert!(
                output.stderr.contains(DENIED) && output.stderr.contains(message),
                "{message}: {output:?}"
            );
        }
    }
    let output = harness.kubectl(&["get", "jis,im", "-o", "name"], "");
    assert_eq!(output.stdout, "", "nothing was stored");
    let tries = 2 * u64::try_from(cases.len()).unwrap();
    harness
        .until_metric("neptune_controller_admission_reviews_total{verdict=\"denied\"}", tries)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_restart_is_denied_and_names_the_command() {
    let harness = start(&[]).await;
    assert!(harness.kubectl(&["apply", "-f", "-"], SAMPLE).ok);
    let annotate = |value: &str| {
        let annotation = format!("neptune.io/restartedAt={value}");
        harness.kubectl(&["annotate", "--overwrite", "jis", SERVICE, &annotation], "")
    };
    let refused = annotate("now");
    let text = "annotation neptune.io/restartedAt: it begins with no RFC 3339 time; use kubectl neptune restart";
    assert!(!refused.ok && refused.stderr.contains(DENIED), "{refused:?}");
    assert!(refused.stderr.contains(text), "{refused:?}");
    let accepted = annotate("2026-11-24T06:00:00Z edge0");
    assert!(accepted.ok, "{accepted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_closes_a_loop_is_denied() {
    let harness = start(&[]).await;
    let tier = |name: &str, next: &str, port: u16| {
        json!({
            "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService", "metadata": {"name": name},
            "spec": {
                "gateway": {"port": port, "expose": true},
                "edgeWorker": {
                    "name": "edge", "nodeName": "edge0", "model": {"name": "small-model"},
                    "server": {"frameworkType": "tensorflow"},
                    "hardExampleAlgorithm": {"name": "CrossEntropy"},
                },
                "cloudWorker": {"name": "cloud", "service": {"name": next}},
            },
        })
        .to_string()
    };
    for (name, next, port) in [("a", "b", 8401), ("b", "c", 8402)] {
        let output = harness.kubectl(&["apply", "-f", "-"], &tier(name, next, port));
        assert!(output.ok, "{output:?}");
    }
    // The webhook answers from a cache.
    let text =
        "jointinferenceservices c -> a -> b -> c: this is a loop; point one of them elsewhere";
    let denied = async {
        loop {
            let dry = ["apply", "--dry-run=server", "-f", "-"];
            let output = harness.kubectl(&dry, &tier("c", "a", 8403));
            if !output.ok {
                return output;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let output = within("the refusal", denied).await;
    assert!(output.stderr.contains(DENIED) && output.stderr.contains(text), "{output:?}");
    let output = harness.kubectl(&["apply", "-f", "-"], &tier("c", "elsewhere", 8403));
    assert!(output.ok, "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_invalid_references_are_warnings() {
    let harness = start(&[]).await;
    let cases = [
        (
            sample(|s| s["spec"]["edgeWorker"]["model"]["name"] = "other".into()),
            "Model \"other\" not found in namespace \"default\"; create it or correct spec.edgeWorker.model.name",
        ),
        (
            sample(|s| s["spec"]["edgeWorker"]["nodeName"] = "edge1".into()),
            "node \"edge1\" not found: there is neither a Node nor an EdgeNode of that name; correct spec.edgeWorker.nodeName, create the EdgeNode, or join the machine with keadm (did you mean \"edge0\"?)",
        ),
        (
            sample(|s| s["spec"]["edgeWorker"]["nodeName"] = "solar-corona-cloud".into()),
            "spec.edgeWorker.nodeName: node solar-corona-cloud has neither the label",
        ),
        (
            sample(|s| s["spec"]["edgeWorker"]["workerSpec"]["frameworkType"] = "tensorfow".into()),
            "spec.edgeWorker.workerSpec.frameworkType \"tensorfow\" is not one of container, python",
        ),
        (
            served(|m| m["spec"]["nodeName"] = "edge7".into()),
            "node \"edge7\" not found: there is neither a Node nor an EdgeNode of that name; correct spec.nodeName",
        ),
        (
            served(|m| {
                drop(m["spec"].as_object_mut().unwrap().remove("nodeName"));
                m["spec"]["nodeSelector"] = json!({"area": "north"});
            }),
            "spec.nodeSelector: no node has the labels area=north",
        ),
    ];
    for (manifest, message) in &cases {
        let output = harness.kubectl(&["apply", "--dry-run=server", "-f", "-"], manifest);
        let warnings = output.warnings();
        assert!(
            output.ok && warnings.len() == 1 && warnings[0].starts_with(message),
            "{message}: {output:?}"
        );
    }
    // Several warnings are several lines.
    let output = harness.kubectl(
        &["apply", "-n", "kube-system", "-f", "-"],
        &sample(|s| {
            drop(s["metadata"].as_object_mut().unwrap().remove("namespace"));
        }),
    );
    assert_eq!(output.warnings().len(), 2, "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_references_are_denied_by_flag_except_existing_ones() {
    let harness = start(&["--missing-references", "deny"]).await;
    let misspelled = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let output = harness.kubectl(&["apply", "-f", "-"], &misspelled);
    let message = format!("{DENIED}Model \"big-modle\" not found in namespace \"default\"");
    assert!(
        !output.ok && output.stderr.contains(&message) && output.stderr.contains("did you mean"),
        "{output:?}"
    );

    // A model that was applied just before is found, even if the cache lacks it.
    for n in 0..5 {
        let (model, service) = (format!("model-{n}"), format!("service-{n}"));
        let of_model = sample(|s| {
            s["metadata"]["name"] = service.into();
            s["spec"]["edgeWorker"]["model"]["name"] = model.clone().into();
        });
        let of_model: Value = serde_json::from_str(&of_model).unwrap();
        let model = json!({"apiVersion": "edgeai.io/v1alpha1", "kind": "Model",
            "metadata": {"name": model}, "spec": {"modelUrl": "/m"}});
        let both =
            json!({"apiVersion": "v1", "kind": "List", "items": [model, of_model]}).to_string();
        let output = harness.kubectl(&["apply", "-f", "-"], &both);
        assert!(output.ok && output.stderr.is_empty(), "{output:?}");
    }

    harness.apply_sample().await;
    harness.kubectl(&["delete", "model", "big-model"], "");
    let labelled = harness.kubectl(&["label", "jis", SERVICE, "team=x"], "");
    assert!(
        labelled.ok && labelled.stderr.starts_with("Warning: Model \"big-model\" not found"),
        "{labelled:?}"
    );
    let other = json!({"spec": {"edgeWorker": {"model": {"name": "none"}}}}).to_string();
    let moved = harness.kubectl(&["patch", "jis", SERVICE, "--type=merge", "-p", &other], "");
    assert!(!moved.ok && moved.stderr.contains("Model \"none\" not found"), "{moved:?}");
    assert!(!moved.stderr.contains("denied the request: Model \"big-model\""), "{moved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_writes_deletions_and_existing_faults_are_admitted() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    // Stored while no webhook was registered.
    let broken = sample(|s| {
        s["spec"]["edgeWorker"]["workerSpec"]["scriptDir"] = "code".into();
        s["metadata"]["finalizers"] = json!(["test.example/hold"]);
    });
    let made = harness.kubectl(&["apply", "-f", "-"], &broken);
    assert!(made.ok && made.stderr.is_empty(), "{made:?}");
    let port = free_port();
    webhook(&mut harness, port, &[]);
    answers(&harness, port).await;

    let labelled = harness.kubectl(&["label", "jis", SERVICE, "team=x"], "");
    assert!(
        labelled.ok
            && labelled
                .stderr
                .starts_with("Warning: spec.edgeWorker.workerSpec.scriptDir \"code\""),
        "{labelled:?}"
    );
    // The controller's write of the status was not reviewed.
    harness.status("ScriptDirInvalid", |s| s.is("Failed", "ScriptDirInvalid")).await;
    let reviews =
        harness.metric("neptune_controller_admission_reviews_total{verdict=\"warned\"}").await;
    assert_eq!(reviews, 1);
    let status = json!({"status": {"active": 1}});
    let api = harness.api::<JointInferenceService>();
    api.patch_status(SERVICE, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();

    let gone = harness.kubectl(&["delete", "jis", SERVICE, "--wait=false"], "");
    assert!(gone.ok && gone.stderr.is_empty(), "{gone:?}");
    let worse = json!({"metadata": {"finalizers": null}, "spec": {"edgeWorker": {"workerSpec": {"scriptDir": "/"}}}});
    let freed =
        harness.kubectl(&["patch", "jis", SERVICE, "--type=merge", "-p", &worse.to_string()], "");
    assert!(freed.ok && freed.stderr.is_empty(), "{freed:?}");
    harness.until_gone::<JointInferenceService>(SERVICE).await;
    let metric = "neptune_controller_admission_reviews_total{verdict=\"denied\"}";
    assert_eq!(harness.metric(metric).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_admitted_while_no_controller_answers() {
    let mut harness = start(&[]).await;
    harness.kill_controller();
    let broken = sample(|s| s["spec"]["edgeWorker"]["workerSpec"]["scriptDir"] = "code".into());
    let output = harness.kubectl(&["apply", "-f", "-"], &broken);
    assert!(output.ok && output.stderr.is_empty(), "{output:?}");
    // A new controller makes a new certificate and registers it.
    let port = free_port();
    webhook(&mut harness, port, &[]);
    answers(&harness, port).await;
    let output = harness.kubectl(&["label", "jis", SERVICE, "team=x"], "");
    assert_eq!(output.warnings().len(), 1, "{output:?}");
    let status = harness.status("ScriptDirInvalid", |s| s.is("Failed", "ScriptDirInvalid")).await;
    assert_eq!(output.warnings()[0], status.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_with_a_url_each_do_not_write_in_a_loop() {
    let harness = start(&[]).await;
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("https://{address}");
    let flags = ["--namespace", "default", "--webhook-listen", &address, "--webhook-url", &url];
    let _second = harness.start_replica_with(&flags);
    let warning = "another writer replaced the ValidatingWebhookConfiguration";
    eventually("the warning", || harness.logged(warning) > 0).await;
    let writes = harness.faulty_api.requests("PATCH", "/validatingwebhookconfigurations/");
    assert!(writes <= 4, "{writes} writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_malformed_clients_do_not_affect_others() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    let port = free_port();
    webhook(&mut harness, port, &[]);
    answers(&harness, port).await;
    // Connections without a TLS handshake.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    let misspelled = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let output = harness.kubectl(&["apply", "--dry-run=server", "-f", "-"], &misspelled);
    assert_eq!(output.warnings().len(), 1, "{output:?}");
    // They are closed after a timeout.
    let mut first = silent.swap_remove(0);
    within("a silent connection to be closed", first.read(&mut [0])).await.unwrap();

    let bundle = bundle(&harness).await.unwrap();
    for (request, code) in [
        ("GET /validate HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), "405"),
        ("POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".to_owned(), "404"),
        ("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".to_owned(), "400"),
        (
            format!(
                "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: {0}\r\n\r\n{1}",
                4 << 20,
                " ".repeat(4 << 20)
            ),
            "413",
        ),
        ("POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{".to_owned(), "408"),
    ] {
        assert_eq!(send(port, &bundle, &request).await, code, "{}", &request[..40]);
    }
    let output = harness.kubectl(&["apply", "--dry-run=server", "-f", "-"], &misspelled);
    assert_eq!(output.warnings().len(), 1, "{output:?}");
}

/// The status code of the answer to a request.
async fn send(port: u16, trusted: &str, request: &str) -> String {
    within("an answer", code(port, "127.0.0.1", trusted, request)).await.unwrap()
}

async fn code(port: u16, host: &str, trusted: &str, request: &str) -> std::io::Result<String> {
    let (mut reading, mut writing) = tokio::io::split(connect(port, host, trusted).await?);
    let mut answer = [0; 12];
    // A request that is refused early is not read to its end.
    let (read, _) =
        tokio::join!(reading.read_exact(&mut answer), writing.write_all(request.as_bytes()));
    read?;
    Ok(String::from_utf8_lossy(&answer[9..]).into_owned())
}

/// A review of the creation of a service, as the API server sends it.
fn review_request() -> String {
    let service: Value = serde_saphyr::from_str(SAMPLE).unwrap();
    let kind =
        json!({"group": "neptune.io", "version": "v1alpha1", "kind": "JointInferenceService"});
    let resource =
        json!({"group": "neptune.io", "version": "v1alpha1", "resource": "jointinferenceservices"});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "kind": kind, "resource": resource, "name": SERVICE, "namespace": "default",
            "operation": "CREATE", "userInfo": {}, "object": service, "oldObject": null,
            "dryRun": false,
        },
    })
    .to_string();
    format!(
        "POST /validate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{review}",
        review.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_no_review_and_no_probe() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    let files = tempfile::tempdir().unwrap();
    let (pem, _) = write_certificate(files.path());
    let webhook = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let directory = files.path().to_str().unwrap();
    let listen = webhook.to_string();
    harness.start_controller_with(&["--webhook-listen", &listen, "--webhook-cert-dir", directory]);
    answers_as(webhook.port(), "localhost", &pem).await;

    let (pem, request, attacks) = (&pem, &review_request(), Attack::all("/validate"));
    // A new connection, with the handshake.
    let review = || async move {
        code(webhook.port(), "localhost", pem, request).await.is_ok_and(|code| code == "200")
    };
    judge("admission", (webhook, 100), &attacks, review).await;
    let pages = SocketAddr::from(([127, 0, 0, 1], harness.http_port()));
    judge("controller, health", (pages, 32), &attacks, || get(pages, "/livez")).await;
    judge("controller, metrics", (pages, 32), &attacks, || get(pages, "/metrics")).await;
    let reviews =
        harness.metric("neptune_controller_admission_reviews_total{verdict=\"allowed\"}").await;
    assert!(reviews >= 100, "{reviews} reviews of a valid service");
}

/// Writes a new certificate of `localhost` as cert-manager does. Returns its PEM and its DER.
fn write_certificate(directory: &Path) -> (String, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    (made.cert.pem(), made.cert.der().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_rotation_causes_no_failed_request() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    let port = free_port();
    // The next certificate is made after 8 seconds and served after 9.
    let more = ["--webhook-certificate-lifetime", "12s", "--missing-references", "deny"];
    webhook(&mut harness, port, &more);
    answers(&harness, port).await;
    let host = "127.0.0.1";
    let old = bundle(&harness).await.unwrap();
    let first = handshake(port, host, &old).await.unwrap();

    // The API server sends reviews all the time, and each is answered.
    let api = harness.api::<JointInferenceService>();
    let asking = tokio::spawn(async move {
        let misspelled = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
        let misspelled = serde_json::from_str(&misspelled).unwrap();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let mut asked = 0;
        loop {
            let denied = api.create(&dry, &misspelled).await.unwrap_err();
            assert!(denied.to_string().contains(DENIED), "after {asked}: {denied}");
            asked += 1;
        }
    });

    let authorities = |bundle: &str| bundle.matches("BEGIN CERTIFICATE").count();
    let both = within("two trusted authorities", async {
        loop {
            let bundle = bundle(&harness).await.unwrap();
            if authorities(&bundle) == 2 {
                return bundle;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(both.starts_with(&old), "the old authority is still trusted");
    assert_eq!(handshake(port, host, &old).await.unwrap(), first, "and its certificate is served");
    let new = both.strip_prefix(&old).unwrap();
    let second = within("the next certificate", async {
        loop {
            let served_certificate =
                handshake(port, host, &both).await.expect("one of both is trusted");
            if served_certificate != first {
                return served_certificate;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(handshake(port, host, new).await.unwrap(), second);
    assert!(handshake(port, host, &old).await.is_err(), "the authorities are different ones");

    // In the next rotation the first authority is removed.
    within("the third certificate", async {
        while handshake(port, host, &bundle(&harness).await.unwrap()).await.unwrap() == second {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let last = bundle(&harness).await.unwrap();
    assert!(authorities(&last) <= 3 && !last.contains(&old) && last.contains(new), "{last}");
    assert!(!asking.is_finished(), "{:?}", asking.await);
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_one_certificate_for_the_manifests_service() {
    const HOST: &str = "neptune-webhook.neptune-system.svc";
    let mut harness = Harness::without_controller().await;
    let manifest = include_str!("../../build/deploy/base/webhook.yaml");
    for manifest in [manifest, include_str!("../../build/deploy/base/rbac.yaml")] {
        let applied = harness.kubectl(&["apply", "-n", "neptune-system", "-f", "-"], manifest);
        assert!(applied.ok, "{applied:?}");
    }
    // The controller has only the rights of the manifest.
    harness.act_as("system:serviceaccount:neptune-system:neptune-cloud");
    let ports = [free_port(), free_port()];
    let address = ports.map(|port| format!("127.0.0.1:{port}"));
    harness.start_controller_with(&["--leader-elect", "--webhook-listen", &address[0]]);
    // One replica is a standby, which answers as well.
    let _other = harness.start_replica_with(&["--webhook-listen", &address[1]]);
    let served_certificate = within("both replicas to serve a trusted certificate", async {
        loop {
            let bundle = bundle(&harness).await.unwrap_or_default();
            let both = [
                handshake(ports[0], HOST, &bundle).await,
                handshake(ports[1], HOST, &bundle).await,
            ];
            if let [Ok(one), Ok(two)] = both {
                return [one, two];
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(served_certificate[0], served_certificate[1]);
    // A repeated apply, and a new controller, change nothing.
    let trusted = bundle(&harness).await;
    let applied = harness.kubectl(&["apply", "-n", "neptune-system", "-f", "-"], manifest);
    assert!(applied.ok, "{applied:?}");
    harness.kill_controller();
    harness.start_controller_with(&["--leader-elect", "--webhook-listen", &address[0]]);
    answers_as(ports[0], HOST, &trusted.clone().unwrap()).await;
    assert_eq!(
        handshake(ports[0], HOST, &trusted.clone().unwrap()).await.unwrap(),
        served_certificate[0]
    );
    assert_eq!(bundle(&harness).await, trusted);

    // A lost certificate is recreated and registered.
    let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), "neptune-system");
    let nonsense = ByteString(b"no certificates".to_vec());
    let patch = Patch::Merge(json!({"data": {"certificates.json": nonsense}}));
    secrets.patch("neptune-webhook", &PatchParams::default(), &patch).await.unwrap();
    within("both replicas to serve another certificate", async {
        loop {
            let bundle = bundle(&harness).await.unwrap();
            let both = [
                handshake(ports[0], HOST, &bundle).await,
                handshake(ports[1], HOST, &bundle).await,
            ];
            if matches!(&both, [Ok(one), Ok(two)] if one == two && *one != served_certificate[0]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

async fn answers_as(port: u16, host: &str, trusted: &str) {
    within("the webhook to answer", async {
        while handshake(port, host, trusted).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_of_cert_manager_and_its_renewal_are_served() {
    let mut harness = Harness::without_controller().await;
    let directory = tempfile::tempdir().unwrap();
    let (pem, der) = write_certificate(directory.path());
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let files = directory.path().to_str().unwrap().to_owned();
    harness.start_controller_with(&["--webhook-listen", &address, "--webhook-cert-dir", &files]);
    answers_as(port, "localhost", &pem).await;
    assert_eq!(handshake(port, "localhost", &pem).await.unwrap(), der);
    let (pem, der) = write_certificate(directory.path());
    answers_as(port, "localhost", &pem).await;
    assert_eq!(handshake(port, "localhost", &pem).await.unwrap(), der);
    assert_eq!(bundle(&harness).await, None, "cert-manager sets the CA bundle");
}

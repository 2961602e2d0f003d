//! The admission webhook as a user of kubectl meets it: the built controller, an API server that asks it
//! over TLS, and the real kubectl.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one future and waits on its own.
#![allow(clippy::large_futures)]

mod bed;

use std::{sync::Arc, time::Duration};

use bed::{Bed, SERVICE, free_port, kubectl::Ran, soon};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration as Configuration,
        core::v1::{Namespace, Secret},
    },
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use neptune_api::JointInferenceService;
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

/// A bed with both models and a webhook that answers.
async fn start(more: &[&str]) -> Bed {
    let mut bed = Bed::without_controller().await;
    bed.models().await;
    let port = free_port();
    webhook(&mut bed, port, more);
    answers(&bed, port).await;
    bed
}

fn webhook(bed: &mut Bed, port: u16, more: &[&str]) {
    let address = format!("127.0.0.1:{port}");
    let url = format!("https://{address}");
    bed.start_controller_with(
        &[&["--webhook-listen", &address, "--webhook-url", &url], more].concat(),
    );
}

/// Waits until the API server was told of the webhook and the webhook shows a certificate that it trusts.
async fn answers(bed: &Bed, port: u16) {
    soon("the webhook answers", async {
        loop {
            let bundle = bundle(bed).await.unwrap_or_default();
            if handshake(port, "127.0.0.1", &bundle).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn bundle(bed: &Bed) -> Option<String> {
    let configurations: Api<Configuration> = Api::all(bed.client.clone());
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

/// The certificate that is shown to whoever trusts these authorities.
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

impl Ran {
    fn warnings(&self) -> Vec<&str> {
        self.err.lines().filter_map(|line| line.strip_prefix("Warning: ")).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slip_in_a_models_name_is_a_warning_that_names_the_model() {
    let bed = start(&[]).await;
    let slip = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let ran = bed.kubectl(&["apply", "-f", "-"], &slip).await;
    assert!(ran.ok, "{ran:?}");
    assert_eq!(ran.out, format!("jointinferenceservice.neptune.io/{SERVICE} created\n"));
    let words = "model \"big-modle\" not found in namespace \"default\": apply it, or correct spec.cloudWorker.model.name";
    assert_eq!(ran.err, format!("Warning: {words} (did you mean \"big-model\"?)\n"));
    // Without the webhook the condition says it, in the same words.
    let status = bed.status("the model is missed", |s| s.is("Pending", "ModelNotFound")).await;
    assert_eq!(status.message, words);
    let ran = bed.kubectl(&["apply", "-f", "-"], SAMPLE).await;
    assert_eq!((ran.err.as_str(), ran.ok), ("", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_whatever_the_cluster_has_is_denied_with_the_field() {
    let bed = start(&[]).await;
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
            "spec.edgeWorker.hardExampleAlgorithm.name \"cross_entropy\" is spelt \"CrossEntropy\"",
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
        (served(|m| file(m, "/models/../etc/shadow")), "the path has a part \"..\""),
        (
            served(|m| {
                file(m, "/models/1.zip");
                (m["spec"]["deployToLayer"], m["spec"]["nodeName"]) =
                    ("cloud".into(), "solar-corona-cloud".into());
            }),
            "a Pod in the cloud has no files of a node",
        ),
        (fetched("/models/../etc/shadow"), "spec.modelUrl \"/models/../etc/shadow\" of Model m"),
        (served(|m| m["spec"]["servingPort"] = 0.into()), "spec.servingPort 0 must be a port"),
        (
            served(|m| drop(m["spec"].as_object_mut().unwrap().remove("servingPort"))),
            "spec.servingPort is missing",
        ),
    ];
    assert!(cases.len() >= 10);
    for (manifest, said) in &cases {
        // A dry run is looked at as a write is.
        for arguments in [&["apply", "-f", "-"][..], &["create", "--dry-run=server", "-f", "-"]] {
            let ran = bed.kubectl(arguments, manifest).await;
            assert!(!ran.ok && ran.err.contains("(Forbidden)"), "{said}: {ran:?}");
            assert!(ran.err.contains(DENIED) && ran.err.contains(said), "{said}: {ran:?}");
        }
    }
    let ran = bed.kubectl(&["get", "jis,im", "-o", "name"], "").await;
    assert_eq!(ran.out, "", "nothing was stored");
    let tries = 2 * u64::try_from(cases.len()).unwrap();
    bed.until_metric("neptune_controller_admission_reviews_total{verdict=\"Denied\"}", tries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_or_wrong_elsewhere_is_a_warning() {
    let bed = start(&[]).await;
    let cases = [
        (
            sample(|s| s["spec"]["edgeWorker"]["model"]["name"] = "other".into()),
            "model \"other\" not found in namespace \"default\": apply it, or correct spec.edgeWorker.model.name",
        ),
        (
            sample(|s| s["spec"]["edgeWorker"]["nodeName"] = "edge1".into()),
            "node \"edge1\" not found: correct spec.edgeWorker.nodeName, or let the node join (did you mean \"edge0\"?)",
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
            "node \"edge7\" not found: correct spec.nodeName",
        ),
        (
            served(|m| {
                drop(m["spec"].as_object_mut().unwrap().remove("nodeName"));
                m["spec"]["nodeSelector"] = json!({"area": "north"});
            }),
            "spec.nodeSelector: no node has the labels area=north",
        ),
    ];
    for (manifest, said) in &cases {
        let ran = bed.kubectl(&["apply", "--dry-run=server", "-f", "-"], manifest).await;
        let warnings = ran.warnings();
        assert!(ran.ok && warnings.len() == 1 && warnings[0].starts_with(said), "{said}: {ran:?}");
    }
    // Several at once, each in a line of its own.
    let ran = bed
        .kubectl(
            &["apply", "-n", "kube-system", "-f", "-"],
            &sample(|s| {
                drop(s["metadata"].as_object_mut().unwrap().remove("namespace"));
            }),
        )
        .await;
    assert_eq!(ran.warnings().len(), 2, "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_references_are_denied_by_flag_and_what_was_there_before_is_left_alone() {
    let bed = start(&["--missing-references", "deny"]).await;
    let slip = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let ran = bed.kubectl(&["apply", "-f", "-"], &slip).await;
    let said = format!("{DENIED}model \"big-modle\" not found in namespace \"default\"");
    assert!(!ran.ok && ran.err.contains(&said) && ran.err.contains("did you mean"), "{ran:?}");

    // A model that was applied a moment ago is there, whatever the copies have.
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
        let ran = bed.kubectl(&["apply", "-f", "-"], &both).await;
        assert!(ran.ok && ran.err.is_empty(), "{ran:?}");
    }

    bed.apply_sample().await;
    bed.kubectl(&["delete", "model", "big-model"], "").await;
    let labelled = bed.kubectl(&["label", "jis", SERVICE, "team=x"], "").await;
    assert!(
        labelled.ok && labelled.err.starts_with("Warning: model \"big-model\" not found"),
        "{labelled:?}"
    );
    let other = json!({"spec": {"edgeWorker": {"model": {"name": "none"}}}}).to_string();
    let moved = bed.kubectl(&["patch", "jis", SERVICE, "--type=merge", "-p", &other], "").await;
    assert!(!moved.ok && moved.err.contains("model \"none\" not found"), "{moved:?}");
    assert!(!moved.err.contains("denied the request: model \"big-model\""), "{moved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_deletions_and_old_faults_are_not_held_up() {
    let mut bed = Bed::without_controller().await;
    bed.models().await;
    // Stored while nobody looked.
    let broken = sample(|s| {
        s["spec"]["edgeWorker"]["workerSpec"]["scriptDir"] = "code".into();
        s["metadata"]["finalizers"] = json!(["test.example/hold"]);
    });
    let made = bed.kubectl(&["apply", "-f", "-"], &broken).await;
    assert!(made.ok && made.err.is_empty(), "{made:?}");
    let port = free_port();
    webhook(&mut bed, port, &[]);
    answers(&bed, port).await;

    let labelled = bed.kubectl(&["label", "jis", SERVICE, "team=x"], "").await;
    assert!(
        labelled.ok
            && labelled.err.starts_with("Warning: spec.edgeWorker.workerSpec.scriptDir \"code\""),
        "{labelled:?}"
    );
    // The controller's own condition is there: its write of the status was not looked at.
    bed.status("it cannot work", |s| s.is("Failed", "ScriptDirInvalid")).await;
    let reviews =
        bed.metric("neptune_controller_admission_reviews_total{verdict=\"Warned\"}").await;
    assert_eq!(reviews, 1);
    let status = json!({"status": {"active": 1}});
    let api = bed.api::<JointInferenceService>();
    api.patch_status(SERVICE, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();

    let gone = bed.kubectl(&["delete", "jis", SERVICE, "--wait=false"], "").await;
    assert!(gone.ok && gone.err.is_empty(), "{gone:?}");
    let worse = json!({"metadata": {"finalizers": null}, "spec": {"edgeWorker": {"workerSpec": {"scriptDir": "/"}}}});
    let freed =
        bed.kubectl(&["patch", "jis", SERVICE, "--type=merge", "-p", &worse.to_string()], "").await;
    assert!(freed.ok && freed.err.is_empty(), "{freed:?}");
    bed.until_gone::<JointInferenceService>(SERVICE).await;
    let metric = "neptune_controller_admission_reviews_total{verdict=\"Denied\"}";
    assert_eq!(bed.metric(metric).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_no_controller_answers_writes_pass() {
    let mut bed = start(&[]).await;
    bed.kill_controller();
    let broken = sample(|s| s["spec"]["edgeWorker"]["workerSpec"]["scriptDir"] = "code".into());
    let ran = bed.kubectl(&["apply", "-f", "-"], &broken).await;
    assert!(ran.ok && ran.err.is_empty(), "{ran:?}");
    // A new one makes a new certificate, and the API server is told.
    let port = free_port();
    webhook(&mut bed, port, &[]);
    answers(&bed, port).await;
    let ran = bed.kubectl(&["label", "jis", SERVICE, "team=x"], "").await;
    assert_eq!(ran.warnings().len(), 1, "{ran:?}");
    let status = bed.status("its condition says it", |s| s.is("Failed", "ScriptDirInvalid")).await;
    assert_eq!(ran.warnings()[0], status.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_slow_or_sends_nonsense_hurts_only_himself() {
    let mut bed = Bed::without_controller().await;
    bed.models().await;
    let port = free_port();
    webhook(&mut bed, port, &[]);
    answers(&bed, port).await;
    // Connections that never shake hands.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    let slip = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
    let ran = bed.kubectl(&["apply", "--dry-run=server", "-f", "-"], &slip).await;
    assert_eq!(ran.warnings().len(), 1, "{ran:?}");
    // They are closed after their time.
    let mut first = silent.swap_remove(0);
    soon("a silent connection is closed", first.read(&mut [0])).await.unwrap();

    let bundle = bundle(&bed).await.unwrap();
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
        assert_eq!(spoken(port, &bundle, &request).await, code, "{}", &request[..40]);
    }
    let ran = bed.kubectl(&["apply", "--dry-run=server", "-f", "-"], &slip).await;
    assert_eq!(ran.warnings().len(), 1, "{ran:?}");
}

/// The code of the answer to a request.
async fn spoken(port: u16, trusted: &str, request: &str) -> String {
    let stream = connect(port, "127.0.0.1", trusted).await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(stream);
    let mut answer = vec![0; 12];
    let read = async { soon("an answer", reading.read_exact(&mut answer)).await };
    // One that is refused early is not read to its end.
    let (read, _) = tokio::join!(read, writing.write_all(request.as_bytes()));
    read.unwrap();
    String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_is_noticed_by_nobody() {
    let mut bed = Bed::without_controller().await;
    bed.models().await;
    let port = free_port();
    // The next one is made after 8 seconds and shown after 9.
    let more = ["--webhook-certificate-lifetime", "12s", "--missing-references", "deny"];
    webhook(&mut bed, port, &more);
    answers(&bed, port).await;
    let host = "127.0.0.1";
    let old = bundle(&bed).await.unwrap();
    let first = handshake(port, host, &old).await.unwrap();

    // An API server that asks all the time, and is never without an answer.
    let api = bed.api::<JointInferenceService>();
    let asking = tokio::spawn(async move {
        let slip = sample(|s| s["spec"]["cloudWorker"]["model"]["name"] = "big-modle".into());
        let slip = serde_json::from_str(&slip).unwrap();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let mut asked = 0;
        loop {
            let denied = api.create(&dry, &slip).await.unwrap_err();
            assert!(denied.to_string().contains(DENIED), "after {asked}: {denied}");
            asked += 1;
        }
    });

    let authorities = |bundle: &str| bundle.matches("BEGIN CERTIFICATE").count();
    let both = soon("two authorities are trusted", async {
        loop {
            let bundle = bundle(&bed).await.unwrap();
            if authorities(&bundle) == 2 {
                return bundle;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(both.starts_with(&old), "the old one is still trusted");
    assert_eq!(handshake(port, host, &old).await.unwrap(), first, "and its certificate is shown");
    let new = both.strip_prefix(&old).unwrap();
    let second = soon("the next certificate is shown", async {
        loop {
            let shown = handshake(port, host, &both).await.expect("one of both is trusted");
            if shown != first {
                return shown;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(handshake(port, host, new).await.unwrap(), second);
    assert!(handshake(port, host, &old).await.is_err(), "the authorities are different ones");

    // Into the next rotation, in which the first authority goes.
    soon("the second certificate was replaced", async {
        while handshake(port, host, &bundle(&bed).await.unwrap()).await.unwrap() == second {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let last = bundle(&bed).await.unwrap();
    assert!(authorities(&last) <= 3 && !last.contains(&old) && last.contains(new), "{last}");
    assert!(!asking.is_finished(), "{:?}", asking.await);
    asking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_one_certificate_for_the_service_of_the_manifest() {
    const HOST: &str = "neptune-webhook.neptune-system.svc";
    let mut bed = Bed::without_controller().await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    let namespace = json!({"metadata": {"name": "neptune-system"}});
    let namespace = serde_json::from_value(namespace).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let manifest = include_str!("../../build/deploy/base/webhook.yaml");
    for manifest in [manifest, include_str!("../../build/deploy/base/rbac.yaml")] {
        let applied = bed.kubectl(&["apply", "-n", "neptune-system", "-f", "-"], manifest).await;
        assert!(applied.ok, "{applied:?}");
    }
    // With the rights of the manifest and no others.
    bed.act_as("system:serviceaccount:neptune-system:neptune-cloud");
    let ports = [free_port(), free_port()];
    let address = ports.map(|port| format!("127.0.0.1:{port}"));
    bed.start_controller_with(&["--leader-elect", "--webhook-listen", &address[0]]);
    // One of them stands by, and answers as well.
    let _other = bed.start_replica_with(&["--webhook-listen", &address[1]]);
    let shown = soon("both show a trusted certificate", async {
        loop {
            let bundle = bundle(&bed).await.unwrap_or_default();
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
    assert_eq!(shown[0], shown[1]);
    // A repeated apply, and a new controller, change nothing.
    let trusted = bundle(&bed).await;
    let applied = bed.kubectl(&["apply", "-n", "neptune-system", "-f", "-"], manifest).await;
    assert!(applied.ok, "{applied:?}");
    bed.kill_controller();
    bed.start_controller_with(&["--leader-elect", "--webhook-listen", &address[0]]);
    answers_as(ports[0], HOST, &trusted.clone().unwrap()).await;
    assert_eq!(handshake(ports[0], HOST, &trusted.clone().unwrap()).await.unwrap(), shown[0]);
    assert_eq!(bundle(&bed).await, trusted);

    // What was lost is made again, and told.
    let secrets: Api<Secret> = Api::namespaced(bed.client.clone(), "neptune-system");
    let nonsense = ByteString(b"no certificates".to_vec());
    let patch = Patch::Merge(json!({"data": {"certificates.json": nonsense}}));
    secrets.patch("neptune-webhook", &PatchParams::default(), &patch).await.unwrap();
    soon("another certificate is shown by both", async {
        loop {
            let bundle = bundle(&bed).await.unwrap();
            let both = [
                handshake(ports[0], HOST, &bundle).await,
                handshake(ports[1], HOST, &bundle).await,
            ];
            if matches!(&both, [Ok(one), Ok(two)] if one == two && *one != shown[0]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

async fn answers_as(port: u16, host: &str, trusted: &str) {
    soon("the webhook answers", async {
        while handshake(port, host, trusted).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_cert_manager_is_shown_and_its_renewal_too() {
    let mut bed = Bed::without_controller().await;
    let directory = tempfile::tempdir().unwrap();
    let write = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.path().join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(directory.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        (made.cert.pem(), made.cert.der().to_vec())
    };
    let (pem, der) = write();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let files = directory.path().to_str().unwrap().to_owned();
    bed.start_controller_with(&["--webhook-listen", &address, "--webhook-cert-dir", &files]);
    answers_as(port, "localhost", &pem).await;
    assert_eq!(handshake(port, "localhost", &pem).await.unwrap(), der);
    let (pem, der) = write();
    assert_eq!(handshake(port, "localhost", &pem).await.unwrap(), der);
    assert_eq!(bundle(&bed).await, None, "whom the API server trusts is cert-manager's");
}

//! An emulator of `neptune-aggregator` for the controller: the routes `/v1/run` and `/v1/state` over
//! pinned TLS, as strict as the contract. The test decides when a round ends and what it reached.

use std::{
    convert::Infallible,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use neptune_harness::eventually_some;
use neptune_pinned_tls::{TlsKey, pin_of, server_config};
use neptune_wire::{
    ContentReference, KeyPin, Metric, TaskId, TaskKind,
    aggregator::{
        AggregatorProblem, MeasuredWeights, ResultState, RoundRecord, RunPhase, RunRequest,
        RunStatus, RunTask, WorkerResult,
    },
    canonical_json,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use super::Harness;

/// The Deployment of the only aggregator.
async fn deployment(harness: &Harness) -> Deployment {
    eventually_some("the Deployment of the aggregator", async || {
        let list = harness.api::<Deployment>().list(&ListParams::default()).await.unwrap();
        list.items.into_iter().find(|it| controller_pin(it).is_some())
    })
    .await
}

/// The pin of the controller in the arguments of an aggregator.
fn controller_pin(deployment: &Deployment) -> Option<KeyPin> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let args = pod.containers[0].args.as_deref()?;
    let at = args.iter().position(|arg| arg == "--controller-pin")?;
    Some(KeyPin(args[at + 1].clone()))
}

/// The pin of the controller that the only aggregator obeys.
pub async fn obeyed_controller(harness: &Harness) -> KeyPin {
    controller_pin(&deployment(harness).await).unwrap()
}

/// Does what a kubelet does with the Pod of the only aggregator: its init container has made this
/// key. A former Pod is gone. Returns the pin of the controller that the aggregator obeys.
pub async fn start_pod(harness: &Harness, key: &TlsKey) -> KeyPin {
    let deployment = deployment(harness).await;
    let pods = harness.api::<Pod>();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        harness.until_gone::<Pod>(&pod.name_any()).await;
    }
    let name = format!("{}-{}", deployment.name_any(), &key.pin().short()["sha256:".len()..]);
    let template = deployment.spec.clone().unwrap().template;
    let mut pod = Pod { metadata: template.metadata.unwrap(), spec: template.spec, status: None };
    pod.metadata.name = Some(name.clone());
    // The ReplicaSet, which nothing creates here, has the UID of an object that exists.
    pod.metadata.owner_references = serde_json::from_value(json!([{"apiVersion": "apps/v1",
        "kind": "ReplicaSet", "name": deployment.name_any(), "controller": true,
        "uid": deployment.uid().unwrap()}]))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let ended = json!({"exitCode": 0, "reason": "Completed", "message": key.pin()});
    let status = json!({"status": {"initContainerStatuses": [{"name": "key", "image": "i",
        "imageID": "", "ready": true, "restartCount": 0, "state": {"terminated": ended}}]}});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    controller_pin(&deployment).unwrap()
}

/// The state that survives a restart, as the volume does.
#[derive(Clone)]
pub struct AggregatorFiles(Arc<Mutex<Files>>, watch::Sender<u64>);

struct Files {
    status: RunStatus,
    request: Option<RunRequest>,
}

/// A running aggregator that stops when it is dropped.
pub struct Aggregator {
    pub files: AggregatorFiles,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Default for AggregatorFiles {
    fn default() -> Self {
        let files = Files { status: empty(), request: None };
        Self(Arc::new(Mutex::new(files)), watch::channel(0).0)
    }
}

fn empty() -> RunStatus {
    RunStatus {
        revision: 0,
        uid: String::new(),
        run: 0,
        phase: RunPhase::Preparing,
        round: 0,
        base: None,
        tasks: Vec::new(),
        workers: [].into(),
        history: Vec::new(),
        best: None,
        format: Some("npz".to_owned()),
        present: None,
        reason: None,
        message: String::new(),
        session: None,
    }
}

impl Aggregator {
    /// Listens on a port of this machine, with this key. It obeys the controller with the pin.
    pub async fn start(key: TlsKey, controller: KeyPin, port: u16, files: AggregatorFiles) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let server = tokio::spawn(serve(listener, key, controller, files.clone()));
        Self { files, server }
    }

    /// Stops it, and breaks its connections. Its port is free then.
    pub async fn stop(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }
}

impl AggregatorFiles {
    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap()
    }

    /// Returns the request that was accepted last.
    pub fn request(&self) -> Option<RunRequest> {
        self.lock().request.clone()
    }

    pub fn status(&self) -> RunStatus {
        self.lock().status.clone()
    }

    /// The volume is gone. Open connections break when the program stops, as the caller does.
    pub fn lose(&self) {
        *self.lock() = Files { status: empty(), request: None };
        self.1.send_replace(0);
    }

    pub fn change(&self, change: impl FnOnce(&mut RunStatus)) {
        let mut files = self.lock();
        change(&mut files.status);
        files.status.revision += 1;
        let revision = files.status.revision;
        drop(files);
        self.1.send_replace(revision);
    }

    /// Receives a request as the program does.
    pub fn receive(&self, request: &RunRequest) {
        let response = put(self, request);
        assert!(response.status().is_success(), "{request:?}");
    }

    /// The first weights are there: the first round opens.
    pub fn initialized(&self) {
        let request = self.request().unwrap();
        self.change(|status| open(status, &request, 1, weights(&request, 0)));
    }

    /// Every open update of the round is accepted, and the new weights are measured: the next round
    /// opens, or the run ends.
    pub fn finish_round(&self, metric: &str) {
        let request = self.request().unwrap();
        self.change(|status| {
            let round = status.round;
            let new = weights(&request, round);
            let counted =
                status.workers.values().filter(|it| it.state != ResultState::Failed).count();
            let metrics = vec![Metric { key: "accuracy".to_owned(), value: metric.to_owned() }];
            status.history.push(RoundRecord {
                round,
                participants: u32::try_from(counted).unwrap(),
                samples: 100,
                dataset_samples: 0,
                missing_samples: 0,
                loss: Some(0.25),
                metrics: metrics.clone(),
                seconds: 2,
                weights: Some(new.clone()),
                workers: Vec::new(),
                omitted_workers: 0,
            });
            let value = |metrics: &[Metric]| metrics[0].value.parse::<f64>().unwrap();
            if status.best.as_ref().is_none_or(|best| value(&metrics) > value(&best.metrics)) {
                status.best = Some(MeasuredWeights { round, weights: new.clone(), metrics });
            }
            if round < request.settings.rounds {
                open(status, &request, round + 1, new);
            } else {
                status.phase = RunPhase::Succeeded;
                (status.base, status.tasks) = (Some(new), Vec::new());
            }
        });
    }

    /// Measures the weights that are in use.
    pub fn measured_present(&self, metric: &str) {
        let request = self.request().unwrap();
        let sha256 = request.settings.evaluation.unwrap().present.unwrap();
        self.change(|status| {
            let metrics = vec![Metric { key: "accuracy".to_owned(), value: metric.to_owned() }];
            let weights = ContentReference { sha256, bytes: 7 };
            status.present = Some(MeasuredWeights { round: 0, weights, metrics });
        });
    }
}

/// The weights after a round: other ones in each round of a run.
fn weights(request: &RunRequest, round: u32) -> ContentReference {
    let text = format!("{}/{}/{round}", request.settings.seed, request.run);
    ContentReference { sha256: hex(text.as_bytes()), bytes: 7 }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn open(status: &mut RunStatus, request: &RunRequest, round: u32, base: ContentReference) {
    status.phase = RunPhase::Open;
    status.round = round;
    let names = request.settings.workers.keys();
    status.tasks =
        names.map(|name| task(request, name, TaskKind::Train, round, Some(&base))).collect();
    let pending = WorkerResult {
        state: ResultState::Pending,
        report: None,
        sha256: None,
        norm: None,
        weight: None,
        reason: None,
        message: String::new(),
    };
    let names = request.settings.workers.keys();
    status.workers = names.map(|name| (name.clone(), pending.clone())).collect();
    status.base = Some(base);
}

fn task(
    request: &RunRequest,
    worker: &str,
    kind: TaskKind,
    round: u32,
    base: Option<&ContentReference>,
) -> RunTask {
    let settings = &request.settings;
    let worker_settings = &settings.workers[worker];
    let digest = Sha256::digest(format!("{}/{worker}/{round}", settings.seed));
    let seed = u64::from_be_bytes(digest[..8].try_into().unwrap()) >> 1;
    let id = canonical_json(&json!({
        "uid": request.uid, "run": request.run, "round": round, "kind": kind, "base": base,
        "worker": worker, "dataset": worker_settings.dataset, "workload": settings.workload,
        "seed": seed,
    }));
    RunTask {
        worker: worker.to_owned(),
        node: worker_settings.node.clone(),
        dataset: worker_settings.dataset.clone(),
        id: TaskId(hex(id.as_bytes())),
        kind,
        round,
        seed,
        base: base.cloned(),
    }
}

async fn serve(listener: TcpListener, key: TlsKey, controller: KeyPin, files: AggregatorFiles) {
    let acceptor = TlsAcceptor::from(Arc::new(server_config(&key)));
    // They break when the server is aborted.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, files, own) = (acceptor.clone(), files.clone(), controller.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let client = certificates.first().and_then(pin_of);
            let service = service_fn(|request| {
                let (files, client, own) = (files.clone(), client.clone(), own.clone());
                async move {
                    let response = answer(request, &files, client == Some(own)).await;
                    Ok::<_, Infallible>(response)
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    files: &AggregatorFiles,
    is_controller: bool,
) -> Response<Full<Bytes>> {
    if !is_controller {
        return problem(StatusCode::FORBIDDEN, "NodeNotTrusted", "unknown key");
    }
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    match (request.method().clone(), path.as_str()) {
        (Method::PUT, "/v1/run") => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            put(files, &serde_json::from_slice(&body).expect("a RunRequest"))
        }
        (Method::GET, "/v1/state") => state(files, &query).await,
        other => panic!("the controller must not call {other:?}"),
    }
}

fn put(files: &AggregatorFiles, request: &RunRequest) -> Response<Full<Bytes>> {
    let held = files.status();
    if !held.uid.is_empty() && held.uid != request.uid {
        return problem(StatusCode::CONFLICT, "OtherTrainingModel", "this is another one");
    }
    if request.run < held.run {
        return problem(StatusCode::CONFLICT, "RunEnded", "a later run has started");
    }
    let before = files.request();
    let is_same_run = request.run == held.run;
    if is_same_run && before.is_some_and(|before| before.settings != request.settings) {
        return problem(StatusCode::CONFLICT, "RunChanged", "the settings of the run differ");
    }
    for node in request.settings.workers.values().map(|worker| &worker.node) {
        let pin = request.nodes.get(node).map_or("", |KeyPin(pin)| pin.as_str());
        assert!(pin.is_empty() || pin.len() == 71, "{pin}");
    }
    files.lock().request = Some(request.clone());
    files.change(|status| {
        if request.run > status.run {
            let revision = status.revision;
            *status = RunStatus { revision, uid: request.uid.clone(), run: request.run, ..empty() };
            if let Some(initial) = &request.settings.initial {
                let base = ContentReference { sha256: initial.sha256.clone(), bytes: 7 };
                open(status, request, 1, base);
            } else {
                let first = request.settings.workers.keys().next().unwrap();
                status.tasks = vec![task(request, first, TaskKind::Initialize, 0, None)];
            }
        }
        for failed in &request.failed {
            let task = status.tasks.iter().find(|task| task.id == failed.id).cloned();
            if let Some(result) = task.and_then(|task| status.workers.get_mut(&task.worker)) {
                result.state = ResultState::Failed;
                result.reason = Some(failed.reason.clone());
                result.message.clone_from(&failed.message);
            }
            status.tasks.retain(|task| task.id != failed.id);
        }
        status.phase = match (request.suspended, status.phase) {
            (true, RunPhase::Preparing | RunPhase::Open) => RunPhase::Suspended,
            (false, RunPhase::Suspended) => RunPhase::Open,
            (_, phase) => phase,
        };
    });
    json_of(StatusCode::OK, &files.status())
}

async fn state(files: &AggregatorFiles, query: &str) -> Response<Full<Bytes>> {
    let parameter = |name: &str| -> Option<u64> {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.parse().unwrap())
    };
    if let Some(after) = parameter("after") {
        let wait = Duration::from_secs(parameter("wait").unwrap_or_default());
        let mut revisions = files.1.subscribe();
        let changed = revisions.wait_for(|revision| *revision > after);
        if files.status().revision <= after && tokio::time::timeout(wait, changed).await.is_err() {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
    }
    json_of(StatusCode::OK, &files.status())
}

fn problem(status: StatusCode, reason: &str, detail: &str) -> Response<Full<Bytes>> {
    let problem = AggregatorProblem { reason: reason.to_owned(), detail: detail.to_owned() };
    json_of(status, &problem)
}

fn json_of(status: StatusCode, value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(serde_json::to_vec(value).unwrap()));
    *response.status_mut() = status;
    response
}

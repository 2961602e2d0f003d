//! Receives reports of cloud workers in Pods: `POST /workers/<namespace>/<service>/<Pod uid>/<token>`
//! with the report that other workers publish over MQTT. What a report changes is decided by `fleet`
//! and `outputs`.

mod outputs;

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::StatusCode,
    routing::post,
};
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, Model};
use neptune_wire::{NodeName, ObjectKey, Resource, WorkerInfo, WorkerModel};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{
    cache::Caches,
    error::Error,
    fleet::{CloudWorkerReport, Fleet, upstream::FleetChange},
    health::HealthState,
    token_key::{TokenKey, is_equal},
};

/// Maximum size of a report, as of the embedded broker.
const MAX_REPORT_BYTES: usize = 64 * 1024;

/// Reports that are processed at the same time.
const MAX_CONCURRENT: usize = 32;

/// The longest status of a worker, in characters.
const MAX_STATUS: usize = 64;

/// What the receiver reads and updates. Cheap to clone.
#[derive(Clone)]
pub struct WorkerReports(Arc<Inner>);

struct Inner {
    key: TokenKey,
    caches: Caches,
    fleet: Fleet,
    changes: UnboundedSender<FleetChange>,
    health: HealthState,
    slots: Semaphore,
}

/// The answer to a report that is not accepted.
type Refusal = (StatusCode, String);

/// Binds the listen address.
///
/// # Errors
/// [`Error::Listen`] if the address is in use or does not belong to this machine.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let flag = "--worker-report-listen";
    TcpListener::bind(address).await.map_err(|source| Error::Listen { flag, address, source })
}

impl WorkerReports {
    /// A receiver of reports whose tokens are derived from this key.
    pub fn new(
        key: TokenKey,
        caches: Caches,
        fleet: Fleet,
        changes: UnboundedSender<FleetChange>,
        health: HealthState,
    ) -> Self {
        let slots = Semaphore::new(MAX_CONCURRENT);
        Self(Arc::new(Inner { key, caches, fleet, changes, health, slots }))
    }

    /// Serves until the program exits. The caches must be complete.
    pub async fn serve(self, listener: TcpListener) {
        let router = Router::new()
            .route("/workers/{namespace}/{service}/{pod}/{token}", post(receive))
            .layer(DefaultBodyLimit::max(MAX_REPORT_BYTES))
            .with_state(self);
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "HTTP server for workers' reports stopped");
        }
    }
}

async fn receive(
    State(WorkerReports(inner)): State<WorkerReports>,
    Path((namespace, name, pod, token)): Path<(String, String, String, String)>,
    body: Bytes,
) -> Result<(), Refusal> {
    let busy = (StatusCode::SERVICE_UNAVAILABLE, "too many reports; try again\n".to_owned());
    let _slot = inner.slots.try_acquire().map_err(|_| busy)?;
    inner.take(&namespace, &name, &pod, &token, &body)
}

impl Inner {
    fn take(
        &self,
        namespace: &str,
        name: &str,
        pod: &str,
        token: &str,
        body: &[u8],
    ) -> Result<(), Refusal> {
        if self.health.is_standby() {
            return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, "this replica is not active"));
        }
        let (service, pod) = self.authenticate(namespace, name, pod, token)?;
        let invalid = |why: String| refusal(StatusCode::BAD_REQUEST, &why);
        let info = WorkerInfo::decode(body).map_err(|error| invalid(error.to_string()))?;
        let models = info.models().map_err(|error| invalid(error.to_string()))?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()?.parse().ok());
        let node: NodeName = node.ok_or_else(|| invalid("the Pod has no node".to_owned()))?;
        let key = service_key(&service).ok_or_else(|| invalid("invalid name".to_owned()))?;
        let status = info.status.chars().take(MAX_STATUS).collect();
        let report = CloudWorkerReport { pod: pod.uid().unwrap_or_default(), status };
        let uid = service.uid().unwrap_or_default();
        let added = self.fleet.lock().on_cloud_worker_report(&uid, report, self.fleet.now());
        let Some(is_new) = added else {
            return Err(refusal(StatusCode::TOO_MANY_REQUESTS, "report once per second"));
        };
        if is_new {
            self.report(FleetChange::Object(key.clone()));
        }
        for model in &models {
            self.on_model(&service, &key, &node, model);
        }
        Ok(())
    }

    /// The service and the Pod of a report. A wrong token and an unknown service have one answer.
    fn authenticate(
        &self,
        namespace: &str,
        name: &str,
        pod: &str,
        token: &str,
    ) -> Result<(Arc<JointInferenceService>, Arc<Pod>), Refusal> {
        let service = self.caches.get::<JointInferenceService>(namespace, name);
        let is_admitted = |service: &Arc<JointInferenceService>| {
            service.uid().is_some_and(|uid| is_equal(&self.key.worker_token(&uid), token))
        };
        let service = service.filter(is_admitted).ok_or_else(|| {
            refusal(StatusCode::FORBIDDEN, "wrong token, or the service does not exist")
        })?;
        let mut pods = self.caches.pods_of(&*service).into_iter();
        let found = pods.find(|found| found.metadata.uid.as_deref() == Some(pod));
        let pod = found.ok_or_else(|| {
            refusal(StatusCode::CONFLICT, "the service has no such Pod yet; try again")
        })?;
        Ok((service, pod))
    }

    /// Reports on Models that do not exist are ignored, as those of agents.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_model(
        &self,
        service: &JointInferenceService,
        key: &ObjectKey,
        node: &NodeName,
        reported: &WorkerModel,
    ) {
        let namespace = key.namespace.as_str();
        let name = outputs::model_name(service, reported);
        let Some(model) = self.caches.get::<Model>(namespace, &name) else { return };
        let Some(output) = outputs::of_model(&model, reported) else { return };
        let model =
            ObjectKey { resource: Resource::Models, name: output.model.clone(), ..key.clone() };
        if self.fleet.lock().on_model_output(node, key, &output, Timestamp::now()) {
            self.report(FleetChange::Object(model));
        }
    }

    fn report(&self, change: FleetChange) {
        // The receiver is dropped only when the program ends.
        let _ = self.changes.unbounded_send(change);
    }
}

fn refusal(status: StatusCode, why: &str) -> Refusal {
    (status, format!("{why}\n"))
}

fn service_key(service: &JointInferenceService) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: service.namespace()?.parse().ok()?,
        resource: Resource::JointInferenceServices,
        name: service.name_any().parse().ok()?,
    })
}

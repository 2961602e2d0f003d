//! Receives reports of cloud workers in Pods: `POST /workers/<namespace>/<service>/<Pod uid>/<token>`
//! with the report that other workers publish over MQTT. What a report changes is decided by `fleet`
//! and `outputs`.

mod outputs;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Instant};

use futures::channel::mpsc::UnboundedSender;
use http_body_util::BodyExt as _;
use hyper::{Method, Request, StatusCode, body::Incoming};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::ResourceExt as _;
use neptune_api::{JointInferenceService, Model};
use neptune_cloud_fleet::{
    Fleet,
    receiver::{self, TokenCheck},
    token_key,
};
use neptune_cloud_kinds::fleet::CloudWorkerReport;
use neptune_program::listen::{self, Refusals};
use neptune_wire::{NodeName, ObjectKey, Resource, WorkerInfo, WorkerModel};
use tokio::net::TcpListener;

use crate::upstream::FleetChange;
use crate::{
    cache::Caches, controllers::runtime::Context, error::Error, health::HealthState,
    kubernetes::report_target::ReportTarget,
};

/// The flag that names the file with the key.
pub const KEY_FLAG: &str = "--worker-report-key-file";

/// The name of the receiver in metrics and in the log.
const SERVER: &str = "worker-reports";

/// Maximum size of a report, as of the embedded broker.
const MAX_REPORT_BYTES: usize = 64 * 1024;

/// Bytes that are read of a report that is too large. A client reads the answer only after it has
/// sent its request.
const MAX_READ_BYTES: usize = 4 * MAX_REPORT_BYTES;

/// The longest status of a worker, in characters.
const MAX_STATUS: usize = 64;

/// What the receiver reads and updates. Cheap to clone.
#[derive(Clone)]
pub struct WorkerReports(Arc<Inner>);

struct Inner {
    target: ReportTarget,
    caches: Caches,
    fleet: Fleet,
    changes: UnboundedSender<FleetChange>,
    health: HealthState,
    refusals: Refusals,
}

/// The answer to a report that is not accepted.
type Refusal = (StatusCode, String);

/// Binds the listen address.
///
/// # Errors
/// [`Error::Listen`] if the address is in use or does not belong to this machine.
pub fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let flag = "--worker-report-listen";
    listen::bind(address).map_err(|source| Error::Listen { flag, address, source })
}

/// Applies changes of the key's file, indefinitely: the Pods of cloud workers are replaced.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn follow_key(target: ReportTarget, path: impl AsRef<Path>, context: Context) {
    let on_key = |key| {
        if target.replace_key(key, Instant::now()) {
            tracing::info!("key of workers' reports changed; replacing Pods of cloud workers");
            context.enqueue_where(|_: &JointInferenceService| true);
        }
    };
    token_key::follow(KEY_FLAG, path.as_ref(), on_key).await;
}

impl WorkerReports {
    /// A receiver of reports for this target.
    pub fn new(
        target: ReportTarget,
        caches: Caches,
        fleet: Fleet,
        changes: UnboundedSender<FleetChange>,
        health: HealthState,
        refusals: Refusals,
    ) -> Self {
        Self(Arc::new(Inner { target, caches, fleet, changes, health, refusals }))
    }

    /// Serves until the program exits. The caches must be complete.
    pub async fn serve(self, listener: TcpListener) {
        let refusals = self.0.refusals.clone();
        let answer = move |request, check| {
            let Self(inner) = self.clone();
            async move {
                let accepted = answer(&inner, request).await;
                // Kept until here: a Pod that sends its reports slowly delays no other.
                let _: TokenCheck = check;
                accepted.err().unwrap_or((StatusCode::OK, String::new()))
            }
        };
        receiver::serve(SERVER, &listener, &refusals, answer).await;
    }
}

async fn answer(inner: &Inner, request: Request<Incoming>) -> Result<(), Refusal> {
    let (head, body) = request.into_parts();
    let path = path(&head.method, head.uri.path());
    let [namespace, name, pod, token] = path.ok_or_else(|| {
        refusal(StatusCode::NOT_FOUND, "use POST /workers/<namespace>/<service>/<Pod uid>/<token>")
    })?;
    if inner.health.is_standby() {
        return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, "this replica is not active"));
    }
    let (service, pod) = inner.authenticate(namespace, name, pod, token)?;
    inner.take(&service, &pod, &read(body).await?)
}

/// The namespace, service, Pod and token in a request.
fn path<'a>(method: &Method, path: &'a str) -> Option<[&'a str; 4]> {
    let rest = path.strip_prefix("/workers/").filter(|_| method == Method::POST)?;
    let parts: Vec<_> = rest.split('/').collect();
    parts.try_into().ok()
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, Refusal> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let incomplete = |_| refusal(StatusCode::BAD_REQUEST, "the body is incomplete");
        let Ok(data) = frame.map_err(incomplete)?.into_data() else { continue };
        length += data.len();
        if length <= MAX_REPORT_BYTES {
            bytes.extend_from_slice(&data);
        } else if length > MAX_READ_BYTES {
            break;
        }
    }
    if length > MAX_REPORT_BYTES {
        return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "a report has at most 64 KiB"));
    }
    Ok(bytes)
}

impl Inner {
    fn take(&self, service: &JointInferenceService, pod: &Pod, body: &[u8]) -> Result<(), Refusal> {
        let invalid = |why: String| refusal(StatusCode::BAD_REQUEST, &why);
        let info = WorkerInfo::decode(body).map_err(|error| invalid(error.to_string()))?;
        let models = info.models().map_err(|error| invalid(error.to_string()))?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()?.parse().ok());
        let node: NodeName = node.ok_or_else(|| invalid("the Pod has no node".to_owned()))?;
        let key = service_key(service).ok_or_else(|| invalid("invalid name".to_owned()))?;
        let status = info.status.chars().take(MAX_STATUS).collect();
        let report = CloudWorkerReport { pod: pod.uid().unwrap_or_default(), status };
        let uid = service.uid().unwrap_or_default();
        let added = self.fleet.lock().on_cloud_worker_report(&uid, report, self.fleet.now());
        let Some(is_new) = added else {
            return Err(refusal(StatusCode::TOO_MANY_REQUESTS, "report once per second"));
        };
        if is_new {
            self.report(FleetChange::Object(key.clone(), node.clone()));
        }
        for model in &models {
            self.on_model(service, &key, &node, model);
        }
        Ok(())
    }

    /// The service and the Pod of a report. A wrong token and an unknown service have one answer.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn authenticate(
        &self,
        namespace: &str,
        name: &str,
        pod: &str,
        token: &str,
    ) -> Result<(Arc<JointInferenceService>, Arc<Pod>), Refusal> {
        let service = self.caches.get::<JointInferenceService>(namespace, name);
        let is_admitted = |service: &Arc<JointInferenceService>| {
            service.uid().is_some_and(|uid| self.target.admits(&uid, token, Instant::now()))
        };
        let service = service.filter(is_admitted).ok_or_else(|| {
            refusal(StatusCode::FORBIDDEN, "wrong token, or the service does not exist")
        })?;
        let mut pods = self.caches.pods_of(&*service).into_iter();
        let sender = pods.find(|it| it.metadata.uid.as_deref() == Some(pod));
        let pod = sender.ok_or_else(|| {
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
        let (mut fleet, now) = (self.fleet.lock(), Timestamp::now());
        let uid = model.uid().unwrap_or_default();
        let held = fleet.evaluation(&uid).filter(|it| it.node == *node && it.object == *key);
        let held = held.map(|held| &held.output);
        let Some(output) = outputs::of_model(&model, reported, held, now) else { return };
        let model =
            ObjectKey { resource: Resource::Models, name: output.model.clone(), ..key.clone() };
        if fleet.on_model_output(node, key, &output, now) {
            drop(fleet);
            self.report(FleetChange::Object(model, node.clone()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_contains_service_pod_and_token() {
        let parts = Some(["default", "digits", "uid", "token"]);
        assert_eq!(path(&Method::POST, "/workers/default/digits/uid/token"), parts);
        assert_eq!(path(&Method::GET, "/workers/default/digits/uid/token"), None);
        for other in ["/workers/default/digits/uid", "/workers/a/b/c/d/e", "/readyz", "/workers"] {
            assert_eq!(path(&Method::POST, other), None, "{other}");
        }
    }
}

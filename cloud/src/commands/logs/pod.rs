//! Prints the log of a worker that runs in a Pod, with the rights of the caller.

use std::io::Write as _;

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, LogParams},
};
use neptune_api::{
    InferenceModel, JointInferenceService, LogObjectKind, LogRequestSpec, LogWorker,
};
use neptune_cloud_kinds::kubernetes::labels::{MANAGED_BY, owner_annotation};

use crate::error::Error;

/// Whether the log was read from a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Followed {
    /// It was printed to the end.
    Yes,
    /// The worker has no Pod that the caller may see.
    No,
}

/// Prints the log of the newest Pod of a worker.
///
/// # Errors
/// The API server does not answer, or the caller may not read the log.
pub async fn print(
    client: &Client,
    namespace: &str,
    spec: &LogRequestSpec,
    follow: bool,
) -> Result<Followed, Error> {
    let Some((annotation, container)) = place(spec.object_ref.kind, spec.worker) else {
        return Ok(Followed::No);
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let managed = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let pods = match api.list(&managed).await {
        Ok(pods) => pods.items,
        // The worker may run at an agent.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(Followed::No),
        Err(error) => return Err(Error::api("list Pods")(error)),
    };
    let owned = pods.into_iter().filter(|pod| {
        pod.annotations().get(&annotation) == Some(&spec.object_ref.name)
            && pod.metadata.deletion_timestamp.is_none()
    });
    let Some(pod) = owned.max_by_key(|pod| pod.creation_timestamp().map(|time| time.0)) else {
        return Ok(Followed::No);
    };
    let name = pod.name_any();
    let params = LogParams {
        container: Some(container.to_owned()),
        follow,
        tail_lines: spec.tail_lines.map(i64::from),
        since_seconds: spec.since_seconds.map(i64::from),
        ..LogParams::default()
    };
    let failed = || format!("read the log of Pod {namespace}/{name}");
    let log = api.log_stream(&name, &params).await.map_err(Error::api(failed()))?;
    let mut lines = std::pin::pin!(log.lines());
    let mut output = std::io::stdout();
    while let Some(line) =
        lines.try_next().await.map_err(|error| Error::Logs(format!("{}: {error}", failed())))?
    {
        // A closed pipe is not an error.
        if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
            break;
        }
    }
    Ok(Followed::Yes)
}

/// The annotation that names the owner of a Pod, and the container of the worker. `None` for a
/// worker that never runs in a Pod.
fn place(kind: LogObjectKind, worker: LogWorker) -> Option<(String, &'static str)> {
    match (kind, worker) {
        (LogObjectKind::JointInferenceService, LogWorker::Cloud) => {
            Some((owner_annotation::<JointInferenceService>(), "worker"))
        }
        (LogObjectKind::InferenceModel, LogWorker::Server) => {
            Some((owner_annotation::<InferenceModel>(), "server"))
        }
        (LogObjectKind::InferenceModel, LogWorker::Transformer) => {
            Some((owner_annotation::<InferenceModel>(), "transformer"))
        }
        _ => None,
    }
}

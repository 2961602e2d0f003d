//! A Kubernetes API on loopback, in memory, for the demo and for tests: as strict as Kubernetes 1.36 where it answers at all
//! (`hack/test-apiextensions.sh` compares the two).
//!
//! Served: Namespace, Node, Pod, Service, `ConfigMap`, Secret, `ServiceAccount`, Event (both groups), Deployment, `DaemonSet`, Lease,
//! `NetworkPolicy`, `PodDisruptionBudget`, the RBAC kinds, `ValidatingWebhookConfiguration`, `CustomResourceDefinition`, and whatever
//! kinds the definitions make. Who impersonates a user (`kubectl --as`) may do what the stored roles and bindings allow; all others are
//! administrators.
//!
//! Rules in CEL are evaluated after the schema; a definition whose rules an API server would refuse, or this one cannot evaluate, is
//! refused. Validating webhooks are asked last, at a `url` only: a `service` has no endpoints here.
//!
//! Not there, on purpose: authentication, mutating webhooks, conversion between versions beyond the `None` strategy, `logs`, `exec` and
//! `port-forward`.
//! A list that is read in pages is not a snapshot: later pages show later writes.
//!
//! There is no kubelet and no workload controller: Deployments and Pods are stored, nothing runs. What the API machinery does by
//! itself is there: definitions become served, owners and namespaces take their content along.

mod admit;
mod apply;
mod authorize;
mod builtin;
mod cel;
mod cluster;
mod controllers;
mod crd;
mod decode;
mod discovery;
mod error;
mod field;
mod http;
pub mod kubeconfig;
mod names;
mod object;
mod openapi;
mod patch;
mod prepare;
mod protobuf;
mod registry;
mod render;
mod request;
mod resource;
mod schema;
mod selector;
mod status;
mod store;
mod table;
mod verbs;
mod watch;
mod webhook;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;

use cluster::Cluster;
pub use error::Error;

/// Serves a fresh, empty cluster until `shutdown` resolves; open watches end then.
///
/// The namespaces `default` and `kube-system` exist from the start. Requests are answered as soon as this is polled: connections that
/// came before wait in the listener's backlog.
///
/// # Errors
/// [`Error::Serve`] when the listener fails.
pub async fn serve(
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let cluster = Arc::new(Cluster::new());
    cluster.write(|state| {
        for namespace in ["default", "kube-system"] {
            verbs::create::namespace(state, namespace, jiff::Timestamp::now());
        }
    });
    let controllers = tokio::spawn(controllers::run(cluster.clone()));
    let router = Router::new().fallback(http::handle).with_state(cluster.clone());
    let closing = cluster.clone();
    let ended = axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            shutdown.await;
            closing.close();
        })
        .await;
    cluster.close();
    // The controllers end with the cluster; a panic in them was reported already.
    let _ = controllers.await;
    ended.map_err(Error::Serve)
}

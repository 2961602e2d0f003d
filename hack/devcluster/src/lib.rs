//! An in-memory Kubernetes API on loopback, for the demo and for tests.
//!
//! It serves the built-in kinds of `builtin` and the kinds of `CustomResourceDefinition`s. What it
//! serves is as strict as Kubernetes 1.36, because a lenient server hides defects of its clients;
//! `hack/test-apiextensions.sh` compares the two. Input that it does not support is refused, never
//! ignored. `README.md` lists the modules and what needs them.
//!
//! Not supported: authentication, mutating webhooks, webhooks of services, conversion between
//! versions, `logs`, `exec` and `port-forward`. There is no kubelet and no workload controller:
//! Deployments and Pods are stored and never run. A client that impersonates a user (`kubectl
//! --as`) has the rights of the stored roles; every other client is the administrator.

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

/// Serves an empty cluster until `shutdown` resolves, then closes open watches.
///
/// The namespaces `default` and `kube-system` exist from the start. Connections made before the
/// first poll wait in the listener's backlog.
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
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            shutdown.await;
            closing.close();
        })
        .await;
    cluster.close();
    // The controllers stop with the cluster; a panic in them is reported already.
    let _ = controllers.await;
    served.map_err(Error::Serve)
}

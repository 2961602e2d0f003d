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
mod definitions;
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
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::serve::{Listener, ListenerExt as _};
use tokio::net::{TcpListener, TcpStream};

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
    let served = axum::serve(without_delay(listener), router)
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

/// Accepts connections whose small packets are sent at once, as those of an API server are (Go sets
/// `TCP_NODELAY`). Otherwise an event of a watch waits until the client has acknowledged the one
/// before, which takes up to 40 ms.
fn without_delay(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY is not set");
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn events_of_a_watch_do_not_wait_for_acknowledgements() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = without_delay(listener).accept().await;
        assert!(stream.nodelay().unwrap());
    }
}

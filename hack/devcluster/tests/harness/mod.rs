//! A devcluster in the process of the test, and the CRD of the tests.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub const WIDGET_CRD: &str = include_str!("../fixtures/widget-crd.yaml");

/// A running devcluster. It stops when this is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl TestServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(devcluster::serve(listener, async move {
            // An error means that the sender was dropped.
            let _ = stopped.await;
        }));
        Self { address, _stop: stop }
    }

    pub fn client(&self) -> kube::Client {
        let uri = format!("http://{}", self.address).parse().unwrap();
        let mut config = kube::Config::new(uri);
        "default".clone_into(&mut config.default_namespace);
        kube::Client::try_from(config).unwrap()
    }
}

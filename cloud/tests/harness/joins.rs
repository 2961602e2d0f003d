//! Nodes that join: the objects that the manifests create empty, the join server, and a client that
//! sends what `neptune-edge join` sends.

use std::{collections::BTreeMap, process::Command, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::PostParams};
use neptune_harness::{Process, eventually_async, free_port};
use neptune_join::{
    JOIN_PATH, JOIN_SERVER_NAME, JOIN_VERSION, JoinAnswer, JoinRefusal, JoinRequest, JoinToken,
};
use neptune_pinned_tls::{TlsKey, authority_client_config};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::Harness;

/// The namespace of the controller.
const NAMESPACE: &str = "neptune-system";

impl Harness {
    /// The Secrets of the controller's namespace.
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The join tokens of the cluster, by ID.
    pub async fn tokens(&self) -> BTreeMap<String, String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut data = maps.get("neptune-join-tokens").await.unwrap().data.unwrap_or_default();
        data.remove("ca.crt");
        data
    }

    /// Creates what the manifests create empty. `ca` is the data of a Secret that was restored.
    pub async fn join_objects(&self, ca: Option<Secret>) {
        let create = PostParams::default();
        let object = |name: &str| json!({"metadata": {"name": name}});
        for (name, restored) in [("neptune-ca", ca), ("neptune-broker-tls", None)] {
            let mut secret: Secret = serde_json::from_value(object(name)).unwrap();
            secret.data = restored.and_then(|restored| restored.data);
            self.secrets().create(&create, &secret).await.unwrap();
        }
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let map = serde_json::from_value(object("neptune-join-tokens")).unwrap();
        maps.create(&create, &map).await.unwrap();
    }

    /// Waits until the controller has filled them.
    pub async fn until_joins_are_ready(&self) {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually_async("the files of the broker and the authority of tokens", async || {
            let map = maps.get("neptune-join-tokens").await.unwrap();
            let has_authority = map.data.is_some_and(|data| data.contains_key("ca.crt"));
            has_authority && !self.broker_file("crl.pem").await.is_empty()
        })
        .await;
    }

    /// A file of the broker's Secret, which is empty until the controller has written it.
    pub async fn broker_file(&self, file: &str) -> String {
        let data = self.secrets().get("neptune-broker-tls").await.unwrap().data;
        let bytes = data.unwrap_or_default().remove(file).unwrap_or_default();
        String::from_utf8(bytes.0).unwrap()
    }

    /// Starts a subcommand of the built program that runs until it is stopped.
    pub fn start_command(&self, args: &[&str]) -> Process {
        let kubeconfig = self.directory.path().join(super::CONTROLLER_KUBECONFIG);
        let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-cloud"));
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        Process::start(args[0], self.directory.path(), &mut command)
    }

    /// Starts the join server, and waits until it has the authority. Returns it and its port.
    pub async fn start_join_server(&self, flags: &[&str]) -> (Process, u16) {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let server = self.start_command(&[&["join-server", "--listen", &listen], flags].concat());
        eventually_async("the join server", async || server.log().contains("join server started"))
            .await;
        (server, port)
    }

    /// Enrolls a node with these flags. Returns its token, or the error.
    pub async fn enroll(&self, node: &str, flags: &[&str]) -> Result<JoinToken, String> {
        let url = ["--url", "https://127.0.0.1:1"];
        let output = self.command(&[&["enroll", node], &url[..], flags].concat()).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if !output.status.success() {
            return Err(text(output.stderr));
        }
        let page = text(output.stdout);
        let line = page.lines().find_map(|line| line.strip_prefix("  neptune-edge join "));
        let token = line.and_then(|line| line.split(' ').nth(1));
        Ok(token.unwrap_or_else(|| panic!("no command in {page:?}")).parse().unwrap())
    }
}

/// The request of a node with this token.
pub fn join_request(token: &JoinToken, key: &TlsKey) -> JoinRequest {
    JoinRequest {
        version: JOIN_VERSION,
        node: token.node.clone(),
        id: token.id.clone(),
        secret: token.secret.clone(),
        csr: key.signing_request(token.node.as_str()),
        agent_version: "0.2.0".to_owned(),
        arch: "x86_64".to_owned(),
    }
}

/// Asks for a certificate, as a node with this token and this key.
pub async fn join(port: u16, token: &JoinToken, key: &TlsKey) -> Result<JoinAnswer, JoinRefusal> {
    post(port, token, &serde_json::to_vec(&join_request(token, key)).unwrap()).await
}

/// Sends a body to the join server, whose authority is that of the token.
pub async fn post(port: u16, token: &JoinToken, body: &[u8]) -> Result<JoinAnswer, JoinRefusal> {
    let name = ServerName::try_from(JOIN_SERVER_NAME).unwrap();
    let config = authority_client_config(token.authority.clone(), name.clone());
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let head = format!(
        "POST {JOIN_PATH} HTTP/1.1\r\nHost: broker.test:30884\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server may close before it has read a body that is too large.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(serde_json::from_str(body).unwrap());
    }
    let refusal: JoinRefusal = serde_json::from_str(body).unwrap();
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", refusal.reason.status())), "{head}");
    Err(refusal)
}

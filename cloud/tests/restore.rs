//! A lost cluster is restored from the authority and the `EdgeNodes`: its nodes connect with the
//! certificates that they have, without a join, and a revoked one is refused.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::{fs, path::Path, process::Command};

use harness::{
    Harness,
    certificates::{CertificateClient, certificate_listener},
    joins::join,
};
use neptune_api::EdgeNode;
use neptune_harness::{Process, eventually_async, free_port};
use neptune_pinned_tls::{Credentials, TlsKey};
use serde_json::json;

const CA: [&str; 2] = ["--ca-secret", "neptune-ca"];

/// A mosquitto whose process has a name of its own, so that the SIGHUP of another test does not
/// reach it.
fn mosquitto(directory: &Path, name: &str, port: u16) -> Process {
    let program = directory.join(name);
    std::os::unix::fs::symlink("/usr/sbin/mosquitto", &program).unwrap();
    let acl = concat!(env!("CARGO_MANIFEST_DIR"), "/../build/acl/neptune.acl");
    let config = format!(
        "user root\nlog_dest stderr\nallow_anonymous false\nacl_file {acl}\nlistener {port} 127.0.0.1\n{}\n",
        certificate_listener(directory).replace("use_username_as_clientid true\n", "")
    );
    let file = directory.join("mosquitto.conf");
    fs::write(&file, config).unwrap();
    Process::start("mosquitto", directory, Command::new(program).arg("-c").arg(file))
}

/// A node that joined a cluster: its name and its certificate.
async fn joined(harness: &Harness, port: u16, node: &str) -> Credentials {
    let token = harness.enroll(node, &[]).await.unwrap();
    let key = TlsKey::generate();
    let answer = join(port, &token, &key).await.unwrap();
    let is_recorded = |it: &EdgeNode| it.spec.trusted_key.as_ref() == Some(&key.pin().0);
    harness.until_edge_node(node, "the key", is_recorded).await;
    Credentials { certificate: answer.certificate, key: key.to_pem().to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_cluster_accepts_its_nodes_without_a_join() {
    let mut lost = Harness::without_controller().await;
    lost.join_objects(None).await;
    lost.start_controller_with(&CA);
    lost.until_joins_are_ready().await;
    let (_server, port) = lost.start_join_server(&[]).await;
    let mut nodes = Vec::new();
    for node in ["shop-1", "shop-2", "shop-3"] {
        nodes.push(joined(&lost, port, node).await);
    }
    assert!(lost.command(&["revoke", "shop-3"]).await.status.success());
    let ca = lost.secrets().get("neptune-ca").await.unwrap();
    let mut backup = Vec::new();
    for node in ["shop-1", "shop-2", "shop-3"] {
        backup.push(lost.edge_nodes().get(node).await.unwrap());
    }
    drop(lost);

    // Another cluster, with the Secret and the EdgeNodes of the backup.
    let mut harness = Harness::without_controller().await;
    harness.join_objects(Some(ca)).await;
    for node in backup {
        harness
            .edge_node(node.metadata.name.as_deref().unwrap(), json!({}), json!(node.spec))
            .await;
    }
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path();
    let port = free_port();
    harness.set_transport(vec!["--mqtt-url".to_owned(), format!("mqtts://localhost:{port}")]);
    harness.start_controller_with(&CA);
    let process = format!("mq{port}");
    let at = files.to_str().unwrap();
    let sidecar =
        harness.start_command(&["broker-files", "--directory", at, "--process", &process]);
    eventually_async("the files of the broker", async || files.join("crl.pem").exists()).await;
    let check = ["broker-files", "--check", "--directory", at];
    assert!(harness.command(&check).await.status.success());
    let broker = mosquitto(files, &process, port);
    eventually_async("the broker to run", async || broker.log().contains(" running")).await;

    let ca = fs::read_to_string(files.join("ca.crt")).unwrap();
    let connect = async |node: &Credentials| CertificateClient::connect(port, &ca, node).await;
    let mut first = connect(&nodes[0]).await.expect("the first node");
    assert!(connect(&nodes[1]).await.is_some(), "the second node");
    assert!(connect(&nodes[2]).await.is_none(), "it is revoked");
    // The controller signed its own certificate, and connects as neptune_cloud.
    eventually_async("the controller to be connected", async || {
        harness.is_ready(harness.http_port()).await
    })
    .await;
    assert!(broker.log().contains("'neptune_cloud'"), "{}", broker.log());

    assert!(harness.command(&["revoke", "shop-2"]).await.status.success());
    eventually_async("the second node to be refused", async || connect(&nodes[1]).await.is_none())
        .await;
    assert!(first.is_connected().await, "{}", broker.log());
    assert!(sidecar.log().contains("reloaded=1"), "{}", sidecar.log());
}

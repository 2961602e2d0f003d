//! Revoked certificates at mosquitto: after SIGHUP it refuses them, also with a changed server
//! certificate, and keeps all other connections.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::{collections::BTreeSet, fs, path::Path};

use harness::certificates::{CertificateClient, certificate_listener, node_credentials};
use neptune_harness::{Broker, eventually_async};
use neptune_pinned_tls::{Authority, Serial};

fn serial(number: u8) -> Serial {
    Serial::from_random([number; 8])
}

fn write_list(authority: &Authority, directory: &Path, serials: &[Serial], number: u64) {
    let serials: BTreeSet<Serial> = serials.iter().copied().collect();
    let list = authority.revocation_list(&serials, number).unwrap();
    fs::write(directory.join("crl.pem"), list).unwrap();
}

fn write_server(authority: &Authority, directory: &Path) {
    let server = authority.sign_server(["localhost".to_owned()]).unwrap();
    fs::write(directory.join("tls.crt"), server.certificate).unwrap();
    fs::write(directory.join("tls.key"), server.key).unwrap();
}

#[tokio::test]
async fn revoked_certificate_is_refused_after_sighup_and_others_stay_connected() {
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path();
    let authority = Authority::generate(1_800_000_000);
    fs::write(files.join("ca.crt"), authority.certificate()).unwrap();
    write_server(&authority, files);
    write_list(&authority, files, &[], 1);
    let broker = Broker::with_config(&certificate_listener(files)).await;
    let ca = authority.certificate();
    let (kept, stolen) = (
        node_credentials(&authority, "edge0", serial(1)),
        node_credentials(&authority, "edge1", serial(2)),
    );
    let connect =
        async |credentials| CertificateClient::connect(broker.port(), ca, credentials).await;

    let mut first = connect(&kept).await.expect("a node with a certificate");
    let mut second = connect(&stolen).await.expect("another one");
    let foreign = node_credentials(&Authority::generate(0), "edge0", serial(3));
    assert!(connect(&foreign).await.is_none(), "another authority");

    write_list(&authority, files, &[serial(2)], 2);
    write_server(&authority, files);
    broker.reload();
    // It handles connections after the reload.
    eventually_async("the reload", async || broker.log().contains("Reloading config")).await;
    assert!(connect(&stolen).await.is_none(), "{}", broker.log());
    assert!(first.is_connected().await && second.is_connected().await, "{}", broker.log());
    // With the client ID of the first one, whose session it takes over.
    assert!(connect(&kept).await.is_some(), "{}", broker.log());

    write_list(&authority, files, &[], 3);
    broker.reload();
    eventually_async("the certificate to be accepted again", async || {
        connect(&stolen).await.is_some()
    })
    .await;
}

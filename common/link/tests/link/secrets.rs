//! TLS, client certificates and passwords.

use std::path::{Path, PathBuf};

use neptune_link::{Link, LinkEvent, LinkOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};

use crate::mosquitto::Mosquitto;
use crate::{flush, message, next, next_down, next_message};

/// Creates a CA and writes its certificate to a PEM file.
fn authority(dir: &Path, name: &str) -> (CertifiedIssuer<'static, KeyPair>, PathBuf) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let path = dir.join(format!("{name}.pem"));
    std::fs::write(&path, issuer.pem()).unwrap();
    (issuer, path)
}

/// Starts a broker with TLS whose certificate for `localhost` is signed by this CA.
async fn broker(dir: &Path, issuer: &CertifiedIssuer<'static, KeyPair>) -> Mosquitto {
    with_tls(dir, issuer, "allow_anonymous true").await
}

/// The same, with additional configuration.
async fn with_tls(
    dir: &Path,
    issuer: &CertifiedIssuer<'static, KeyPair>,
    config: &str,
) -> Mosquitto {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    // OpenSSL treats a certificate with the name of its CA as self-signed.
    params.distinguished_name.push(DnType::CommonName, "localhost");
    let certificate = params.signed_by(&key, issuer).unwrap();
    let (key_file, certificate_file) = (dir.join("server.key"), dir.join("server.pem"));
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    std::fs::write(&certificate_file, certificate.pem()).unwrap();
    let (key_file, certificate_file) = (key_file.display(), certificate_file.display());
    Mosquitto::with(&format!("{config}\ncertfile {certificate_file}\nkeyfile {key_file}")).await
}

fn tls(url: &str, ca_file: Option<&Path>) -> LinkOptions {
    let mut options = LinkOptions::new(url.parse().unwrap(), "me");
    options.ca_file = ca_file.map(Path::to_owned);
    options.subscriptions = vec!["t".to_owned()];
    options
}

#[tokio::test]
async fn broker_is_trusted_only_by_the_ca_file() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, right) = authority(dir.path(), "right");
    let (_, wrong) = authority(dir.path(), "wrong");
    let broker = broker(dir.path(), &issuer).await;
    let url = format!("mqtts://localhost:{}", broker.port);

    let (untrusting, mut events) = Link::start(tls(&url, Some(&wrong))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("certificate") && reason.contains(&wrong.display().to_string()),
        "{reason}"
    );
    assert!(!untrusting.is_up());

    let (link, mut events) = Link::start(tls(&url, Some(&right))).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    link.publish(message("t", "secret")).unwrap();
    assert_eq!(next_message(&mut events).await, message("t", "secret"));
    flush(&link).await;

    // The certificate is not for this address.
    let address = format!("mqtts://127.0.0.1:{}", broker.port);
    let (_other, mut events) = Link::start(tls(&address, Some(&right))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn invalid_ca_file_is_reported_until_it_is_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, good) = authority(dir.path(), "good");
    let broker = broker(dir.path(), &issuer).await;
    let url = format!("mqtts://localhost:{}", broker.port);
    let ca_file = dir.path().join("ca.pem");

    let (_link, mut events) = Link::start(tls(&url, Some(&ca_file))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("CA file") && reason.contains("No such file"), "{reason}");
    std::fs::write(&ca_file, "not a certificate").unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("it contains no PEM certificate"), "{reason}");
    std::fs::copy(&good, &ca_file).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
}

/// Writes a client certificate with this common name to `client.pem` and `client.key`.
fn client(dir: &Path, issuer: &CertifiedIssuer<'static, KeyPair>, name: &str, last_year: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
    let certificate = params.signed_by(&key, issuer).unwrap();
    std::fs::write(dir.join("client.key"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("client.pem"), certificate.pem()).unwrap();
}

#[tokio::test]
async fn renewed_client_certificate_is_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, ca_file) = authority(dir.path(), "ca");
    // An expired certificate, as on a node that was switched off for long.
    client(dir.path(), &issuer, "edge0", 2020);
    let acl = dir.path().join("acl");
    std::fs::write(&acl, "pattern readwrite of/%u/#\n").unwrap();
    let broker = with_tls(
        dir.path(),
        &issuer,
        &format!(
            "cafile {}\nrequire_certificate true\nuse_identity_as_username true\nacl_file {}",
            ca_file.display(),
            acl.display()
        ),
    )
    .await;
    let options = LinkOptions {
        certificate_file: Some(dir.path().join("client.pem")),
        key_file: Some(dir.path().join("client.key")),
        subscriptions: vec!["of/#".to_owned()],
        ..tls(&format!("mqtts://localhost:{}", broker.port), Some(&ca_file))
    };
    let (link, mut events) = Link::start(options).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("client.pem"), "{reason}");
    assert!(reason.contains("xpired"), "{reason}");

    // During a renewal, certificate and key do not match.
    let key = std::fs::read(dir.path().join("client.key")).unwrap();
    client(dir.path(), &issuer, "edge0", 2100);
    let renewed = std::fs::read(dir.path().join("client.key")).unwrap();
    std::fs::write(dir.path().join("client.key"), key).unwrap();
    while !next_down(&mut events).await.contains("key file") {}
    std::fs::write(dir.path().join("client.key"), renewed).unwrap();
    while next(&mut events).await != LinkEvent::Up {}

    link.publish(message("of/edge0/x", "mine")).unwrap();
    assert_eq!(next_message(&mut events).await, message("of/edge0/x", "mine"));
}

#[tokio::test]
async fn password_file_is_read_for_each_connection() {
    let dir = tempfile::tempdir().unwrap();
    let passwords = dir.path().join("passwords");
    let status = std::process::Command::new("mosquitto_passwd")
        .args(["-b", "-c"])
        .arg(&passwords)
        .args(["ann", "right"])
        .status();
    assert!(status.unwrap().success());
    let broker = Mosquitto::with(&format!("password_file {}", passwords.display())).await;
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, "wrong\n").unwrap();
    let mut options = tls(&format!("mqtt://ann@127.0.0.1:{}", broker.port), None);
    options.password_file = Some(password_file.clone());
    let (_link, mut events) = Link::start(options).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("refused the user or the password"), "{reason}");
    std::fs::write(&password_file, "right\n").unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
}

#[tokio::test]
async fn refused_login_is_reported_without_the_password() {
    let broker = Mosquitto::with("allow_anonymous false").await;
    let url = format!("mqtt://ann:hidden@127.0.0.1:{}", broker.port);
    let (_link, mut events) = Link::start(tls(&url, None)).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("refused the user or the password") && reason.contains("ann:***@"),
        "{reason}"
    );
    assert!(!reason.contains("hidden"), "{reason}");
}

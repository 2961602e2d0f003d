//! Whom the link trusts, and who it says it is.

use std::path::{Path, PathBuf};

use neptune_link::{Event, Link, LinkError, LinkOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::mosquitto::Mosquitto;
use crate::{flush, message, next, next_down, next_message};

/// A new authority, written to a PEM file.
fn authority(dir: &Path, name: &str) -> (CertifiedIssuer<'static, KeyPair>, PathBuf) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let path = dir.join(format!("{name}.pem"));
    std::fs::write(&path, issuer.pem()).unwrap();
    (issuer, path)
}

/// A broker with TLS whose certificate for `localhost` this authority signed.
async fn broker(dir: &Path, issuer: &CertifiedIssuer<'static, KeyPair>) -> Mosquitto {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let (key_file, certificate_file) = (dir.join("server.key"), dir.join("server.pem"));
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    std::fs::write(&certificate_file, certificate.pem()).unwrap();
    let (key_file, certificate_file) = (key_file.display(), certificate_file.display());
    Mosquitto::with(&format!(
        "allow_anonymous true\ncertfile {certificate_file}\nkeyfile {key_file}"
    ))
    .await
}

fn tls(url: &str, ca_file: Option<&Path>) -> LinkOptions {
    let mut options = LinkOptions::new(url.parse().unwrap(), "me");
    options.ca_file = ca_file.map(Path::to_owned);
    options.subscriptions = vec!["t".to_owned()];
    options
}

#[tokio::test]
async fn a_broker_is_trusted_by_the_ca_file_and_by_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, right) = authority(dir.path(), "right");
    let (_, wrong) = authority(dir.path(), "wrong");
    let broker = broker(dir.path(), &issuer).await;
    let url = format!("mqtts://localhost:{}", broker.port);

    let (distrustful, mut events) = Link::start(tls(&url, Some(&wrong))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("certificate") && reason.contains(&wrong.display().to_string()),
        "{reason}"
    );
    assert!(!distrustful.is_up());

    let (link, mut events) = Link::start(tls(&url, Some(&right))).unwrap();
    assert_eq!(next(&mut events).await, Event::Up);
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
async fn a_ca_file_that_cannot_be_used_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (_, good) = authority(dir.path(), "good");
    let missing = dir.path().join("missing.pem");
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();

    let start = |url, ca_file| Link::start(tls(url, ca_file)).unwrap_err();
    assert!(matches!(start("mqtts://b", None), LinkError::CaFileMissing));
    assert!(matches!(start("mqtt://b", Some(&good)), LinkError::CaFileUnused));
    for file in [&missing, &empty] {
        let error = start("mqtts://b", Some(file));
        assert!(matches!(&error, LinkError::CaFile { path, .. } if path == file), "{error}");
    }
}

#[tokio::test]
async fn a_refused_login_is_named_without_its_password() {
    let broker = Mosquitto::with("allow_anonymous false").await;
    let url = format!("mqtt://ann:hidden@127.0.0.1:{}", broker.port);
    let (_link, mut events) = Link::start(tls(&url, None)).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("refuses the user or the password") && reason.contains("ann:***@"),
        "{reason}"
    );
    assert!(!reason.contains("hidden"), "{reason}");
}

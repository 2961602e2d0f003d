//! TLS, client certificates and passwords.

use std::path::Path;

use crate::{flush, message, next, next_down, next_message};
use neptune_harness::{Broker, broker::write_passwords, tls::Authority};
use neptune_link::{ClientIdentity, Link, LinkEvent, LinkOptions};

/// A broker with TLS whose certificate for `localhost` this authority signed, with more lines of
/// configuration.
async fn tls_broker(dir: &Path, authority: &Authority, config: &str) -> Broker {
    let (certificate, key) = (dir.join("server.pem"), dir.join("server.key"));
    authority.server_certificate(&certificate, &key);
    let (certificate, key) = (certificate.display(), key.display());
    Broker::with_config(&format!("{config}\ncertfile {certificate}\nkeyfile {key}")).await
}

/// Anonymous clients may do everything.
const OPEN: &str = "allow_anonymous true";

fn tls_options(url: &str, ca_file: Option<&Path>) -> LinkOptions {
    let mut options = LinkOptions::new(url.parse().unwrap(), "me");
    options.ca_file = ca_file.map(Path::to_owned);
    options.subscriptions = vec!["t".to_owned()];
    options
}

#[tokio::test]
async fn only_the_ca_file_makes_a_broker_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("right.pem"));
    let wrong = Authority::new(dir.path().join("wrong.pem")).file().to_owned();
    let right = authority.file().to_owned();
    let broker = tls_broker(dir.path(), &authority, OPEN).await;
    let url = format!("mqtts://localhost:{}", broker.port());

    let (distrustful, mut events) = Link::start(tls_options(&url, Some(&wrong))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("certificate") && reason.contains(&wrong.display().to_string()),
        "{reason}"
    );
    assert!(!distrustful.is_up());

    let (link, mut events) = Link::start(tls_options(&url, Some(&right))).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    link.publish(message("t", "secret")).unwrap();
    assert_eq!(next_message(&mut events).await, message("t", "secret"));
    flush(&link).await;

    // The certificate is not valid for this address.
    let address = format!("mqtts://127.0.0.1:{}", broker.port());
    let (_other, mut events) = Link::start(tls_options(&address, Some(&right))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn unusable_ca_file_is_named_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("good.pem"));
    let broker = tls_broker(dir.path(), &authority, OPEN).await;
    let url = format!("mqtts://localhost:{}", broker.port());
    let ca_file = dir.path().join("ca.pem");

    let (_link, mut events) = Link::start(tls_options(&url, Some(&ca_file))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("CA file") && reason.contains("No such file"), "{reason}");
    std::fs::write(&ca_file, "not a certificate").unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("it contains no PEM certificate"), "{reason}");
    std::fs::copy(authority.file(), &ca_file).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
}

/// Writes `client.pem` and `client.key` for this common name.
fn write_client_certificate(dir: &Path, authority: &Authority, name: &str, last_year: i32) {
    let (certificate, key) = (dir.join("client.pem"), dir.join("client.key"));
    authority.client_certificate(&certificate, &key, name, last_year);
}

#[tokio::test]
async fn renewed_client_certificate_is_used_without_restart() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("ca.pem"));
    // An expired certificate, as on a node that was off for a long time.
    write_client_certificate(dir.path(), &authority, "edge0", 2020);
    let acl = dir.path().join("acl");
    std::fs::write(&acl, "pattern readwrite of/%u/#\n").unwrap();
    let broker = tls_broker(
        dir.path(),
        &authority,
        &format!(
            "cafile {}\nrequire_certificate true\nuse_identity_as_username true\nacl_file {}",
            authority.file().display(),
            acl.display()
        ),
    )
    .await;
    let options = LinkOptions {
        certificate_file: Some(dir.path().join("client.pem")),
        key_file: Some(dir.path().join("client.key")),
        subscriptions: vec!["of/#".to_owned()],
        ..tls_options(&format!("mqtts://localhost:{}", broker.port()), Some(authority.file()))
    };
    let (link, mut events) = Link::start(options).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("client.pem"), "{reason}");
    assert!(reason.contains("xpired"), "{reason}");

    // In the middle of a renewal the key belongs to the other certificate.
    let key = std::fs::read(dir.path().join("client.key")).unwrap();
    write_client_certificate(dir.path(), &authority, "edge0", 2100);
    let renewed = std::fs::read(dir.path().join("client.key")).unwrap();
    std::fs::write(dir.path().join("client.key"), key).unwrap();
    while !next_down(&mut events).await.contains("key file") {}
    std::fs::write(dir.path().join("client.key"), renewed).unwrap();
    while next(&mut events).await != LinkEvent::Up {}

    link.publish(message("of/edge0/x", "mine")).unwrap();
    assert_eq!(next_message(&mut events).await, message("of/edge0/x", "mine"));
}

/// A broker that requires a certificate of this authority; its own is valid until a year.
async fn certificate_broker(dir: &Path, authority: &Authority, year: i32) -> Broker {
    let (certificate, key) = (dir.join("server.pem"), dir.join("server.key"));
    authority.server_certificate_until(&certificate, &key, year);
    let (ca, certificate, key) = (authority.file().display(), certificate.display(), key.display());
    Broker::with_config(&format!(
        "allow_anonymous false\nrequire_certificate true\nuse_identity_as_username true\n\
         cafile {ca}\ncertfile {certificate}\nkeyfile {key}"
    ))
    .await
}

fn identity(dir: &Path) -> ClientIdentity {
    let read = |name| std::fs::read_to_string(dir.join(name)).unwrap();
    ClientIdentity { certificate: read("client.pem"), key: read("client.key").into() }
}

#[tokio::test]
async fn certificates_in_memory_connect_as_those_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("ca.pem"));
    write_client_certificate(dir.path(), &authority, "neptune_cloud", 2100);
    let broker = certificate_broker(dir.path(), &authority, 2100).await;
    let options = LinkOptions {
        ca: Some(std::fs::read_to_string(authority.file()).unwrap()),
        identity: Some(identity(dir.path())),
        ..tls_options(&format!("mqtts://localhost:{}", broker.port()), None)
    };
    let (link, mut events) = Link::start(options).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
    link.publish(message("t", "text")).unwrap();
    assert_eq!(next_message(&mut events).await, message("t", "text"));
}

#[tokio::test]
async fn broker_refuses_no_certificate_and_that_of_another_authority() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("ca.pem"));
    let other = Authority::new(dir.path().join("other.pem"));
    let broker = certificate_broker(dir.path(), &authority, 2100).await;
    let anonymous =
        tls_options(&format!("mqtts://localhost:{}", broker.port()), Some(authority.file()));
    let (_link, mut events) = Link::start(anonymous.clone()).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("certificate") && reason.contains("none"), "{reason}");

    write_client_certificate(dir.path(), &other, "edge0", 2100);
    let foreign = LinkOptions { identity: Some(identity(dir.path())), ..anonymous };
    let (_link, mut events) = Link::start(foreign).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("alert") && reason.contains("in memory"), "{reason}");
}

#[tokio::test]
async fn expired_broker_is_trusted_with_a_client_certificate_only() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path().join("ca.pem"));
    write_client_certificate(dir.path(), &authority, "edge0", 2100);
    let broker = certificate_broker(dir.path(), &authority, 2020).await;
    let url = format!("mqtts://localhost:{}", broker.port());
    let with = |ca: &Path| LinkOptions {
        certificate_file: Some(dir.path().join("client.pem")),
        key_file: Some(dir.path().join("client.key")),
        ..tls_options(&url, Some(ca))
    };
    let (_link, mut events) = Link::start(with(authority.file())).unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);

    let (_link, mut events) = Link::start(tls_options(&url, Some(authority.file()))).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("xpired"), "{reason}");

    // The authority is compared as before.
    let other = Authority::new(dir.path().join("other.pem"));
    let (_link, mut events) = Link::start(with(other.file())).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("other.pem"), "{reason}");
}

#[tokio::test]
async fn password_file_is_read_again_for_each_connection() {
    let dir = tempfile::tempdir().unwrap();
    let passwords = dir.path().join("passwords");
    write_passwords(&passwords, &[("ann", "right")]);
    let broker = Broker::with_config(&format!("password_file {}", passwords.display())).await;
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, "wrong\n").unwrap();
    let mut options = tls_options(&format!("mqtt://ann@127.0.0.1:{}", broker.port()), None);
    options.password_file = Some(password_file.clone());
    let (_link, mut events) = Link::start(options).unwrap();
    let reason = next_down(&mut events).await;
    assert!(reason.contains("refused the user or the password"), "{reason}");
    std::fs::write(&password_file, "right\n").unwrap();
    assert_eq!(next(&mut events).await, LinkEvent::Up);
}

#[tokio::test]
async fn refused_login_is_reported_without_the_password() {
    let broker = Broker::with_config("allow_anonymous false").await;
    let url = format!("mqtt://ann:hidden@127.0.0.1:{}", broker.port());
    let (_link, mut events) = Link::start(tls_options(&url, None)).unwrap();
    let reason = next_down(&mut events).await;
    assert!(
        reason.contains("refused the user or the password") && reason.contains("ann:***@"),
        "{reason}"
    );
    assert!(!reason.contains("hidden"), "{reason}");
}

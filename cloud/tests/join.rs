//! Nodes join with a token: enrolled by an operator, served by the join server, recorded by the
//! controller, revoked, and replaced.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use std::collections::BTreeSet;

use harness::{
    Harness,
    joins::{join, join_request, post},
};
use neptune_api::EdgeNode;
use neptune_harness::eventually_async;
use neptune_join::RefusalReason;
use neptune_pinned_tls::{Authority, TlsKey, certificate_pin};

const CA: [&str; 2] = ["--ca-secret", "neptune-ca"];

async fn start() -> Harness {
    let mut harness = Harness::without_controller().await;
    harness.join_objects(None).await;
    harness.start_controller_with(&CA);
    harness.until_joins_are_ready().await;
    harness
}

async fn authority(harness: &Harness) -> Authority {
    let data = harness.secrets().get("neptune-ca").await.unwrap().data.unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    Authority::from_pem(&text("tls.crt"), &text("tls.key"), "a test").unwrap()
}

/// Waits until the list of the broker has exactly these serial numbers.
async fn until_revoked(harness: &Harness, authority: &Authority, serials: &[String]) {
    let serials: BTreeSet<_> = serials.iter().map(|serial| serial.parse().unwrap()).collect();
    eventually_async("the list of revoked certificates", async || {
        authority.revoked_serials(&harness.broker_file("crl.pem").await).as_ref() == Some(&serials)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_joins_once_is_revoked_and_joins_again_with_another_key() {
    let harness = start().await;
    let authority = authority(&harness).await;
    let (server, port) = harness.start_join_server(&[]).await;
    let token = harness.enroll("shop-7", &["--label", "site=west"]).await.unwrap();
    assert_eq!(token.authority, authority.pin());

    let key = TlsKey::generate();
    let answer = join(port, &token, &key).await.unwrap();
    assert_eq!(certificate_pin(&answer.certificate).as_ref(), Some(key.pin()));
    assert_eq!(answer.broker_url, "mqtts://broker.test:30885");
    assert_eq!((answer.ca.as_str(), answer.warnings.len()), (authority.certificate(), 0));
    let is_recorded = |it: &EdgeNode| it.spec.trusted_key.as_ref() == Some(&key.pin().0);
    let object = harness.until_edge_node("shop-7", "the key", is_recorded).await;
    assert_eq!(object.metadata.labels.unwrap()["site"], "west");
    assert!(!object.spec.requires_node);

    // The answer was lost: the same command again.
    assert!(join(port, &token, &key).await.is_ok());
    let refusal = join(port, &token, &TlsKey::generate()).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::TokenUsed);
    assert!(refusal.message.contains(key.pin().short()), "{}", refusal.message);
    let object = harness.edge_nodes().get("shop-7").await.unwrap();
    assert_eq!(object.spec.certificate_serials.len(), 1);
    until_revoked(&harness, &authority, &[]).await;

    assert!(harness.command(&["revoke", "shop-7"]).await.status.success());
    until_revoked(&harness, &authority, &object.spec.certificate_serials).await;
    let refusal = join(port, &token, &key).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::NodeRevoked);
    let error = harness.enroll("shop-7", &[]).await.unwrap_err();
    assert!(error.contains("is revoked") && error.contains("--replace"), "{error}");

    let token = harness.enroll("shop-7", &["--replace"]).await.unwrap();
    let other = TlsKey::generate();
    join(port, &token, &other).await.unwrap();
    let is_replaced = |it: &EdgeNode| it.spec.trusted_key.as_ref() == Some(&other.pin().0);
    let replaced = harness.until_edge_node("shop-7", "the other key", is_replaced).await;
    assert!(!replaced.spec.revoked && replaced.spec.certificate_serials.len() == 2);
    until_revoked(&harness, &authority, &object.spec.certificate_serials).await;

    let secret = token.to_text().split(':').nth(3).unwrap().to_owned();
    assert!(!server.log().contains(&secret) && !harness.log().contains(&secret));
    assert!(!format!("{:?}", harness.tokens().await).contains(&secret));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_joins_at_once_with_one_token_one_gets_a_certificate() {
    let harness = start().await;
    let (_server, port) = harness.start_join_server(&[]).await;
    let token = harness.enroll("shop-7", &[]).await.unwrap();
    let keys = [(); 6].map(|()| TlsKey::generate());
    let joins = keys.iter().map(|key| join(port, &token, key));
    let answers = futures::future::join_all(joins).await;
    let (joined, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(joined.len(), 1, "{refused:?}");
    let reasons: BTreeSet<_> =
        refused.into_iter().map(|it| it.unwrap_err().reason.to_string()).collect();
    // A request whose writes always came late is refused temporarily.
    let allowed = ["TokenUsed", "NotReady", "NodeKeyKnown"].map(str::to_owned).into();
    assert!(reasons.is_subset(&allowed), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_join_at_once_all_get_a_certificate() {
    let harness = start().await;
    let (_server, port) = harness.start_join_server(&[]).await;
    let mut nodes = Vec::new();
    for number in 0..30 {
        let token = harness.enroll(&format!("shop-{number}"), &[]).await.unwrap();
        nodes.push((token, TlsKey::generate()));
    }
    let joins = nodes.iter().map(|(token, key)| join(port, token, key));
    for answer in futures::future::join_all(joins).await {
        answer.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_name_their_reason_and_close_the_token_at_the_fifth() {
    let harness = start().await;
    let (_server, port) = harness.start_join_server(&["--broker-url", "mqtts://b:1"]).await;
    let token = harness.enroll("shop-7", &[]).await.unwrap();
    let key = TlsKey::generate();
    let reason = async |body: &[u8]| post(port, &token, body).await.unwrap_err().reason;
    assert_eq!(reason(b"{}").await, RefusalReason::RequestInvalid);
    assert_eq!(reason(&vec![b' '; 20 * 1024]).await, RefusalReason::RequestInvalid);

    let mut foreign = token.clone();
    foreign.node = "shop-8".parse().unwrap();
    let refusal = join(port, &foreign, &key).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::RequestInvalid);
    assert!(refusal.message.contains("shop-7"), "{}", refusal.message);

    let mut wrong = join_request(&token, &key);
    wrong.secret = "abcdefghijklmnopqrstuvwxya".parse().unwrap();
    let wrong = serde_json::to_vec(&wrong).unwrap();
    for _ in 0..5 {
        assert_eq!(reason(&wrong).await, RefusalReason::TokenRefused);
    }
    let right = join(port, &token, &key).await.unwrap_err();
    assert_eq!(right.reason, RefusalReason::TokenRefused);
    eventually_async("the token to be removed", async || harness.tokens().await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_names_gives_a_table_of_tokens() {
    let harness = start().await;
    let directory = tempfile::tempdir().unwrap();
    let names = directory.path().join("names.txt");
    std::fs::write(&names, "# boxes\nbox-1\nbox-2\n").unwrap();
    let file = names.to_str().unwrap();
    let url = ["--url", "https://join.test"];
    let args = [&["enroll", "-f", file, "--ttl", "90d", "-o", "csv"], &url[..]].concat();
    let output = harness.command(&args).await;
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.lines().count(), 3, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("\nbox-2,https://join.test,npt1:box-2:"), "{table}");
    assert_eq!(harness.tokens().await.len(), 2);

    std::fs::write(&names, "box-1\nBox 2\n").unwrap();
    let output = harness.command(&args).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("line 2"), "{error}");
    assert_eq!(harness.tokens().await.len(), 2, "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_gets_a_certificate_of_the_authority() {
    let harness = start().await;
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let args = ["observer-certificate", "--days", "7", "--directory", at];
    let output = harness.command(&args).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |file: &str| std::fs::read_to_string(directory.path().join(file)).unwrap();
    let pin = authority(&harness).await.pin();
    assert_eq!(certificate_pin(&read("ca.crt")), Some(pin));
    let key = TlsKey::from_pem(&read("neptune_observer.key"), "a test").unwrap();
    let certificate = read("neptune_observer.crt");
    assert_eq!(certificate_pin(&certificate).as_ref(), Some(key.pin()));
}

//! Fetches from a server that verifies S3 signatures.

use std::collections::BTreeMap;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use neptune_store::{Digest, ModelErrorClass, S3Config, S3Credentials, StorePolicy};
use sha2::Sha256;

use crate::{
    fixture::{StoreFixture, noise, policy},
    server::{Reply, Request, Server, ranged},
};

const KEY_ID: &str = "AKIDTEST";
const SECRET: &str = "wJalr/secret+key";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Verifies the signature of a request. The error is the error code of S3.
fn check(request: &Request) -> Result<(), &'static str> {
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    let authorization = header("authorization").ok_or("AccessDenied")?;
    let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("InvalidArgument")?;
    let fields: BTreeMap<&str, &str> =
        rest.split(',').filter_map(|field| field.trim().split_once('=')).collect();
    let scope: Vec<&str> = fields["Credential"].split('/').collect();
    let [id, date, region, "s3", "aws4_request"] = scope[..] else { return Err("InvalidArgument") };
    if id != KEY_ID {
        return Err("InvalidAccessKeyId");
    }
    let time = header("x-amz-date").ok_or("AccessDenied")?;
    let at = DateTime::strptime("%Y%m%dT%H%M%SZ", time).map_err(|_| "AccessDenied")?;
    let at = at.to_zoned(TimeZone::UTC).unwrap().timestamp();
    if (Timestamp::now().as_second() - at.as_second()).abs() > 900 || !time.starts_with(date) {
        return Err("RequestTimeTooSkewed");
    }
    if header("x-amz-content-sha256") != Some(EMPTY) {
        return Err("XAmzContentSHA256Mismatch");
    }
    let signed: Vec<&str> = fields["SignedHeaders"].split(';').collect();
    let must = request.headers.keys().filter(|name| name.starts_with("x-amz-") || *name == "host");
    if !signed.is_sorted() || must.into_iter().any(|name| !signed.contains(&name.as_str())) {
        return Err("AccessDenied");
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let mut lines = vec!["GET".to_owned(), path.to_owned(), query.to_owned()];
    for name in &signed {
        lines.push(format!("{name}:{}", header(name).ok_or("AccessDenied")?));
    }
    lines.extend([String::new(), fields["SignedHeaders"].to_owned(), EMPTY.to_owned()]);
    let canonical = lines.join("\n");
    let text = format!(
        "AWS4-HMAC-SHA256\n{time}\n{date}/{region}/s3/aws4_request\n{}",
        Digest::of_bytes(canonical.as_bytes())
    );
    let day = mac(format!("AWS4{SECRET}").as_bytes(), date);
    let key = mac(&mac(&mac(&day, region), "s3"), "aws4_request");
    let expected: Vec<String> = mac(&key, &text).iter().map(|byte| format!("{byte:02x}")).collect();
    if fields["Signature"] == expected.concat() { Ok(()) } else { Err("SignatureDoesNotMatch") }
}

fn denied(code: &str) -> Reply {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    Reply { status: 403, body: body.into(), ..Reply::default() }
}

fn fixture(endpoint: &str, secret: &str, session_token: Option<String>) -> StoreFixture {
    let credentials = S3Credentials { key_id: KEY_ID.into(), secret: secret.into(), session_token };
    let s3 = S3Config {
        endpoint: Some(endpoint.parse().unwrap()),
        region: "eu-central-1".into(),
        credentials: Some(credentials),
    };
    StoreFixture::with(StorePolicy { s3, ..policy() })
}

#[tokio::test]
async fn signed_object_is_fetched_and_resumed_by_etag() {
    let (one, two) = (Bytes::from(noise(200_000, 20)), Bytes::from(noise(200_000, 21)));
    let (first, second) = (one.clone(), two.clone());
    let server = Server::start(move |request| {
        if let Err(code) = check(request) {
            return denied(code);
        }
        match (request.path.as_str(), request.number) {
            ("/models/same/a%20b%2B1.bin", 1) => ranged(request, &first, "\"1\""),
            ("/models/same/a%20b%2B1.bin", 0) | ("/models/other.bin", 2) => {
                ranged(request, &first, "\"1\"").cut(50_000)
            }
            ("/models/other.bin", _) => ranged(request, &second, "\"2\""),
            _ => Reply {
                status: 404,
                body: "<Error><Code>NoSuchKey</Code></Error>".into(),
                ..Reply::default()
            },
        }
    })
    .await;
    let fixture = fixture(&server.url, SECRET, Some("session/token==".into()));
    let artifact = fixture.fetch("s3://models/same/a b+1.bin", None).await.unwrap();
    assert_eq!(artifact.digest, Digest::of_bytes(&one));
    assert_eq!(server.spans()[..2], [(0, 50_000), (50_000, 150_000)]);
    let artifact = fixture.fetch("s3://models/other.bin", None).await.unwrap();
    assert_eq!(artifact.digest, Digest::of_bytes(&two), "a changed object is downloaded again");
    let error = fixture.fetch("s3://models/none", None).await.unwrap_err();
    assert!(error.to_string().contains("404 (NoSuchKey)"), "{error}");
}

#[tokio::test]
async fn wrong_key_and_redirect_of_signed_request_fail() {
    let server = Server::start(|request| match check(request) {
        Err(code) => denied(code),
        Ok(()) => Reply::status(307).with("location", "http://127.0.0.1:1/"),
    })
    .await;
    let error = fixture(&server.url, "wrong", None).fetch("s3://models/m", None).await.unwrap_err();
    assert!(error.to_string().contains("403 (SignatureDoesNotMatch)"), "{error}");
    assert_eq!(error.class(), ModelErrorClass::Permanent);
    let error = fixture(&server.url, SECRET, None).fetch("s3://models/m", None).await.unwrap_err();
    assert!(
        error.to_string().contains("307") && error.class() == ModelErrorClass::Permanent,
        "{error}"
    );
    assert_eq!(server.requests(), 2, "the redirect is not followed");
}

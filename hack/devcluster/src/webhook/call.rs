//! Calls one webhook over HTTPS and trusts only the authorities of its `caBundle`. Uses the
//! network.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use reqwest::{Client, redirect::Policy};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use serde::Deserialize as _;
use serde_json::Value;

/// Sends a review and returns the response body.
///
/// # Errors
/// The failure, with the API server's text where the API server detects it.
pub async fn send(webhook: &Value, review: &Value) -> Result<Value, String> {
    let config = &webhook["clientConfig"];
    let Some(url) = config["url"].as_str() else {
        // devcluster runs no pods, so a service has no endpoints.
        let name = config["service"]["name"].as_str().unwrap_or_default();
        return Err(format!("failed to call webhook: no endpoints available for service {name:?}"));
    };
    let client = client(&config["caBundle"])?;
    let seconds = webhook["timeoutSeconds"].as_u64().unwrap_or(10);
    let url = format!("{url}?timeout={seconds}s");
    let failed = |why: &str| format!("failed to call webhook: Post {url:?}: {why}");
    let response = async {
        let sent = client.post(&url).json(review).send().await;
        let response = sent.map_err(|error| failed(&root(&error)))?;
        let status = response.status();
        let body = response.text().await.map_err(|error| failed(&root(&error)))?;
        if !status.is_success() {
            return Err(format!("failed to call webhook: the server answered {status}: {body}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("failed to call webhook: {error}"))
    };
    tokio::time::timeout(Duration::from_secs(seconds), response)
        .await
        .unwrap_or_else(|_| Err(failed("context deadline exceeded")))
}

/// A new client per call: no connection survives a change of the authorities.
fn client(ca_bundle: &Value) -> Result<Client, String> {
    let mut roots = RootCertStore::empty();
    let unusable = |why: String| format!("unable to load root certificates: {why}");
    let pem: ByteString = match ca_bundle {
        Value::Null => ByteString::default(),
        text => ByteString::deserialize(text).map_err(|error| unusable(error.to_string()))?,
    };
    for certificate in CertificateDer::pem_slice_iter(&pem.0) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client =
        Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none()).no_proxy();
    client.build().map_err(|error| root(&error))
}

/// The innermost cause: the outer causes repeat the address.
fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

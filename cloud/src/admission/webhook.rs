//! Assembles the webhook from the controller's flags.

use std::sync::Arc;

use axum::http::Uri;
use tokio::net::TcpSocket;

use crate::{
    admission::{
        certificate_store::{CertificateSettings, maintain},
        reviewer::Reviewer,
        server::{bind, serve},
        serving_certificate::ServingCertificate,
    },
    cli::{MissingReferences, Run},
    controllers::runtime::Context,
    error::Error,
};

/// A webhook that does not answer yet; `None` if it is disabled.
pub struct Webhook(Option<WebhookParts>);

struct WebhookParts {
    socket: TcpSocket,
    serving_certificate: Arc<ServingCertificate>,
    /// Set if this program issues the certificate itself.
    issued: Option<CertificateSettings>,
    references: MissingReferences,
}

impl Webhook {
    /// Binds the address and reads the certificate files.
    ///
    /// # Errors
    /// A flag is invalid, the address cannot be bound, or the certificate files cannot be used.
    pub fn prepare(flags: &Run) -> Result<Self, Error> {
        let Some(address) = flags.webhook_listen else { return Ok(Self(None)) };
        let (serving_certificate, issued) = if let Some(directory) = &flags.webhook_cert_dir {
            (ServingCertificate::from_files(directory)?, None)
        } else {
            let url = flags.webhook_url.as_deref().map(url).transpose()?;
            let issued = CertificateSettings {
                url,
                configuration: flags.webhook_configuration.clone(),
                namespace: flags.namespace.clone(),
                lifetime: flags.webhook_certificate_lifetime,
            };
            (ServingCertificate::default(), Some(issued))
        };
        let socket = bind(address)?;
        let references = flags.missing_references;
        Ok(Self(Some(WebhookParts {
            socket,
            serving_certificate: Arc::new(serving_certificate),
            issued,
            references,
        })))
    }

    /// Answers reviews indefinitely. The context's caches must be complete.
    pub async fn run(self, context: Context) {
        let Some(WebhookParts { socket, serving_certificate, issued, references }) = self.0 else {
            return std::future::pending().await;
        };
        let (client, metrics) = (context.client().clone(), context.metrics().clone());
        let maintenance = async {
            match issued {
                Some(settings) => {
                    maintain(client, settings, Arc::clone(&serving_certificate), metrics).await;
                }
                None => serving_certificate.follow_files().await,
            }
        };
        let refusals = context.metrics().refusals().clone();
        let reviewer = Reviewer::new(context, references);
        let serving = serve(socket, Arc::clone(&serving_certificate), reviewer, refusals);
        futures::join!(maintenance, serving);
    }
}

/// The webhook's URL with its path, and its host.
fn url(text: &str) -> Result<(String, String), Error> {
    let error = |why| Error::WebhookUrl { url: text.to_owned(), why };
    let uri: Uri = text.parse().map_err(|_| error("not a URL; write https://host:port"))?;
    if uri.scheme_str() != Some("https") {
        return Err(error("the scheme must be https; API servers call webhooks only over HTTPS"));
    }
    if uri.query().is_some() || uri.authority().is_some_and(|host| host.as_str().contains('@')) {
        return Err(error("remove the user and the query; API servers do not support them"));
    }
    let host = uri
        .host()
        .filter(|host| !host.is_empty())
        .ok_or_else(|| error("the host is missing; write https://host:port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let path = if uri.path() == "/" { "/validate" } else { "" };
    Ok((format!("{}{path}", text.trim_end_matches('/')), host))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn webhook_url_has_a_host_and_a_path() {
        for (text, address, host) in [
            ("https://127.0.0.1:9443", "https://127.0.0.1:9443/validate", "127.0.0.1"),
            ("https://127.0.0.1:9443/", "https://127.0.0.1:9443/validate", "127.0.0.1"),
            ("https://h.example/a/validate", "https://h.example/a/validate", "h.example"),
            ("https://[::1]:9443/validate", "https://[::1]:9443/validate", "::1"),
        ] {
            assert_eq!(url(text).unwrap(), (address.to_owned(), host.to_owned()), "{text}");
        }
        for text in ["http://h/", "h:9443", "https://", "https://u@h/", "https://h/?a", "no url"] {
            let error = url(text).unwrap_err().to_string();
            assert!(error.starts_with("--webhook-url \""), "{error}");
        }
    }
}

//! Assembles the webhook from its settings.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use axum::http::Uri;
use jiff::SignedDuration;
use tokio::net::TcpSocket;

use crate::{
    admission::{
        certificate_store::{CertificateSettings, maintain},
        decision::MissingReferences,
        reviewer::Reviewer,
        server::{bind, serve},
        serving_certificate::ServingCertificate,
    },
    controllers::runtime::Context,
    error::Error,
};

/// What the flags of the controller set of the webhook.
#[derive(Debug)]
pub struct WebhookSettings {
    /// The address of the webhook; `None` disables it.
    pub listen: Option<SocketAddr>,
    /// The name of the `ValidatingWebhookConfiguration`.
    pub configuration: String,
    /// The URL at which the API server reaches the address, for a controller outside the cluster.
    pub url: Option<String>,
    /// The directory with a certificate that another program renews.
    pub certificate_directory: Option<PathBuf>,
    /// The validity of a certificate that this program creates.
    pub certificate_lifetime: SignedDuration,
    /// The namespace of the controller.
    pub namespace: String,
    /// What to do about references to objects that do not exist.
    pub missing_references: MissingReferences,
}

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
    pub fn prepare(settings: WebhookSettings) -> Result<Self, Error> {
        let Some(address) = settings.listen else { return Ok(Self(None)) };
        let (serving_certificate, issued) = if let Some(directory) = &settings.certificate_directory
        {
            (ServingCertificate::from_files(directory)?, None)
        } else {
            let url = settings.url.as_deref().map(url).transpose()?;
            let issued = CertificateSettings {
                url,
                configuration: settings.configuration,
                namespace: settings.namespace,
                lifetime: settings.certificate_lifetime,
            };
            (ServingCertificate::default(), Some(issued))
        };
        let socket = bind(address)?;
        let references = settings.missing_references;
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

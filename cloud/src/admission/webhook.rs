//! Puts the webhook of a controller together from its flags.

use std::sync::Arc;

use axum::http::Uri;
use tokio::net::TcpSocket;

use crate::{
    admission::{
        certificate_store::{Settings, maintain},
        reviewer::Reviewer,
        server::{bind, serve},
        serving_certificate::ServingCertificate,
    },
    cli::{MissingReferences, Run},
    controllers::runtime::Context,
    error::Error,
};

/// A webhook that does not answer yet, or none.
pub struct Webhook(Option<Parts>);

struct Parts {
    socket: TcpSocket,
    serving_certificate: Arc<ServingCertificate>,
    /// The certificate is our own, and so kept.
    own: Option<Settings>,
    references: MissingReferences,
}

impl Webhook {
    /// Takes the address and reads what can be read.
    ///
    /// # Errors
    /// What is wrong with the flags.
    pub fn prepare(flags: &Run) -> Result<Self, Error> {
        let Some(address) = flags.webhook_listen else { return Ok(Self(None)) };
        let (serving_certificate, own) = if let Some(directory) = &flags.webhook_cert_dir {
            (ServingCertificate::from_files(directory)?, None)
        } else {
            let url = flags.webhook_url.as_deref().map(url).transpose()?;
            let own = Settings {
                url,
                configuration: flags.webhook_configuration.clone(),
                namespace: flags.namespace.clone(),
                lifetime: flags.webhook_certificate_lifetime,
            };
            (ServingCertificate::default(), Some(own))
        };
        let socket = bind(address)?;
        let references = flags.missing_references;
        Ok(Self(Some(Parts {
            socket,
            serving_certificate: Arc::new(serving_certificate),
            own,
            references,
        })))
    }

    /// Answers until the program ends. The context's copies are whole by now.
    pub async fn run(self, context: Context) {
        let Some(Parts { socket, serving_certificate, own, references }) = self.0 else {
            return std::future::pending().await;
        };
        let (client, metrics) = (context.client().clone(), context.metrics().clone());
        let maintenance = async {
            match own {
                Some(settings) => {
                    maintain(client, settings, Arc::clone(&serving_certificate), metrics).await;
                }
                None => std::future::pending().await,
            }
        };
        let reviewer = Reviewer::new(context, references);
        futures::join!(maintenance, serve(socket, Arc::clone(&serving_certificate), reviewer));
    }
}

/// An address with its path, and its host.
fn url(text: &str) -> Result<(String, String), Error> {
    let error = |why| Error::WebhookUrl { url: text.to_owned(), why };
    let uri: Uri = text.parse().map_err(|_| error("it is no URL"))?;
    if uri.scheme_str() != Some("https") {
        return Err(error("it must begin with https://, since API servers ask in no other way"));
    }
    if uri.query().is_some() || uri.authority().is_some_and(|host| host.as_str().contains('@')) {
        return Err(error("it must have neither a user nor a query"));
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| error("it has no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let path = if uri.path() == "/" { "/validate" } else { "" };
    Ok((format!("{}{path}", text.trim_end_matches('/')), host))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_address_has_a_host_and_a_path() {
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

//! The key by which aggregators recognize the controller. All replicas share it: it is in a Secret in
//! the controller's namespace.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use neptune_cloud_kinds::{error_class::Class, finding::Finding, reason::Reason};
use neptune_pinned_tls::TlsKey;
use tokio::sync::OnceCell;

use crate::error::Error;

/// The Secret. The manifest creates it, empty; the controller may read and update it, and no other.
const SECRET: &str = "neptune-controller-key";

/// The key of the private key in the data of the Secret.
const KEY: &str = "tls.key";

/// The key of the controller, which is read at its first use.
#[derive(Debug)]
pub struct ControllerKey {
    namespace: String,
    key: OnceCell<TlsKey>,
}

impl ControllerKey {
    /// The key in the Secret of this namespace.
    pub fn new(namespace: String) -> Self {
        Self { namespace, key: OnceCell::new() }
    }

    /// The key. Makes it if the Secret has none.
    ///
    /// # Errors
    /// The API server rejects a request, another replica wrote the Secret at the same time, or the
    /// Secret has no usable key.
    pub async fn get(&self, client: &Client) -> Result<&TlsKey, Finding> {
        self.key.get_or_try_init(|| self.load(client)).await
    }

    async fn load(&self, client: &Client) -> Result<TlsKey, Finding> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let name = format!("Secret {}/{SECRET}", self.namespace);
        let failed = |verb: &str| {
            let step = format!("{verb} {name}");
            move |error| self.finding(&Error::api(step)(error))
        };
        let held = secrets.get_opt(SECRET).await.map_err(failed("get"))?;
        let pem = held.as_ref().and_then(|held| held.data.as_ref()?.get(KEY)).cloned();
        if let Some(ByteString(pem)) = pem {
            let pem = String::from_utf8_lossy(&pem);
            return TlsKey::from_pem(&pem, &name).map_err(|error| {
                let command = format!("kubectl -n {} patch secret {SECRET}", self.namespace);
                let message = format!("{error}: {command} -p '{{\"data\": null}}'");
                Finding::new(Reason::AggregatorRefused, message)
            });
        }
        let key = TlsKey::generate();
        let data = Some(BTreeMap::from([(KEY.to_owned(), ByteString(key.to_pem().into()))]));
        let params = PostParams::default();
        // The version that was read: of two replicas, one fails and reads the key of the other.
        if let Some(held) = held {
            let secret = Secret { data, ..held };
            secrets.replace(SECRET, &params, &secret).await.map_err(failed("update"))?;
        } else {
            let metadata = ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, data, ..Secret::default() };
            secrets.create(&params, &secret).await.map_err(failed("create"))?;
        }
        tracing::info!(secret = name, pin = key.pin().0, "key of the controller created");
        Ok(key)
    }

    fn finding(&self, error: &Error) -> Finding {
        if error.class() == Class::Refused {
            let message = format!(
                "{error}; apply build/deploy, or kubectl -n {} create secret generic {SECRET}",
                self.namespace
            );
            return Finding::new(Reason::AggregatorRefused, message);
        }
        Finding::new(Reason::WaitingForAggregator, format!("{error}; retrying"))
    }
}

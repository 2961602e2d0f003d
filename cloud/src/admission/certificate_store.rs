//! Keeps the webhook's own certificate: in a Secret that the replicas share, or in memory where the
//! controller is alone outside of the cluster; and sees to it that the API server trusts it. What is to be
//! done, and when, is `rotation`'s.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration as Configuration,
        core::v1::Secret,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};

use crate::{
    admission::{
        certificate::issue,
        configuration::{full_configuration, hosts, is_up_to_date, trust, trusts},
        rotation::{Held, Plan, Step, plan},
        serving_certificate::{ServingCertificate, certified_key},
    },
    controllers::runtime::FIELD_MANAGER,
    error::{Class, Error},
    metrics::Metrics,
};

/// The Secret that replicas share. The manifest makes it, empty; we may only change it.
const SECRET: &str = "neptune-webhook";

/// Its key.
const KEY: &str = "certificates.json";

/// After a failure, doubled for each one after it.
const RETRY: Duration = Duration::from_secs(2);

/// The longest sleep: a clock that was set is noticed.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// What is kept, and where.
pub struct Settings {
    /// The address that the API server is given, with its host; without it, a configuration that is
    /// there names a Service.
    pub url: Option<(String, String)>,
    /// The name of the `ValidatingWebhookConfiguration`.
    pub configuration: String,
    /// Where the Secret is.
    pub namespace: String,
    /// How long a certificate is valid.
    pub lifetime: SignedDuration,
}

/// An object as the watch, or a write of ours, brought it last.
enum Watched<K> {
    NotSynced,
    Absent,
    Present(Box<K>),
}

impl<K> Watched<K> {
    fn present(&self) -> Option<&K> {
        match self {
            Self::Present(object) => Some(object),
            Self::NotSynced | Self::Absent => None,
        }
    }
}

impl<K> From<Option<K>> for Watched<K> {
    fn from(object: Option<K>) -> Self {
        object.map_or(Self::Absent, |object| Self::Present(Box::new(object)))
    }
}

struct CertificateStore {
    settings: Settings,
    configurations: Api<Configuration>,
    secrets: Api<Secret>,
    serving_certificate: Arc<ServingCertificate>,
    metrics: Metrics,
    /// The certificate that is shown.
    presented: String,
    configuration: Watched<Configuration>,
    secret: Watched<Secret>,
    /// What there is without a Secret.
    memory: Held,
}

/// Keeps it until the program ends.
pub async fn maintain(
    client: Client,
    settings: Settings,
    serving_certificate: Arc<ServingCertificate>,
    metrics: Metrics,
) {
    let configurations: Api<Configuration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client, &settings.namespace);
    let in_memory = settings.url.is_some();
    let mut configuration = pin!(follow(configurations.clone(), &settings.configuration));
    let mut secret = pin!(if in_memory {
        stream::pending().boxed()
    } else {
        follow(secrets.clone(), SECRET).boxed()
    });
    let mut store = CertificateStore {
        settings,
        configurations,
        secrets,
        serving_certificate,
        metrics,
        presented: String::new(),
        configuration: Watched::NotSynced,
        secret: if in_memory { Watched::Absent } else { Watched::NotSynced },
        memory: Held::default(),
    };
    let mut sleep = LONGEST_SLEEP;
    let mut failures = 0;
    loop {
        tokio::select! {
            Some(watched) = configuration.next() => store.configuration = watched.into(),
            Some(watched) = secret.next() => store.secret = watched.into(),
            () = tokio::time::sleep(sleep) => {}
        }
        match store.reconcile(Timestamp::now()).await {
            Ok(wake_at) => {
                failures = 0;
                let until = Timestamp::now().duration_until(wake_at).max(SignedDuration::ZERO);
                sleep = until.unsigned_abs().min(LONGEST_SLEEP);
            }
            Err(error) => {
                sleep = RETRY * 2_u32.pow(failures);
                failures = (failures + 1).min(7);
                // Of a conflict nobody has to hear: another replica wrote, and its write is on its way.
                if error.class() != Class::Conflict {
                    tracing::warn!(%error, "the webhook's certificate cannot be kept; trying again");
                }
            }
        }
    }
}

fn follow<K>(api: Api<K>, name: &str) -> impl Stream<Item = Option<K>> + Send + use<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher::watch_object(api, name).default_backoff().filter_map(|watched| {
        let watched =
            watched.inspect_err(|error| tracing::debug!(%error, "a watch of the webhook's"));
        std::future::ready(watched.ok())
    })
}

impl CertificateStore {
    /// Does what is due, and returns when to look again though nothing changes.
    async fn reconcile(&mut self, now: Timestamp) -> Result<Timestamp, Error> {
        if matches!(
            (&self.configuration, &self.secret),
            (Watched::NotSynced, _) | (_, Watched::NotSynced)
        ) {
            return Ok(Timestamp::MAX);
        }
        let configuration = self.configuration.present();
        let names = match (&self.settings.url, configuration) {
            (Some((_, host)), _) => vec![host.clone()],
            (None, Some(configuration)) => hosts(configuration),
            (None, None) => Vec::new(),
        };
        if names.is_empty() {
            tracing::warn!(
                configuration = self.settings.configuration,
                "no ValidatingWebhookConfiguration of that name names a Service; apply build/deploy, or give --webhook-url"
            );
            return Ok(Timestamp::MAX);
        }
        let held = self.held();
        let trusted = configuration.is_some_and(|configuration| {
            held.next.as_ref().is_some_and(|next| trusts(configuration, &next.authority))
        });
        let Plan { step, wake_at } = plan(&held, &names, trusted, now);
        let mut held = held;
        if step != Step::Wait {
            let made = || issue(&names, self.settings.lifetime, now);
            held = held
                .after(step, made)
                .map_err(|source| Error::Issue { names: names.join(", "), source })?;
            self.save(&held).await?;
            tracing::info!(?step, current = ?held.current, next = ?held.next, "the webhook's certificates");
        }
        self.present_certificate(&held);
        self.update_trust(&held).await?;
        // After a step there is another moment to wait for.
        Ok(if step == Step::Wait { wake_at } else { now })
    }

    /// What there is. Of what cannot be shown, nothing.
    fn held(&self) -> Held {
        let Some(secret) = self.secret.present() else { return self.memory.clone() };
        let data = secret.data.as_ref().and_then(|data| data.get(KEY));
        let held: Option<Held> = data.and_then(|data| serde_json::from_slice(&data.0).ok());
        let mut held = held.unwrap_or_default();
        for one in [&mut held.current, &mut held.next] {
            one.take_if(|one| {
                certified_key(one.certificate.as_bytes(), one.key.as_bytes()).is_err()
            });
        }
        held
    }

    /// Over the very version that was looked at: of two replicas, one looks again.
    async fn save(&mut self, held: &Held) -> Result<(), Error> {
        if self.settings.url.is_some() {
            self.memory = held.clone();
            return Ok(());
        }
        let step =
            format!("write Secret {}/{SECRET}, which build/deploy makes", self.settings.namespace);
        let mut secret = self.secret.present().cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            ..Secret::default()
        });
        let json = serde_json::to_vec(held).expect("certificates are JSON");
        secret.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(json));
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.secrets.replace(SECRET, &params, &secret).await;
        self.secret = Some(written.map_err(Error::api(step))?).into();
        Ok(())
    }

    fn present_certificate(&mut self, held: &Held) {
        let Some(current) = &held.current else { return };
        if current.certificate != self.presented
            && self.serving_certificate.set(&current.certificate, &current.key).is_ok()
        {
            self.presented.clone_from(&current.certificate);
            self.metrics.set_certificate_expiry(current.expires);
            tracing::info!(names = ?current.names, expires = %current.expires, "the webhook shows its certificate");
        }
    }

    /// Makes the API server trust what is shown, and what will be.
    async fn update_trust(&mut self, held: &Held) -> Result<(), Error> {
        let name = &self.settings.configuration;
        let bundle = held.bundle();
        let step = || format!("write ValidatingWebhookConfiguration {name}");
        let configuration = self.configuration.present();
        let manager = Some(FIELD_MANAGER.to_owned());
        let writer = PatchParams { field_manager: manager, ..PatchParams::default() };
        let written = if let Some((url, _)) = &self.settings.url {
            let desired = full_configuration(name, url, &bundle);
            if configuration.is_some_and(|configuration| is_up_to_date(configuration, &desired)) {
                return Ok(());
            }
            self.configurations
                .patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&desired))
                .await
        } else {
            let patch = configuration.and_then(|configuration| trust(configuration, &bundle));
            let Some(patch) = patch else { return Ok(()) };
            self.configurations.patch(name, &writer, &Patch::Strategic(&patch)).await
        };
        let written = written.map_err(Error::api(step()))?;
        tracing::info!(
            configuration = written.name_any(),
            "the API server trusts the webhook's certificate"
        );
        self.configuration = Some(written).into();
        Ok(())
    }
}

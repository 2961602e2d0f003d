//! Stores the webhook's self-issued certificate: in a Secret that the replicas share, or in memory
//! for a single controller outside of the cluster. Writes the CA bundle of the webhook
//! configuration. The steps are decided by `rotation`.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
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
};
use neptune_cloud_kinds::error_class::Class;
use neptune_cloud_metrics::Metrics;
use neptune_program::served_key::certified_key;

use neptune_backoff::Backoff;

use crate::{
    admission::{
        certificate::issue,
        configuration::{full_configuration, hosts, is_up_to_date, trust_patch, trusts},
        rotation::{CertificateSet, RotationPlan, RotationStep, plan},
        serving_certificate::ServingCertificate,
    },
    error::Error,
    kubernetes::{FIELD_MANAGER, follow},
};

/// The Secret that replicas share. The manifest creates it, empty; this program may only update it.
const SECRET: &str = "neptune-webhook";

/// The key of the certificates in the data of the Secret.
const KEY: &str = "certificates.json";

/// The delay before a retry after a failure.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(256));

/// The shortest time between two writes of a configuration that another writer changed in between. Two
/// controllers with `--webhook-url` undo each other's writes, and each write makes every API server
/// load its webhooks again.
const REWRITE_PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// Versions of own writes that are remembered.
const MAX_OWN_VERSIONS: usize = 8;

/// The longest sleep, so that a changed clock is noticed.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// Which certificate is issued, and where it is stored.
pub struct CertificateSettings {
    /// The URL for the API server, with its host. Without it, the existing configuration refers to
    /// a Service.
    pub url: Option<(String, String)>,
    /// The name of the `ValidatingWebhookConfiguration`.
    pub configuration: String,
    /// The namespace of the Secret.
    pub namespace: String,
    /// The validity of a certificate.
    pub lifetime: SignedDuration,
}

/// An object as the watch or the last write returned it.
enum WatchedObject<K> {
    NotSynced,
    Absent,
    Present(Box<K>),
}

impl<K> WatchedObject<K> {
    fn present(&self) -> Option<&K> {
        match self {
            Self::Present(object) => Some(object),
            Self::NotSynced | Self::Absent => None,
        }
    }
}

impl<K> From<Option<K>> for WatchedObject<K> {
    fn from(object: Option<K>) -> Self {
        object.map_or(Self::Absent, |object| Self::Present(Box::new(object)))
    }
}

struct CertificateStore {
    settings: CertificateSettings,
    configurations: Api<Configuration>,
    secrets: Api<Secret>,
    serving_certificate: Arc<ServingCertificate>,
    metrics: Metrics,
    /// The certificate that the server presents.
    presented: String,
    configuration: WatchedObject<Configuration>,
    secret: WatchedObject<Secret>,
    /// The certificates where no Secret is used.
    memory: CertificateSet,
    /// The last own configuration, where there is a URL.
    last_write: Option<LastWrite>,
}

/// The configuration that this replica wrote last, and when.
struct LastWrite {
    at: Timestamp,
    configuration: Configuration,
    /// The versions that the last own writes created, the newest last. The watch reports each once
    /// more, also after a later write.
    versions: Vec<String>,
    /// Whether it was logged that another writer replaced it.
    is_logged: bool,
}

impl LastWrite {
    /// When to replace this configuration of another writer; `None` if at once.
    fn rewrite_at(&self, current: &Configuration, now: Timestamp) -> Option<Timestamp> {
        let at = self.at.saturating_add(REWRITE_PAUSE).unwrap_or(Timestamp::MAX);
        let is_own = |version: &String| self.versions.contains(version);
        let is_other = !is_up_to_date(current, &self.configuration)
            && !current.metadata.resource_version.as_ref().is_some_and(is_own);
        // The clock may have been set back.
        (is_other && now < at && self.at <= now).then_some(at)
    }
}

/// Renews the certificate indefinitely.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn maintain(
    client: Client,
    settings: CertificateSettings,
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
        configuration: WatchedObject::NotSynced,
        secret: if in_memory { WatchedObject::Absent } else { WatchedObject::NotSynced },
        memory: CertificateSet::default(),
        last_write: None,
    };
    let mut sleep = LONGEST_SLEEP;
    let mut failures = 0_u32;
    loop {
        tokio::select! {
            Some(watched) = configuration.next() => store.configuration = watched.into(),
            Some(watched) = secret.next() => store.secret = watched.into(),
            () = tokio::time::sleep(sleep) => {}
        }
        match store.reconcile(Timestamp::now()).await {
            Ok(next_check_at) => {
                failures = 0;
                let until =
                    Timestamp::now().duration_until(next_check_at).max(SignedDuration::ZERO);
                sleep = until.unsigned_abs().min(LONGEST_SLEEP);
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                sleep = RETRY.step(failures);
                // A conflict is not logged: another replica wrote, and the watch will report its
                // write.
                if error.class() != Class::Conflict {
                    tracing::warn!(%error, "cannot update the webhook certificate; retrying");
                }
            }
        }
    }
}

impl CertificateStore {
    /// Executes the step that is due. Returns when to reconcile again if nothing changes.
    async fn reconcile(&mut self, now: Timestamp) -> Result<Timestamp, Error> {
        if matches!(
            (&self.configuration, &self.secret),
            (WatchedObject::NotSynced, _) | (_, WatchedObject::NotSynced)
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
                "ValidatingWebhookConfiguration not found, or it refers to no Service; apply build/deploy or set --webhook-url"
            );
            return Ok(Timestamp::MAX);
        }
        let stored = self.stored();
        let trusted = configuration.is_some_and(|configuration| {
            stored.next.as_ref().is_some_and(|next| trusts(configuration, &next.authority))
        });
        let RotationPlan { step, next_check_at } = plan(&stored, &names, trusted, now);
        let mut certificates = stored;
        if step != RotationStep::Wait {
            let issue_next = || issue(&names, self.settings.lifetime, now);
            certificates = certificates
                .after(step, issue_next)
                .map_err(|source| Error::Issue { names: names.join(", "), source })?;
            self.save(&certificates).await?;
            tracing::info!(
                ?step,
                current = ?certificates.current,
                next = ?certificates.next,
                "webhook certificates changed"
            );
        }
        self.present_certificate(&certificates);
        if let Some(rewrite_at) = self.update_trust(&certificates, now).await? {
            return Ok(rewrite_at.min(next_check_at));
        }
        // After a step, the next plan has another time.
        Ok(if step == RotationStep::Wait { next_check_at } else { now })
    }

    /// The stored certificates, without those that cannot be used.
    fn stored(&self) -> CertificateSet {
        let Some(secret) = self.secret.present() else { return self.memory.clone() };
        let data = secret.data.as_ref().and_then(|data| data.get(KEY));
        let stored: Option<CertificateSet> =
            data.and_then(|data| serde_json::from_slice(&data.0).ok());
        let mut stored = stored.unwrap_or_default();
        for one in [&mut stored.current, &mut stored.next] {
            one.take_if(|one| {
                certified_key(one.certificate.as_bytes(), one.key.as_bytes()).is_err()
            });
        }
        stored
    }

    /// Replaces the version that was read. Of two replicas, one gets a conflict and reconciles
    /// again.
    async fn save(&mut self, certificates: &CertificateSet) -> Result<(), Error> {
        if self.settings.url.is_some() {
            self.memory = certificates.clone();
            return Ok(());
        }
        let step =
            format!("write Secret {}/{SECRET} (created by build/deploy)", self.settings.namespace);
        let mut secret = self.secret.present().cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            ..Secret::default()
        });
        let json = serde_json::to_vec(certificates).expect("certificates are JSON");
        secret.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(json));
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.secrets.replace(SECRET, &params, &secret).await;
        self.secret = Some(written.map_err(Error::api(step))?).into();
        Ok(())
    }

    fn present_certificate(&mut self, certificates: &CertificateSet) {
        let Some(current) = &certificates.current else { return };
        if current.certificate != self.presented
            && self.serving_certificate.set(&current.certificate, &current.key).is_ok()
        {
            self.presented.clone_from(&current.certificate);
            self.metrics.set_certificate_expiry(current.expires);
            tracing::info!(names = ?current.names, expires = %current.expires, "webhook presents a new certificate");
        }
    }

    /// Writes the CA bundle, so that the API server trusts the current and the next certificate.
    /// Returns when to write it, if another writer replaced it too recently.
    async fn update_trust(
        &mut self,
        certificates: &CertificateSet,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let name = &self.settings.configuration;
        let bundle = certificates.bundle();
        let step = || format!("write ValidatingWebhookConfiguration {name}");
        let configuration = self.configuration.present();
        let manager = Some(FIELD_MANAGER.to_owned());
        let writer = PatchParams { field_manager: manager, ..PatchParams::default() };
        let written = if let Some((url, _)) = &self.settings.url {
            let desired = full_configuration(name, url, &bundle);
            if configuration.is_some_and(|configuration| is_up_to_date(configuration, &desired)) {
                return Ok(None);
            }
            if let Some((current, last)) = configuration.zip(self.last_write.as_mut())
                && let Some(at) = last.rewrite_at(current, now)
            {
                if !std::mem::replace(&mut last.is_logged, true) {
                    tracing::warn!(
                        configuration = name,
                        theirs = url_of(current),
                        ours = url,
                        "another writer replaced the ValidatingWebhookConfiguration; it is written again 10 s after the last time. Run one controller with --webhook-url, or give each its own --webhook-configuration"
                    );
                }
                return Ok(Some(at));
            }
            let params = PatchParams::apply(FIELD_MANAGER).force();
            let written = self.configurations.patch(name, &params, &Patch::Apply(&desired)).await;
            let mut versions = self.last_write.take().map(|last| last.versions).unwrap_or_default();
            versions.extend(written.iter().filter_map(kube::ResourceExt::resource_version));
            versions.drain(..versions.len().saturating_sub(MAX_OWN_VERSIONS));
            let is_logged = false;
            self.last_write =
                Some(LastWrite { at: now, configuration: desired, versions, is_logged });
            written
        } else {
            let patch = configuration.and_then(|configuration| trust_patch(configuration, &bundle));
            let Some(patch) = patch else { return Ok(None) };
            self.configurations.patch(name, &writer, &Patch::Strategic(&patch)).await
        };
        let written = written.map_err(Error::api(step()))?;
        tracing::info!(configuration = written.name_any(), "webhook CA bundle written");
        self.configuration = Some(written).into();
        Ok(None)
    }
}

/// The URL of a configuration's webhook.
fn url_of(configuration: &Configuration) -> Option<&str> {
    configuration.webhooks.iter().flatten().find_map(|it| it.client_config.url.as_deref())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn configuration_of_another_writer_is_replaced_after_a_pause() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ours = full_configuration("neptune", "https://192.0.2.1/validate", "ours");
        let theirs = full_configuration("neptune", "https://192.0.2.2/validate", "theirs");
        let versions = vec!["7".to_owned()];
        let last =
            LastWrite { at: at(100), configuration: ours.clone(), versions, is_logged: false };
        let mut earlier = theirs.clone();
        earlier.metadata.resource_version = Some("7".to_owned());
        for (current, now, expected) in [
            (&theirs, 100, Some(at(110))),
            (&theirs, 109, Some(at(110))),
            (&theirs, 110, None),
            (&theirs, 50, None),
            // A new certificate of this controller.
            (&ours, 100, None),
            // An earlier write of this controller, which the watch reports late.
            (&earlier, 100, None),
        ] {
            assert_eq!(last.rewrite_at(current, at(now)), expected, "{now}");
        }
        assert_eq!(url_of(&theirs), Some("https://192.0.2.2/validate"));
    }
}

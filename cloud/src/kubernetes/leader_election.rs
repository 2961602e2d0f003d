//! Leader election with a Lease of the API server. The steps are decided by `lease`.

mod lease;

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use self::lease::{LEASE, Observer, RENEW, RENEW_DEADLINE, RETRY, Step};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How long releasing the Lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether this replica leads.
#[derive(Debug)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    source: LeadershipSource,
}

#[derive(Debug)]
enum LeadershipSource {
    /// No leader election. The sender is kept, because a closed channel means lost leadership.
    Single(#[expect(dead_code, reason = "held for its drop")] watch::Sender<bool>),
    /// Renews the Lease.
    Lease { renewal: JoinHandle<()>, leases: Box<Leases> },
}

/// The Lease, and the name of this replica in it.
#[derive(Debug, Clone)]
struct Leases {
    api: Api<Lease>,
    name: String,
    identity: String,
}

impl Leadership {
    /// The leadership of a program without `--leader-elect`: never lost.
    pub fn single() -> Self {
        let (sender, leads) = watch::channel(true);
        Self { leads, source: LeadershipSource::Single(sender) }
    }

    /// Starts to campaign.
    pub fn campaign(client: &Client, namespace: &str, lease: &str) -> Self {
        let identity = identity();
        tracing::info!(namespace, lease, identity, "campaigning for leadership");
        let api = Api::namespaced(client.clone(), namespace);
        let leases = Leases { api, name: lease.to_owned(), identity };
        let (sender, leads) = watch::channel(false);
        let renewal = tokio::spawn(renew(leases.clone(), sender, namespace.to_owned()));
        Self { leads, source: LeadershipSource::Lease { renewal, leases: Box::new(leases) } }
    }

    /// Resolves when this replica leads.
    pub async fn gained(&self) {
        if self.leads.clone().wait_for(|leads| *leads).await.is_err() {
            // The renewal ended, and `lost` has resolved.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when this replica no longer leads, or can no longer become the leader.
    pub async fn lost(&self) {
        let mut leads = self.leads.clone();
        if leads.wait_for(|leads| *leads).await.is_ok() {
            drop(leads.wait_for(|leads| !leads).await);
        }
    }

    /// Releases the Lease, so that another replica can acquire it at its next attempt.
    pub async fn resign(self) {
        let LeadershipSource::Lease { renewal, leases } = self.source else { return };
        renewal.abort();
        if *self.leads.borrow() && timeout(RELEASE_TIMEOUT, leases.release()).await.is_err() {
            tracing::warn!("cannot release the Lease in time; it expires by itself");
        }
    }
}

/// Renews the Lease, or acquires it when it is free, until the leadership is lost.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn renew(leases: Leases, leads: watch::Sender<bool>, namespace: String) {
    let mut observer = Observer::new(leases.identity.clone());
    let mut leads_until: Option<Instant> = None;
    let mut warned = None;
    loop {
        let start = Instant::now();
        let limit =
            leads_until.map_or(start + REQUEST_TIMEOUT, |until| until.min(start + REQUEST_TIMEOUT));
        let attempt = tokio::time::timeout_at(limit.into(), leases.attempt(&mut observer));
        match attempt.await {
            Ok(Ok(true)) => {
                warned = None;
                leads_until = Some(start + RENEW_DEADLINE);
                leads.send_if_modified(|leads| !std::mem::replace(leads, true));
            }
            Ok(Ok(false)) => {
                warned = None;
                if leads_until.is_some() {
                    tracing::warn!(lease = leases.name, "another replica holds the Lease");
                    leads.send_replace(false);
                    return;
                }
            }
            failed => {
                let error = failed.map_or_else(
                    |_| "no answer in time".to_owned(),
                    |result| result.err().map(|error| error.to_string()).unwrap_or_default(),
                );
                if warned.as_ref() != Some(&error) {
                    tracing::warn!(
                        namespace,
                        lease = leases.name,
                        error,
                        "cannot get or renew the Lease; retrying (check that its namespace exists and that this program may get, create and patch Leases)"
                    );
                    warned = Some(error);
                }
            }
        }
        let pause = Instant::now() + if leads_until.is_some() { RENEW } else { RETRY };
        let until = leads_until.map_or(pause, |until| until.min(pause));
        tokio::time::sleep_until(until.into()).await;
        if leads_until.is_some_and(|until| until <= Instant::now()) {
            leads.send_replace(false);
            return;
        }
    }
}

impl Leases {
    /// One step towards the leadership. Returns whether this replica holds the Lease now.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn attempt(&self, observer: &mut Observer) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(&self.name).await?;
        let held = match observer.observe(lease.as_ref(), Instant::now()) {
            Step::Wait => return Ok(false),
            Step::Create => {
                let lease = serde_json::from_value(json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": self.name},
                    "spec": self.spec(true, 0),
                }))
                .map_err(kube::Error::SerdeError)?;
                self.api.create(&PostParams::default(), &lease).await.map(drop)
            }
            Step::Hold { version, is_new, transitions } => {
                let patch = json!({
                    "metadata": {"resourceVersion": version},
                    "spec": self.spec(is_new, transitions),
                });
                let params = PatchParams::default();
                self.api.patch(&self.name, &params, &Patch::Merge(&patch)).await.map(drop)
            }
        };
        match held {
            Ok(()) => Ok(true),
            // Another replica was faster, or the Lease was deleted: the next step decides.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                let lease = self.api.get_opt(&self.name).await?;
                let holder = lease.and_then(|lease| lease.spec?.holder_identity);
                Ok(holder.as_ref() == Some(&self.identity))
            }
            Err(error) => Err(error),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn spec(&self, is_new: bool, transitions: i32) -> serde_json::Value {
        let now = MicroTime(Timestamp::now());
        let mut spec = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE.as_secs(),
            "renewTime": now,
            "leaseTransitions": transitions,
        });
        if is_new {
            spec["acquireTime"] = json!(now);
        }
        spec
    }

    async fn release(&self) {
        let released = async {
            let Some(lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
            if holder != Some(&self.identity) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"resourceVersion": lease.metadata.resource_version},
                "spec": {"holderIdentity": null, "leaseDurationSeconds": 1},
            });
            self.api
                .patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map(drop)
        };
        let result: Result<(), kube::Error> = released.await;
        if let Err(error) = result {
            tracing::warn!(%error, "cannot release the Lease; it expires by itself");
        }
    }
}

/// The Pod's name and the start time, which distinguishes two starts.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "neptune-cloud".to_owned());
    format!("{host}_{:x}", Timestamp::now().as_microsecond())
}

//! Leader election with a Lease of the API server. Correctness does not depend on a single leader:
//! revisions order the messages of two overlapping leaders (ADR 1). The Lease bounds how long they
//! overlap.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// Lease duration: a replica takes over if the leader does not renew for this long.
const LEASE_SECONDS: u64 = 10;
/// The leader renews this many seconds before the Lease expires.
const GRACE_SECONDS: u64 = 5;
/// The pause between two attempts to get the Lease.
const RETRY: Duration = Duration::from_secs(1);
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
    Lease(JoinHandle<Result<LeaseManager, LeaseManagerError>>),
}

impl Leadership {
    /// The leadership of a program without `--leader-elect`: never lost.
    pub fn single() -> Self {
        let (sender, leads) = watch::channel(true);
        Self { leads, source: LeadershipSource::Single(sender) }
    }

    /// Starts to campaign as soon as the API server is reachable and grants access to the Lease.
    pub async fn campaign(client: &Client, namespace: &str, lease: &str) -> Self {
        let identity = identity();
        let mut warned = None;
        let manager = loop {
            let builder = LeaseManagerBuilder::new(client.clone(), lease)
                .with_namespace(namespace)
                .with_identity(&identity)
                .with_duration(LEASE_SECONDS)
                .with_grace(GRACE_SECONDS);
            match builder.build().await {
                Ok(manager) => break manager,
                Err(error) => {
                    let error = error.to_string();
                    if warned.as_ref() != Some(&error) {
                        tracing::warn!(
                            namespace,
                            lease,
                            error,
                            "cannot get the Lease; check that its namespace exists and that this program may get, create and patch Leases"
                        );
                        warned = Some(error);
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        tracing::info!(namespace, lease, identity, "campaigning for leadership");
        let (leads, manager) = manager.watch().await;
        Self { leads, source: LeadershipSource::Lease(manager) }
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
        let Self { leads, source: LeadershipSource::Lease(manager) } = self else { return };
        drop(leads);
        if timeout(RELEASE_TIMEOUT, manager).await.is_err() {
            tracing::warn!("cannot release the Lease in time; it expires by itself");
        }
    }
}

/// The Pod's name and the start time, which distinguishes two starts.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "neptune-cloud".to_owned());
    format!("{host}_{:x}", Timestamp::now().as_microsecond())
}

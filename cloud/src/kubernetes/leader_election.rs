//! Waits until this replica is the one that acts, and tells when it no longer is: a Lease of the API
//! server says which. Nothing rests on there being one at a time: two that overlap are told apart by
//! revisions (ADR 1). The Lease keeps them from contradicting each other for longer than that.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// After so many seconds without a word of the leader another takes over.
const LEASE_SECONDS: u64 = 10;
/// So many seconds before that it says its word.
const GRACE_SECONDS: u64 = 5;
/// Between two attempts to find the Lease.
const RETRY: Duration = Duration::from_secs(1);
/// How long giving the Lease back may take.
const RELEASE: Duration = Duration::from_secs(2);

/// Whether this replica acts.
#[derive(Debug)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// There is no other. The sender is kept, so that nobody takes this for an end.
    Single(#[expect(dead_code, reason = "held for its drop")] watch::Sender<bool>),
    /// Renews the Lease.
    Lease(JoinHandle<Result<LeaseManager, LeaseManagerError>>),
}

impl Leadership {
    /// Of a program that was started without `--leader-elect`.
    pub fn single() -> Self {
        let (sender, leads) = watch::channel(true);
        Self { leads, source: Source::Single(sender) }
    }

    /// Begins to stand for it, as soon as the API server is there and lets it.
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
                            "the Lease cannot be had; its namespace must exist, and this program may get, create and patch it"
                        );
                        warned = Some(error);
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        tracing::info!(namespace, lease, identity, "stands for leader");
        let (leads, manager) = manager.watch().await;
        Self { leads, source: Source::Lease(manager) }
    }

    /// Resolves when this one is to act.
    pub async fn gained(&self) {
        if self.leads.clone().wait_for(|leads| *leads).await.is_err() {
            // Nobody renews any more, and `lost` has said so.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when this one is no longer to act, or can no longer be the one.
    pub async fn lost(&self) {
        let mut leads = self.leads.clone();
        if leads.wait_for(|leads| *leads).await.is_ok() {
            drop(leads.wait_for(|leads| !leads).await);
        }
    }

    /// Gives the Lease back: another finds it free at its next look.
    pub async fn resign(self) {
        let Self { leads, source: Source::Lease(manager) } = self else { return };
        drop(leads);
        if timeout(RELEASE, manager).await.is_err() {
            tracing::warn!("the Lease could not be given back in time; it runs out by itself");
        }
    }
}

/// A Pod's name, and what tells two starts of it apart.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "neptune-cloud".to_owned());
    format!("{host}_{:x}", Timestamp::now().as_microsecond())
}

//! Leader election with a Lease of the API server. The steps are decided by `lease`.

mod lease;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use self::lease::{LEASE, Observer, RENEW_DEADLINE, Step};
use super::outage::ApiServer;

/// The name of the Lease, one per namespace of a controller. The shipped rights name it.
const NAME: &str = "neptune-cloud";

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How long releasing the Lease may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether this replica leads.
#[derive(Debug)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    problem: watch::Receiver<Option<String>>,
    source: LeadershipSource,
}

#[derive(Debug)]
enum LeadershipSource {
    /// No leader election. The sender is kept, because a closed channel means lost leadership.
    Single(#[expect(dead_code, reason = "held for its drop")] watch::Sender<bool>),
    /// A task renews the Lease while this replica leads.
    Lease { renewal: JoinHandle<()>, leases: Box<Leases> },
}

/// The Lease, and the name of this replica in it.
#[derive(Debug, Clone)]
struct Leases {
    api: Api<Lease>,
    identity: String,
}

/// The channels to which a campaign reports.
struct Campaign {
    namespace: String,
    leads: watch::Sender<bool>,
    problem: watch::Sender<Option<String>>,
    api_server: Arc<ApiServer>,
}

impl Leadership {
    /// The leadership of a program without `--leader-elect`: never lost.
    pub fn single() -> Self {
        let (sender, leads) = watch::channel(true);
        let (_, problem) = watch::channel(None);
        Self { leads, problem, source: LeadershipSource::Single(sender) }
    }

    /// Starts to campaign for the Lease of this namespace. `api_server` is informed of failures.
    pub fn campaign(client: &Client, namespace: &str, api_server: &Arc<ApiServer>) -> Self {
        let identity = identity();
        tracing::info!(namespace, lease = NAME, identity, "campaigning for leadership");
        let leases = Leases { api: Api::namespaced(client.clone(), namespace), identity };
        let (send_leads, leads) = watch::channel(false);
        let not_read = format!("Lease {NAME} in namespace {namespace} was not read yet");
        let (send_problem, problem) = watch::channel(Some(not_read));
        let campaign = Campaign {
            namespace: namespace.to_owned(),
            leads: send_leads,
            problem: send_problem,
            api_server: Arc::clone(api_server),
        };
        let renewal = tokio::spawn(renew(leases.clone(), campaign));
        let source = LeadershipSource::Lease { renewal, leases: Box::new(leases) };
        Self { leads, problem, source }
    }

    /// Why this replica can neither hold nor follow the Lease.
    pub fn problem(&self) -> watch::Receiver<Option<String>> {
        self.problem.clone()
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
async fn renew(leases: Leases, campaign: Campaign) {
    let mut observer = Observer::new(leases.identity.clone());
    let mut held = None;
    let mut leads_until: Option<Instant> = None;
    loop {
        let start = Instant::now();
        let limit =
            leads_until.map_or(start + REQUEST_TIMEOUT, |until| until.min(start + REQUEST_TIMEOUT));
        let attempt = leases.attempt(&mut observer, &mut held);
        match tokio::time::timeout_at(limit.into(), attempt).await {
            Ok(Ok(leads)) => {
                campaign.on_answer();
                if leads {
                    leads_until = Some(start + RENEW_DEADLINE);
                    campaign.leads.send_if_modified(|leads| !std::mem::replace(leads, true));
                } else if leads_until.is_some() {
                    tracing::warn!(lease = NAME, "another replica holds the Lease");
                    campaign.leads.send_replace(false);
                    return;
                }
            }
            Ok(Err(error)) => campaign.on_error(&error),
            Err(elapsed) => drop(campaign.api_server.failed("get or renew the Lease", &elapsed)),
        }
        let now = Instant::now();
        let pause = now + observer.pause(now);
        let until = leads_until.map_or(pause, |until| until.min(pause));
        tokio::time::sleep_until(until.into()).await;
        if leads_until.is_some_and(|until| until <= Instant::now()) {
            campaign.leads.send_replace(false);
            return;
        }
    }
}

impl Campaign {
    fn on_answer(&self) {
        self.api_server.answered();
        self.problem.send_if_modified(|problem| problem.take().is_some());
    }

    /// An outage ends by itself. After a refusal this replica can never lead.
    fn on_error(&self, error: &kube::Error) {
        if self.api_server.failed("get or renew the Lease", error) {
            return;
        }
        let Self { namespace, problem, .. } = self;
        let text = format!("cannot get or renew Lease {NAME} in namespace {namespace}: {error}");
        let is_new =
            problem.send_if_modified(|problem| problem.replace(text.clone()) != Some(text.clone()));
        if is_new {
            tracing::warn!(
                problem = text,
                "leader election failed; retrying (check that the namespace exists and that this program may get, create and patch its Leases)"
            );
        }
    }
}

impl Leases {
    /// One step towards the leadership. Returns whether this replica holds the Lease now. `held` is
    /// what it wrote last, so that a leader only writes.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    async fn attempt(
        &self,
        observer: &mut Observer,
        held: &mut Option<Lease>,
    ) -> Result<bool, kube::Error> {
        if let Some(lease) = held.take() {
            match self.write(observer.observe(Some(&lease), Instant::now())).await {
                // Another client has changed or deleted it: what is there now decides.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                written => {
                    *held = written?;
                    return Ok(held.is_some());
                }
            }
        }
        let lease = self.api.get_opt(NAME).await?;
        match self.write(observer.observe(lease.as_ref(), Instant::now())).await {
            // Another replica was faster, or the Lease was deleted: the next step decides.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                let lease = self.api.get_opt(NAME).await?;
                let holder = lease.and_then(|lease| lease.spec?.holder_identity);
                Ok(holder.as_ref() == Some(&self.identity))
            }
            written => {
                *held = written?;
                Ok(held.is_some())
            }
        }
    }

    /// Writes this replica as the holder, unless it has to wait. Returns the Lease as written.
    async fn write(&self, step: Step) -> Result<Option<Lease>, kube::Error> {
        let written = match step {
            Step::Wait => return Ok(None),
            Step::Create => {
                let lease = serde_json::from_value(json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": NAME},
                    "spec": self.spec(true, 0),
                }))
                .map_err(kube::Error::SerdeError)?;
                self.api.create(&PostParams::default(), &lease).await
            }
            Step::Hold { version, is_new, transitions } => {
                let patch = json!({
                    "metadata": {"resourceVersion": version},
                    "spec": self.spec(is_new, transitions),
                });
                let params = PatchParams::default();
                self.api.patch(NAME, &params, &Patch::Merge(&patch)).await
            }
        };
        written.map(Some)
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
            let Some(lease) = self.api.get_opt(NAME).await? else { return Ok(()) };
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
            if holder != Some(&self.identity) {
                return Ok(());
            }
            let patch = json!({
                "metadata": {"resourceVersion": lease.metadata.resource_version},
                "spec": {"holderIdentity": null, "leaseDurationSeconds": 1},
            });
            self.api.patch(NAME, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
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

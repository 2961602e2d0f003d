//! The logins of the embedded broker: of workers, whose containers carry the digests of their
//! passwords, of this agent, and of the observer.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    time::Duration,
};

use neptune_agent_core::domain::{
    broker_login::{BrokerLogin, PasswordDigest},
    observed_container::ObservedContainer,
};
use neptune_program::random::unique_id;
use neptune_wire::{Resource, WorkerName};
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};
use tracing::debug;

use crate::{
    access::ClientIdentity,
    notes::{WorkerNote, WorkerNotes},
    packet::{ConnectCode, Login, OtherConnect},
};

/// The users of this agent and of people. No worker has such a name, because of the underscore.
pub const AGENT_USER: &str = "neptune_agent";
pub const OBSERVER_USER: &str = "neptune_observer";
/// How long a login waits for the first observation of the containers after a start.
pub const FIRST_OBSERVATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The logins of the embedded broker.
pub struct BrokerCredentials {
    address: SocketAddr,
    allow_anonymous: bool,
    agent_password: String,
    agent: PasswordDigest,
    observer: PasswordDigest,
    state: Mutex<State>,
    /// Counts the changes that may end a login.
    changes: watch::Sender<u64>,
    is_observed: watch::Sender<bool>,
    /// Remarks on how workers use their logins.
    pub notes: WorkerNotes,
}

#[derive(Default)]
struct State {
    workers: BTreeMap<WorkerName, WorkerLogins>,
}

/// The logins of one worker.
#[derive(Debug, Default, PartialEq)]
struct WorkerLogins {
    /// Digests of the passwords of the containers that exist.
    observed: BTreeSet<PasswordDigest>,
    /// Digests of the passwords of containers that are being created.
    starting: BTreeSet<PasswordDigest>,
    /// A container exists that an earlier version created, without a password.
    has_container_without_password: bool,
    has_logged_in: bool,
}

impl WorkerLogins {
    fn contains(&self, password: &PasswordDigest) -> bool {
        // Compares with all of them, so that the time depends on none.
        let known = self.observed.iter().chain(&self.starting);
        known.filter(|digest| *digest == password).count() > 0
    }
}

impl BrokerCredentials {
    /// `address`: where workers reach the broker. Returns also the observer's password.
    ///
    /// # Errors
    /// No random numbers are available.
    pub(crate) fn new(
        address: SocketAddr,
        allow_anonymous: bool,
        notes: WorkerNotes,
    ) -> io::Result<(Self, String)> {
        let (agent_password, observer_password) = (unique_id()?, unique_id()?);
        let credentials = Self {
            address,
            allow_anonymous,
            agent: PasswordDigest::compute(&agent_password),
            agent_password,
            observer: PasswordDigest::compute(&observer_password),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            is_observed: watch::Sender::new(false),
            notes,
        };
        Ok((credentials, observer_password))
    }

    /// The URL of this agent's own connection.
    pub fn agent_url(&self) -> String {
        format!("mqtt://{AGENT_USER}:{}@{}", self.agent_password, self.address)
    }

    /// User and password of this agent's own connection.
    pub(crate) fn agent_login(&self) -> Login {
        Login { user: AGENT_USER.to_owned(), password: self.agent_password.clone().into_bytes() }
    }

    /// Creates the login of a worker's next container. Valid at once, so that the worker can
    /// connect before its container is observed.
    ///
    /// # Errors
    /// No random numbers are available.
    pub fn issue(&self, worker: &WorkerName) -> io::Result<BrokerLogin> {
        let password = unique_id()?;
        let digest = PasswordDigest::compute(&password);
        let mut state = self.state.lock();
        let logins = state.workers.entry(worker.clone()).or_default();
        logins.starting.insert(digest);
        logins.has_logged_in = false;
        drop(state);
        let mqtt_url = format!("mqtt://{worker}:{password}@{}", self.address);
        Ok(BrokerLogin { mqtt_url, digest })
    }

    /// Accepts this login until the process exits. For a broker without observed containers.
    pub fn permit(&self, worker: &WorkerName, password: &str) {
        let digest = PasswordDigest::compute(password);
        self.state.lock().workers.entry(worker.clone()).or_default().observed.insert(digest);
        self.is_observed.send_replace(true);
    }

    /// Replaces the logins by those of the observed containers. Those of a worker whose next
    /// container `may_appear` stay valid.
    pub fn set_observed(
        &self,
        containers: &[ObservedContainer],
        may_appear: impl Fn(&WorkerName) -> bool,
    ) {
        let mut state = self.state.lock();
        for (worker, logins) in &mut state.workers {
            logins.observed.clear();
            logins.has_container_without_password = false;
            if !may_appear(worker) {
                logins.starting.clear();
            }
        }
        for container in containers {
            // Model servers do not use the broker.
            if container.identity.owner.resource != Resource::JointInferenceServices {
                continue;
            }
            let logins = state.workers.entry(container.identity.worker.clone()).or_default();
            match container.password {
                Some(password) => drop(logins.observed.insert(password)),
                None => logins.has_container_without_password = true,
            }
        }
        state.workers.retain(|_, logins| {
            logins.has_container_without_password
                || !(logins.observed.is_empty() && logins.starting.is_empty())
        });
        let workers: BTreeMap<WorkerName, bool> = state
            .workers
            .iter()
            .map(|(worker, logins)| (worker.clone(), logins.has_container_without_password))
            .collect();
        drop(state);
        self.notes.retain(|worker| workers.contains_key(worker));
        for (worker, _) in workers.iter().filter(|(_, has_no_password)| !**has_no_password) {
            self.notes.remove(worker, WorkerNote::WithoutPassword);
        }
        self.is_observed.send_replace(true);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Decides who a new client is. Waits for the first observation of the containers.
    ///
    /// # Errors
    /// The code with which the connection is refused.
    pub(crate) async fn authenticate(
        &self,
        login: Option<&Login>,
    ) -> Result<ClientIdentity, ConnectCode> {
        if let Some(login) = login {
            let password = PasswordDigest::compute(&login.password);
            match login.user.as_str() {
                AGENT_USER if password == self.agent => return Ok(ClientIdentity::Agent),
                OBSERVER_USER if password == self.observer => return Ok(ClientIdentity::Observer),
                _ => {}
            }
        }
        let mut is_observed = self.is_observed.subscribe();
        let observed = is_observed.wait_for(|is_observed| *is_observed);
        if !matches!(timeout(FIRST_OBSERVATION_TIMEOUT, observed).await, Ok(Ok(_))) {
            return Err(ConnectCode::ServerUnavailable);
        }
        match login {
            Some(login) => self.worker(login),
            None => self.anonymous(),
        }
    }

    fn worker(&self, login: &Login) -> Result<ClientIdentity, ConnectCode> {
        let password = PasswordDigest::compute(&login.password);
        let worker: WorkerName = login.user.parse().map_err(|_| ConnectCode::BadLogin)?;
        let mut state = self.state.lock();
        let logins = state.workers.get_mut(&worker).ok_or(ConnectCode::BadLogin)?;
        if !logins.contains(&password) {
            return Err(ConnectCode::BadLogin);
        }
        logins.has_logged_in = true;
        drop(state);
        for note in [WorkerNote::LoginMissing, WorkerNote::WrongPassword, WorkerNote::OtherVersion]
        {
            self.notes.remove(&worker, note);
        }
        Ok(ClientIdentity::Worker(worker, password))
    }

    fn anonymous(&self) -> Result<ClientIdentity, ConnectCode> {
        let state = self.state.lock();
        let has_old = state.workers.values().any(|logins| logins.has_container_without_password);
        if self.allow_anonymous || has_old {
            return Ok(ClientIdentity::Anonymous);
        }
        Err(ConnectCode::NotAuthorized)
    }

    /// Notes that the login of a client was refused, for the worker that it is.
    pub(crate) fn note_refusal(&self, client_id: &str, login: Option<&Login>) {
        let note =
            if login.is_some() { WorkerNote::WrongPassword } else { WorkerNote::LoginMissing };
        self.note_refused(client_id, login, note);
    }

    /// Notes that a client of another version of MQTT was refused, for the worker that it is.
    pub(crate) fn note_other_version(&self, connect: &OtherConnect) {
        self.note_refused(&connect.client_id, connect.login.as_ref(), WorkerNote::OtherVersion);
    }

    fn note_refused(&self, client_id: &str, login: Option<&Login>, note: WorkerNote) {
        if let Some(worker) = self.refused_worker(client_id, login) {
            self.notes.add(&worker, note);
        } else {
            debug!(client_id, user = login.map(|it| &it.user), "unknown client refused");
        }
    }

    /// The worker that a refused client is: by its user name, else by its client ID, else the only
    /// one that is missing. Never one that logged in: another process may claim its name.
    fn refused_worker(&self, client_id: &str, login: Option<&Login>) -> Option<WorkerName> {
        let state = self.state.lock();
        let is_missing = |worker: &WorkerName| {
            state.workers.get(worker).is_some_and(|logins| !logins.has_logged_in)
        };
        if let Some(login) = login {
            return login.user.parse().ok().filter(is_missing);
        }
        let by_id: Option<WorkerName> = client_id.parse().ok().filter(is_missing);
        by_id.or_else(|| {
            let mut missing = state.workers.keys().filter(|worker| is_missing(worker));
            missing.next().filter(|_| missing.next().is_none()).cloned()
        })
    }

    /// Whether a client that logged in earlier may stay connected.
    pub(crate) fn is_valid(&self, identity: &ClientIdentity) -> bool {
        match identity {
            ClientIdentity::Agent | ClientIdentity::Observer => true,
            ClientIdentity::Worker(worker, password) => {
                let state = self.state.lock();
                state.workers.get(worker).is_some_and(|logins| logins.contains(password))
            }
            // Each message is checked.
            ClientIdentity::Anonymous => {
                let state = self.state.lock();
                let mut logins = state.workers.values();
                self.allow_anonymous || logins.any(|logins| logins.has_container_without_password)
            }
        }
    }

    /// Whether a client without a login may act for a worker: with `--allow-anonymous-workers` for
    /// each worker that has a container, else for one whose container has no password.
    pub(crate) fn is_anonymous_allowed(&self, worker: &WorkerName) -> bool {
        self.state
            .lock()
            .workers
            .get(worker)
            .is_some_and(|logins| self.allow_anonymous || logins.has_container_without_password)
    }

    /// Records that a client without a login published for a worker.
    pub(crate) fn note_anonymous(&self, worker: &WorkerName) {
        let is_old = {
            let state = self.state.lock();
            state.workers.get(worker).is_some_and(|logins| logins.has_container_without_password)
        };
        let note = if is_old { WorkerNote::WithoutPassword } else { WorkerNote::Anonymous };
        self.notes.add(worker, note);
    }

    /// Changes after which [`Self::is_valid`] may differ.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::fixtures::observed_container;

    use super::*;

    fn credentials(allow_anonymous: bool) -> BrokerCredentials {
        let notes = WorkerNotes::new(|| ());
        BrokerCredentials::new("127.0.0.1:1884".parse().unwrap(), allow_anonymous, notes).unwrap().0
    }

    fn container(password: Option<PasswordDigest>) -> ObservedContainer {
        ObservedContainer { password, ..observed_container("1") }
    }

    fn worker() -> WorkerName {
        observed_container("1").identity.worker
    }

    fn login(login: &BrokerLogin) -> Login {
        let (user, rest) = login.mqtt_url.strip_prefix("mqtt://").unwrap().split_once(':').unwrap();
        let password = rest.split_once('@').unwrap().0.as_bytes().to_vec();
        Login { user: user.to_owned(), password }
    }

    #[tokio::test]
    async fn login_is_valid_from_its_issue_to_the_end_of_its_container() {
        let credentials = credentials(false);
        credentials.set_observed(&[], |_| false);
        let issued = credentials.issue(&worker()).unwrap();
        let sent = login(&issued);
        let identity = credentials.authenticate(Some(&sent)).await.unwrap();
        assert_eq!(identity, ClientIdentity::Worker(worker(), issued.digest));
        // An observation that began before the container was created.
        credentials.set_observed(&[], |_| true);
        assert!(credentials.is_valid(&identity));
        credentials.set_observed(&[container(Some(issued.digest))], |_| false);
        assert!(credentials.is_valid(&identity), "also after a restart of the agent");
        credentials.set_observed(&[], |_| false);
        assert!(!credentials.is_valid(&identity));
        assert_eq!(credentials.authenticate(Some(&sent)).await, Err(ConnectCode::BadLogin));
    }

    #[tokio::test]
    async fn password_of_another_worker_or_container_is_refused() {
        let credentials = credentials(false);
        credentials.set_observed(&[], |_| false);
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (of_a, of_b) = (credentials.issue(&a).unwrap(), login(&credentials.issue(&b).unwrap()));
        let stolen = Login { user: "a".into(), ..of_b };
        assert_eq!(credentials.authenticate(Some(&stolen)).await, Err(ConnectCode::BadLogin));
        for user in ["a", "neptune_agent", "neptune_observer", "c", "A/B", ""] {
            let guess = Login { user: user.into(), password: b"guess".to_vec() };
            let refused = credentials.authenticate(Some(&guess)).await;
            assert_eq!(refused, Err(ConnectCode::BadLogin), "{user}");
        }
        assert!(credentials.authenticate(Some(&login(&of_a))).await.is_ok());
        assert!(credentials.authenticate(Some(&credentials.agent_login())).await.is_ok());
    }

    #[tokio::test]
    async fn client_without_login_acts_only_for_containers_without_password() {
        let strict = credentials(false);
        strict.set_observed(&[container(Some(PasswordDigest::compute("x")))], |_| false);
        assert_eq!(strict.authenticate(None).await, Err(ConnectCode::NotAuthorized));
        assert_eq!(strict.notes.text(&worker()), "");
        strict.note_refusal("", None);
        assert!(strict.notes.text(&worker()).contains("--allow-anonymous-workers"));
        // As after an upgrade of the agent.
        strict.set_observed(&[container(None)], |_| false);
        assert_eq!(strict.authenticate(None).await, Ok(ClientIdentity::Anonymous));
        assert!(strict.is_anonymous_allowed(&worker()));
        assert!(!strict.is_anonymous_allowed(&"other".parse().unwrap()));
        strict.note_anonymous(&worker());
        assert!(strict.notes.text(&worker()).contains("an earlier agent created it"));
        strict.set_observed(&[container(Some(PasswordDigest::compute("x")))], |_| false);
        assert!(!strict.is_valid(&ClientIdentity::Anonymous));
        let open = credentials(true);
        open.set_observed(&[container(Some(PasswordDigest::compute("x")))], |_| false);
        assert_eq!(open.authenticate(None).await, Ok(ClientIdentity::Anonymous));
        assert!(open.is_anonymous_allowed(&worker()));
        open.note_anonymous(&worker());
        assert!(open.notes.text(&worker()).contains("publishes without credentials"));
    }

    #[tokio::test]
    async fn only_the_worker_that_was_refused_is_noted() {
        let credentials = credentials(false);
        credentials.set_observed(&[], |_| false);
        let [a, b, c] = ["a", "b", "c"].map(|name| name.parse::<WorkerName>().unwrap());
        let issued = [&a, &b, &c].map(|worker| login(&credentials.issue(worker).unwrap()));
        let noted = || [&a, &b, &c].map(|worker| credentials.notes.text(worker));
        let none = [const { String::new() }; 3];
        // It may be any of the three, or none of them.
        credentials.note_refusal("mosqsub|1234", None);
        let unknown = Login { user: "x".into(), password: Vec::new() };
        credentials.note_refusal("a", Some(&unknown));
        assert_eq!(noted(), none);
        credentials.note_refusal("b", None);
        let [of_a, of_b, of_c] = noted();
        assert!(of_b.contains("a client without credentials was refused"), "{of_b}");
        assert_eq!((of_a.as_str(), of_c.as_str()), ("", ""));
        let wrong = Login { user: "a".into(), password: b"guess".to_vec() };
        credentials.note_refusal("any", Some(&wrong));
        let newer = OtherConnect {
            is_newer: true,
            client_id: String::new(),
            login: Some(issued[2].clone()),
        };
        credentials.note_other_version(&newer);
        let [of_a, _, of_c] = noted();
        assert!(of_a.contains("because of the password"), "{of_a}");
        assert!(of_c.contains("MQTT 3.1.1"), "{of_c}");
        for sent in &issued {
            credentials.authenticate(Some(sent)).await.unwrap();
        }
        assert_eq!(noted(), none, "a login removes the notes");
        credentials.note_refusal("any", Some(&wrong));
        assert_eq!(noted(), none, "a worker that logged in is not the refused client");
        // The only one that is missing.
        credentials.issue(&c).unwrap();
        credentials.note_refusal("mosqsub|1234", None);
        assert_ne!(credentials.notes.text(&c), "");
    }

    #[tokio::test]
    async fn login_waits_for_the_first_observation_after_a_start() {
        let credentials = credentials(false);
        let password = "of a container that survived a restart of the agent";
        let sent = Login { user: worker().to_string(), password: password.into() };
        let authentication = credentials.authenticate(Some(&sent));
        let observation = async {
            tokio::task::yield_now().await;
            credentials
                .set_observed(&[container(Some(PasswordDigest::compute(password)))], |_| false);
        };
        let (identity, ()) = tokio::join!(authentication, observation);
        assert!(identity.is_ok());
    }
}

//! The embedded broker of the workers: MQTT 3.1.1 for the topics of workers, with a login per
//! worker and limits on everything that a client can send. It persists nothing.
//!
//! | file | task |
//! |---|---|
//! | `packet`, `fields` | packets of clients, within limits |
//! | `encode` | packets of the broker |
//! | `access` | what a client may publish and subscribe to |
//! | `credentials` | the logins |
//! | `notes` | remarks for the status of workers |
//! | `rate` | messages per second of a connection |
//! | `queue` | packets that wait for a client |
//! | `hub` | connections, subscriptions, delivery |
//! | `handshake` | CONNECT of a connection |
//! | `session` | the other packets of a connection |
//! | `listener` | one instance: thread, runtime, accepted connections |
//! | `supervisor` | probes the instance and replaces one that does not answer |

#![deny(missing_docs)]

mod access;
mod credentials;
mod encode;
mod fields;
mod handshake;
mod hub;
mod listener;
mod notes;
mod observer_file;
mod packet;
mod queue;
mod rate;
mod session;
mod supervisor;
#[cfg(test)]
mod tests;
mod worker_messages;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use neptune_agent_core::domain::listen_address::reachable;
use neptune_program::listen::{self, Refusals};
use neptune_wire::TopicPrefix;
use tracing::warn;

use self::supervisor::{ProbeTimes, Supervisor};
pub use self::{
    credentials::BrokerCredentials, hub::Consumer, listener::SERVER, notes::WorkerNotes,
    observer_file::read_observer_url, worker_messages::WorkerMessages,
};

/// The broker cannot listen on its address.
#[derive(Debug, thiserror::Error)]
#[error(
    "embedded broker cannot listen on {listen}: {why}; free the port, use another with --local-listen, or use an existing broker with --local-broker mqtt://HOST:PORT"
)]
pub struct BrokerError {
    listen: SocketAddr,
    why: String,
}

/// The settings of the embedded broker.
pub struct BrokerSettings<'a> {
    /// The address of the listener.
    pub listen: SocketAddr,
    /// The prefix of the workers' topics.
    pub prefix: TopicPrefix,
    /// Whether a client without a login may publish for a worker.
    pub allow_anonymous: bool,
    /// The file with the observer's URL is created here. `None`: nobody knows that URL.
    pub data_dir: Option<&'a Path>,
    /// Takes the workers' info messages in place of the agent's connection.
    pub consumer: Option<Consumer>,
    /// Counts the connections that the broker refuses.
    pub refusals: Refusals,
}

/// A broker that was started.
pub struct EmbeddedBroker {
    /// The logins of the workers and of the agent, which the broker checks.
    pub credentials: Arc<BrokerCredentials>,
    /// The messages of the workers for the agent's connection.
    pub messages: Arc<WorkerMessages>,
}

/// Starts the broker in threads of its own, until the process exits.
/// `failed` is called if the broker cannot be restarted after a failure.
///
/// # Errors
/// [`BrokerError`] when the address is in use.
pub fn start<F: Future<Output = ()> + Send>(
    settings: &BrokerSettings<'_>,
    notes: WorkerNotes,
    failed: impl FnOnce(BrokerError) -> F + Send + 'static,
) -> Result<EmbeddedBroker, BrokerError> {
    let listen = settings.listen;
    let error = move |why: std::io::Error| BrokerError { listen, why: why.to_string() };
    let listener: TcpListener =
        listen::bind(listen).and_then(tokio::net::TcpListener::into_std).map_err(error)?;
    let address = reachable(listen);
    let (credentials, observer_password) =
        BrokerCredentials::new(address, settings.allow_anonymous, notes).map_err(error)?;
    // The broker works without the file, for example on a full disk.
    if let Some(data_dir) = settings.data_dir
        && let Err(error) = observer_file::write(data_dir, address, &observer_password)
    {
        let data_dir = data_dir.display();
        warn!(%error, %data_dir, "cannot write observer-url; people cannot log in to the embedded broker");
    }
    let credentials = Arc::new(credentials);
    let messages = Arc::<WorkerMessages>::default();
    let supervisor = Supervisor {
        listener,
        address,
        prefix: settings.prefix.clone(),
        credentials: Arc::clone(&credentials),
        consumer: settings.consumer.clone(),
        messages: Arc::clone(&messages),
        times: ProbeTimes::default(),
        refusals: settings.refusals.clone(),
    };
    let instance = supervisor.start_instance().map_err(error)?;
    tokio::spawn(async move {
        let why = supervisor.run(instance).await;
        failed(error(why)).await;
    });
    Ok(EmbeddedBroker { credentials, messages })
}

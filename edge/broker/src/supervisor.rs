//! Probes the embedded broker over new connections, and replaces an instance that ended or does not
//! answer. Runs on the agent's threads, not on the broker's.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use neptune_program::listen::Refusals;
use neptune_wire::TopicPrefix;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use crate::{
    credentials::BrokerCredentials,
    encode::{connack, connect, disconnect},
    hub::{Consumer, Hub},
    listener::Instance,
    packet::{ConnectCode, Login},
    session::Shared,
    worker_messages::WorkerMessages,
};

/// Failed probes after which the instance is replaced.
const MAX_FAILED_PROBES: u32 = 2;
/// Attempts to start another instance, and the delay between them.
const MAX_START_ATTEMPTS: u32 = 30;
const START_DELAY: Duration = Duration::from_secs(1);

/// The times of probes. A broker that does not answer is replaced within 36 s.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTimes {
    pub interval: Duration,
    pub timeout: Duration,
}

impl Default for ProbeTimes {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(4) }
    }
}

/// Starts, probes and replaces instances of the broker.
pub struct Supervisor {
    /// Stays open while instances come and go, so that no other program gets the port.
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub prefix: TopicPrefix,
    pub credentials: Arc<BrokerCredentials>,
    /// Takes the workers' info messages in place of the agent's connection.
    pub consumer: Option<Consumer>,
    /// Takes the workers' info messages for the agent's connection if there is no `consumer`.
    pub messages: Arc<WorkerMessages>,
    pub times: ProbeTimes,
    /// Counts the connections that the broker refuses.
    pub refusals: Refusals,
}

/// What a probe shows.
#[derive(Debug, PartialEq, Eq)]
enum Probed {
    Works,
    /// The probe failed, but the broker accepts connections and delivers messages.
    Busy(String),
    Fails(String),
}

impl Supervisor {
    /// Starts an instance without connections and retained messages. The agent publishes these
    /// again when it reconnects.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub fn start_instance(&self) -> io::Result<Instance> {
        let (filter, messages) = (self.prefix.worker_info_filter(), Arc::clone(&self.messages));
        let hub = Hub::new(filter, self.consumer.clone(), messages);
        self.start_instance_with(Arc::new(hub))
    }

    pub(crate) fn start_instance_with(&self, hub: Arc<Hub>) -> io::Result<Instance> {
        let shared =
            Shared { hub, credentials: Arc::clone(&self.credentials), prefix: self.prefix.clone() };
        Instance::start(&self.listener, Arc::new(shared), &self.refusals)
    }

    /// Supervises the instance. Returns only if no other instance can be started.
    pub async fn run(self, mut instance: Instance) -> io::Error {
        let mut failed = 0;
        loop {
            let problem = tokio::select! {
                () = instance.ended() => "its thread ended".to_owned(),
                () = sleep(self.times.interval) => match self.check(&instance).await {
                    Probed::Works => {
                        failed = 0;
                        continue;
                    }
                    Probed::Busy(problem) => {
                        failed = 0;
                        warn!(
                            problem, address = %self.address,
                            "embedded broker is busy with other connections; it works and is not restarted"
                        );
                        continue;
                    }
                    Probed::Fails(problem) => {
                        failed += 1;
                        warn!(problem, failed, "embedded broker does not answer");
                        if failed < MAX_FAILED_PROBES {
                            continue;
                        }
                        problem
                    }
                },
            };
            failed = 0;
            error!(
                problem, address = %self.address,
                "embedded broker failed and is restarted; workers reconnect and repeat their counters"
            );
            instance.stop();
            instance = match self.replace().await {
                Ok(instance) => instance,
                Err(error) => return error,
            };
            info!(address = %self.address, "embedded broker restarted");
        }
    }

    async fn replace(&self) -> io::Result<Instance> {
        let mut attempts = 0;
        loop {
            match self.start_instance() {
                Ok(instance) => return Ok(instance),
                Err(error) if attempts >= MAX_START_ATTEMPTS => return Err(error),
                Err(error) => {
                    attempts += 1;
                    warn!(%error, attempts, "embedded broker cannot be restarted; retrying");
                    sleep(START_DELAY).await;
                }
            }
        }
    }

    /// Probes the instance. A connection that fails is no proof: a flood of other clients has the
    /// same effect.
    async fn check(&self, instance: &Instance) -> Probed {
        let turns = instance.turns();
        let ProbeError { problem, is_sent } = match self.probe().await {
            Ok(()) => return Probed::Works,
            Err(error) => error,
        };
        let is_accepting = !is_sent || instance.turns() > turns;
        if is_accepting && instance.is_responsive(self.times.timeout).await {
            Probed::Busy(problem)
        } else {
            Probed::Fails(problem)
        }
    }

    /// Logs in over a new connection.
    async fn probe(&self) -> Result<(), ProbeError> {
        let login = async {
            let connected = TcpStream::connect(self.address).await;
            let mut stream = connected.map_err(|error| ProbeError {
                // Others, such as too many open files, are of this process.
                is_sent: matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::TimedOut
                ),
                problem: error.to_string(),
            })?;
            log_in(&mut stream, &self.credentials.agent_login())
                .await
                .map_err(|error| ProbeError::sent(error.to_string()))
        };
        match timeout(self.times.timeout, login).await {
            Ok(Ok(answer)) if answer == *connack(ConnectCode::Accepted) => Ok(()),
            Ok(Ok(answer)) => Err(ProbeError::sent(format!("it answered {answer:?}"))),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let millis = self.times.timeout.as_millis();
                Err(ProbeError::sent(format!("no response within {millis} ms")))
            }
        }
    }
}

/// The failure of a probe.
struct ProbeError {
    problem: String,
    /// Whether the failure may be the broker's: the connection was tried.
    is_sent: bool,
}

impl ProbeError {
    fn sent(problem: String) -> Self {
        Self { problem, is_sent: true }
    }
}

async fn log_in(stream: &mut TcpStream, login: &Login) -> io::Result<[u8; 4]> {
    stream.write_all(&connect("neptune-probe", login)).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    stream.write_all(&disconnect()).await?;
    Ok(answer)
}

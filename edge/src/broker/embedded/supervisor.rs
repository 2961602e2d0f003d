//! Probes the embedded broker over new connections, and replaces an instance that ended or does not
//! answer. Runs on the agent's threads, not on the broker's.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use neptune_wire::TopicPrefix;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use super::{
    credentials::BrokerCredentials,
    encode::{connack, connect, disconnect},
    hub::{Consumer, Hub},
    listener::Instance,
    packet::ConnectCode,
    session::Shared,
};

/// Failed probes after which the instance is replaced.
const MAX_FAILED_PROBES: u32 = 2;
/// Attempts to start another instance, and the delay between them.
const MAX_START_ATTEMPTS: u32 = 30;
const START_DELAY: Duration = Duration::from_secs(1);

/// When to probe. A broker that does not answer is replaced within 28 s.
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
    pub times: ProbeTimes,
}

impl Supervisor {
    /// Starts an instance without connections and retained messages. The agent publishes these
    /// again when it reconnects.
    ///
    /// # Errors
    /// No file descriptor or thread is available.
    pub fn start_instance(&self) -> io::Result<Instance> {
        let hub = Hub::new(self.prefix.worker_info_filter(), self.consumer.clone());
        self.start_instance_with(Arc::new(hub))
    }

    pub(super) fn start_instance_with(&self, hub: Arc<Hub>) -> io::Result<Instance> {
        let shared =
            Shared { hub, credentials: Arc::clone(&self.credentials), prefix: self.prefix.clone() };
        Instance::start(&self.listener, Arc::new(shared))
    }

    /// Supervises the instance. Returns only if no other instance can be started.
    pub async fn run(self, mut instance: Instance) -> io::Error {
        let mut failed = 0;
        loop {
            let problem = tokio::select! {
                () = instance.ended() => "its thread ended".to_owned(),
                () = sleep(self.times.interval) => match self.probe().await {
                    Ok(()) => {
                        failed = 0;
                        continue;
                    }
                    Err(problem) => {
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

    /// Logs in over a new connection.
    async fn probe(&self) -> Result<(), String> {
        let probe = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let login = self.credentials.agent_login();
            stream.write_all(&connect("neptune-probe", &login)).await?;
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).await?;
            stream.write_all(&disconnect()).await?;
            io::Result::Ok(answer)
        };
        match timeout(self.times.timeout, probe).await {
            Ok(Ok(answer)) if answer == *connack(ConnectCode::Accepted) => Ok(()),
            Ok(Ok(answer)) => Err(format!("it answered {answer:?}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response within {} ms", self.times.timeout.as_millis())),
        }
    }
}

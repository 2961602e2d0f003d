//! Observes, creates, starts and removes containers. Containers without this node's labels are
//! never changed.

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bollard::{container::LogOutput, errors::Error as DockerError, query_parameters as query};
use futures::{StreamExt as _, stream};
use neptune_agent_core::domain::{
    broker_login::{BrokerLogin, PASSWORD_DIGEST},
    container::{ContainerSpec, NodeAddress, container_name},
    observed_container::{
        ContainerExit, ContainerIdentity, ContainerState, Observation, ObservedContainer,
        UndescribedContainer, VERSION,
    },
    outcome::StepOutcome,
    problem::Problem,
};
use neptune_wire::{NodeName, WorkerReason};
use tokio::time::timeout;

use crate::{
    create::{check, create_request},
    docker::{Docker, labels_of, status_code},
    inspect::{ContainerDetails, ContainerSummary, Lifecycle},
};

/// The end of a log: the number of its lines, and the maximum length in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogTail {
    pub lines: &'static str,
    pub max_bytes: usize,
}

/// What is read of the log of a worker that exited.
const WORKER_LOG: LogTail = LogTail { lines: "5", max_bytes: 600 };
/// Timeout of describing one container. A lock of the engine may make it wait indefinitely.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading a log. The engine's client limits only the head of the response.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Containers that are described at a time, so that one that hangs delays few.
const CONCURRENT: usize = 8;

impl Docker {
    /// The containers with this node's labels, also those that an agent with another data directory
    /// created. One that the engine cannot describe, or not in time, does not affect the others.
    ///
    /// # Errors
    /// The engine does not list its containers.
    pub async fn observe(&self, node: &NodeName) -> Result<Vec<Observation>, Problem> {
        let listed = self.socket().list(&labels_of(node)).await;
        let listed = listed.map_err(|error| self.problem(&error))?;
        let observed = listed.into_iter().map(|summary| self.observe_one(summary, node));
        let observed: Vec<Option<Observation>> =
            stream::iter(observed).buffered(CONCURRENT).collect().await;
        Ok(observed.into_iter().flatten().collect())
    }

    /// `None` if the container is not of this node, or does not exist any more.
    async fn observe_one(&self, summary: ContainerSummary, node: &NodeName) -> Option<Observation> {
        let is_stopped = summary.is_stopped();
        let mut labels = summary.labels.unwrap_or_default();
        let mut listed = ObservedContainer {
            id: summary.id,
            identity: ContainerIdentity::of(&labels, node)?,
            state: ContainerState::Unknown,
            started_at: String::new(),
            sources: Vec::new(),
            version: labels.remove(VERSION),
            password: labels.remove(PASSWORD_DIGEST).and_then(|text| text.parse().ok()),
        };
        let problem = match timeout(DESCRIBE_TIMEOUT, self.details(&listed.id)).await {
            Ok(Ok(details)) => return Some(Ok(self.described(listed, details?).await)),
            // Its data is damaged, as after a power failure. A new container is the remedy.
            Ok(Err(error)) if status_code(&error).is_some() && is_stopped => {
                listed.state = ContainerState::Unusable;
                return Some(Ok(listed));
            }
            Ok(Err(error)) => self.problem(&error).message,
            Err(_) => format!("no answer for {} s", DESCRIBE_TIMEOUT.as_secs()),
        };
        let id: String = listed.id.chars().take(12).collect();
        let problem = format!(
            "the engine does not describe container {id} ({problem}); it is asked again; if it \
             does not recover, remove the container (docker rm -f {id})"
        );
        Some(Err(Box::new(UndescribedContainer { listed, problem })))
    }

    /// `None` if the container does not exist any more.
    pub(crate) async fn details(&self, id: &str) -> Result<Option<ContainerDetails>, DockerError> {
        match self.socket().inspect(id).await {
            // Podman fails in the middle of a response if the container is removed meanwhile.
            Err(error) if status_code(&error).is_some() => self.socket().inspect(id).await,
            result => result,
        }
    }

    async fn described(
        &self,
        listed: ObservedContainer,
        details: ContainerDetails,
    ) -> ObservedContainer {
        let inspected = details.state;
        let state = match inspected.lifecycle() {
            Lifecycle::Running => ContainerState::Running,
            Lifecycle::Paused => ContainerState::Paused,
            Lifecycle::Removing => ContainerState::Removing,
            Lifecycle::Exited => ContainerState::Exited(ContainerExit {
                exit_code: inspected.exit_code,
                out_of_memory: inspected.oom_killed,
                log_tail: self.log_tail(&listed.id, WORKER_LOG).await,
            }),
            Lifecycle::Unusable => ContainerState::Unusable,
        };
        let mounts = details.mounts.unwrap_or_default();
        let sources = mounts.into_iter().filter_map(|mount| mount.source).collect();
        ObservedContainer { state, started_at: inspected.started_at, sources, ..listed }
    }

    /// The last lines of a log, as far as the engine sends them in time.
    pub(crate) async fn log_tail(&self, id: &str, tail: LogTail) -> String {
        if !self.reads_logs {
            return format!("not reported (--report-logs=false); run docker logs {id} on the node");
        }
        let mut text = String::new();
        // What was read before the timeout is used.
        let _ = timeout(LOG_TIMEOUT, self.read_log(id, tail, &mut text)).await;
        let visible = text
            .trim()
            .chars()
            .map(|c| if c == '\n' { '|' } else { c })
            .filter(|c| !c.is_control());
        visible.collect()
    }

    async fn read_log(&self, id: &str, tail: LogTail, text: &mut String) {
        let options =
            query::LogsOptionsBuilder::new().stdout(true).stderr(true).tail(tail.lines).build();
        let Ok(client) = self.client() else { return };
        let mut lines = std::pin::pin!(client.logs(id, Some(options)));
        while let Some(Ok(line)) = lines.next().await {
            let (LogOutput::StdErr { message }
            | LogOutput::StdOut { message }
            | LogOutput::Console { message }) = line
            else {
                continue;
            };
            text.push_str(&String::from_utf8_lossy(&message));
            // One line may be longer than the maximum: keep its end.
            let excess = text.len().saturating_sub(tail.max_bytes);
            if excess > 0 {
                text.drain(..text.ceil_char_boundary(excess));
            }
        }
    }

    /// Removes the containers of these IDs, then creates and starts one. The image and the mounted
    /// paths must exist. `login`: of a worker at the embedded broker.
    pub async fn start(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> StepOutcome {
        if let Err(problem) = check(spec) {
            return StepOutcome::Failed(problem);
        }
        match self.replace(identity, (spec, login), remove).await {
            Ok(outcome) => outcome,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    async fn replace(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> Result<StepOutcome, DockerError> {
        let client = self.client()?;
        // First: the container before may have the same port.
        self.remove_all(remove).await?;
        let addresses = spec.node_addresses();
        if let Some(taken) = addresses.iter().find(|it| is_taken(it.address)) {
            return Ok(StepOutcome::Failed(port_taken(*taken)));
        }
        let name = container_name(&identity.node, &identity.worker);
        let create = async || {
            let options = query::CreateContainerOptionsBuilder::new().name(&name).build();
            client.create_container(Some(options), create_request(identity, spec, login)).await
        };
        let mut created = create().await;
        // Docker returns 409; Podman returns 500 for every error.
        if let Err(error) = &created
            && status_code(error).is_some()
            && self.details(&name).await?.is_some()
        {
            let unobserved = self.of_this_agent(identity).await?;
            if unobserved.is_empty() {
                return Ok(StepOutcome::Failed(name_taken(&name)));
            }
            self.remove_all(&unobserved).await?;
            created = create().await;
        }
        let created = created?;
        client.start_container(&created.id, None::<query::StartContainerOptions>).await?;
        Ok(StepOutcome::Started { id: created.id })
    }

    /// The containers of this worker that this agent created. A process of it that was killed may
    /// have left a request, which the engine finishes after the containers were observed.
    async fn of_this_agent(&self, own: &ContainerIdentity) -> Result<Vec<String>, DockerError> {
        let listed = self.socket().list(&labels_of(&own.node)).await?;
        let is_own = |labels: HashMap<String, String>| {
            let identity = ContainerIdentity::of(&labels, &own.node);
            identity.is_some_and(|it| it.worker == own.worker && it.instance == own.instance)
        };
        let own = listed
            .into_iter()
            .filter_map(|summary| summary.labels.is_some_and(is_own).then_some(summary.id));
        Ok(own.collect())
    }

    /// Stops and removes the containers of these IDs. A container that does not exist counts as
    /// removed.
    pub async fn remove(&self, ids: &[String]) -> StepOutcome {
        match self.remove_all(ids).await {
            Ok(()) => StepOutcome::Removed,
            Err(error) => StepOutcome::Failed(self.problem(&error)),
        }
    }

    pub(crate) async fn remove_all(&self, ids: &[String]) -> Result<(), DockerError> {
        let client = self.client()?;
        for id in ids {
            // Uses the container's stop timeout, or 10 s. An error of the engine is ignored here:
            // the forced removal below succeeds or returns it again.
            let stopped = client.stop_container(id, None::<query::StopContainerOptions>).await;
            if let Err(error) = stopped
                && status_code(&error).is_none()
            {
                return Err(error);
            }
            let force = query::RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let removed = client.remove_container(id, Some(force)).await;
            match removed {
                // 404, 409: another client removed it, or is removing it. Podman returns 500 for
                // that.
                Err(error) if matches!(status_code(&error), Some(404 | 409)) => {}
                Err(error)
                    if status_code(&error).is_some() && self.details(id).await?.is_none() => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// Whether a program of the node keeps others from listening on this address. If that cannot be
/// seen, the worker tries.
fn is_taken(address: SocketAddr) -> bool {
    let bound = TcpListener::bind(address);
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

fn port_taken(NodeAddress { address, program, remedy }: NodeAddress) -> Problem {
    let port = address.port();
    Problem {
        reason: WorkerReason::PortInUse,
        message: format!(
            "port {port} of the node, on which the {program} has to listen, is in use by another program; end that program (ss -ltnp 'sport = {port}' names it), or {remedy}; the {program} starts by itself when the port is free"
        ),
    }
}

fn name_taken(name: &str) -> Problem {
    Problem {
        reason: WorkerReason::ContainerRefused,
        message: format!(
            "container {name} already exists and was not created by this node's agent; remove it (docker rm {name}) or rename it (docker rename {name} OTHER)"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Mutex;

    use neptune_agent_core::{
        desired::WantedWorker,
        fixtures::{container_identity, node_context, wanted_gateway, wanted_worker},
        worker::{container::resolve_worker, inputs::WorkerInputs},
    };
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{UnixListener, UnixStream},
    };

    use super::*;

    /// What the engine answers to a request; `None`: nothing.
    type Answers = fn(&str) -> Option<(u16, serde_json::Value)>;

    /// Answers each request on a connection of its own.
    async fn serve(mut stream: UnixStream, answers: Answers) {
        let mut request = vec![0; 64 * 1024];
        let read = stream.read(&mut request).await.unwrap();
        let line = String::from_utf8_lossy(&request[..read]);
        let path = line.split(' ').nth(1).unwrap_or_default();
        let Some((status, body)) = answers(path) else { return std::future::pending().await };
        let body = body.to_string();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    /// An engine with these answers, as long as the directory of its socket exists and the test runs.
    fn engine(answers: Answers) -> (Docker, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, answers));
            }
        });
        (Docker::new(&socket), directory)
    }

    /// The containers that an engine with these answers shows, by ID.
    async fn observed(answers: Answers, reads_logs: bool) -> HashMap<String, Observation> {
        let (docker, _directory) = engine(answers);
        let docker = docker.with_logs(reads_logs);
        let observed = docker.observe(&container_identity().node).await.unwrap();
        let id = |one: &Observation| match one {
            Ok(container) => container.id.clone(),
            Err(undescribed) => undescribed.listed.id.clone(),
        };
        observed.into_iter().map(|one| (id(&one), one)).collect()
    }

    fn listed<const N: usize>(containers: [(&str, &str); N]) -> serde_json::Value {
        let labels = container_identity().labels();
        let one = |(id, state)| json!({"Id": id, "State": state, "Labels": labels});
        containers.map(one).into_iter().collect()
    }

    #[tokio::test]
    async fn container_that_cannot_be_described_does_not_hide_the_others() {
        let answers: Answers = |path| {
            let state = |status: &str| json!({"State": {"Status": status}});
            let damaged = json!({"message": "getting graph driver info: layer not known"});
            if path.contains("/containers/json") {
                let all = [
                    ("hangs", "running"),
                    ("damaged", "exited"),
                    ("refused", "running"),
                    ("silent-log", "exited"),
                    ("healthy", "running"),
                ];
                return Some((200, listed(all)));
            }
            match path.split('/').rev().nth(1)? {
                "damaged" | "refused" => Some((500, damaged)),
                "silent-log" if path.ends_with("/json") => Some((200, state("exited"))),
                "healthy" => Some((200, state("running"))),
                _ => None,
            }
        };
        let observed = observed(answers, true).await;
        assert_eq!(observed.len(), 5);
        let state = |id: &str| observed[id].as_ref().unwrap().state.clone();
        assert_eq!(state("healthy"), ContainerState::Running);
        assert_eq!(state("damaged"), ContainerState::Unusable, "a new one is the remedy");
        assert!(
            matches!(state("silent-log"), ContainerState::Exited(exit) if exit.log_tail.is_empty())
        );
        for (id, why) in [("hangs", "no answer for 5 s"), ("refused", "layer not known")] {
            let undescribed = observed[id].as_ref().unwrap_err();
            assert_eq!(undescribed.listed.identity, container_identity());
            let text = &undescribed.problem;
            assert!(text.contains(why) && text.contains(&format!("docker rm -f {id}")), "{text}");
        }
    }

    /// What comes of a start, after the removal of these containers.
    async fn outcome(docker: &Docker, spec: &ContainerSpec, remove: &[String]) -> Problem {
        match docker.start(&container_identity(), (spec, None), remove).await {
            StepOutcome::Failed(problem) => problem,
            other => unreachable!("no engine answers: {other:?}"),
        }
    }

    fn spec(wanted: &WantedWorker, variable: &str, value: &str) -> ContainerSpec {
        let inputs = WorkerInputs::default();
        let mut spec = resolve_worker(wanted, inputs, &node_context()).container.spec;
        spec.env.insert(variable.to_owned(), value.to_owned());
        spec
    }

    #[tokio::test]
    async fn port_that_another_program_has_is_named_and_no_container_is_made() {
        let (docker, _directory) = engine(|_| Some((500, json!({"message": "asked"}))));
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let gateway = |addresses: &str| spec(&wanted_gateway(), "GATEWAY_ADDRESSES", addresses);
        let specs = [
            ("another node", spec(&wanted_worker(), "BIG_MODEL_BIND_PORT", &port.to_string())),
            ("spec.gateway.port", gateway(&format!("127.0.0.1:{port}"))),
            ("spec.gateway.port", gateway(&format!("0.0.0.0:{port}"))),
            ("spec.gateway.grpcPort", gateway(&format!("127.0.0.1:0,127.0.0.1:{port}"))),
        ];
        for (remedy, spec) in &specs {
            let Problem { reason, message } = outcome(&docker, spec, &[]).await;
            assert_eq!(reason, WorkerReason::PortInUse);
            assert!(message.starts_with(&format!("port {port} of the node")), "{message}");
            assert!(message.contains(remedy), "{message}");
        }
        drop(taken);
        for (_, spec) in &specs {
            let message = outcome(&docker, spec, &[]).await.message;
            assert!(message.contains("asked"), "the engine is asked: {message}");
        }
    }

    #[tokio::test]
    async fn gateway_shares_a_port_with_a_program_on_another_address() {
        let (docker, _directory) = engine(|_| Some((500, json!({"message": "asked"}))));
        let other = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let problem = async |address: &str| {
            let spec = spec(&wanted_gateway(), "GATEWAY_ADDRESSES", &format!("{address}:{port}"));
            outcome(&docker, &spec, &[]).await
        };
        assert!(problem("127.0.0.1").await.message.contains("asked"));
        assert_eq!(problem("0.0.0.0").await.reason, WorkerReason::PortInUse, "an exposed one");
    }

    /// The port of the container that is replaced; it is free when that is removed.
    static OF_THE_CONTAINER_BEFORE: Mutex<Option<TcpListener>> = Mutex::new(None);

    #[tokio::test]
    async fn port_of_the_container_that_is_replaced_is_free() {
        let (docker, _directory) = engine(|path| {
            if path.contains("/containers/before") {
                OF_THE_CONTAINER_BEFORE.lock().unwrap().take();
                return Some((204, json!(null)));
            }
            Some((500, json!({"message": "asked"})))
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        OF_THE_CONTAINER_BEFORE.lock().unwrap().replace(listener);
        let spec = spec(&wanted_gateway(), "GATEWAY_ADDRESSES", &address);
        let reason = outcome(&docker, &spec, &[]).await.reason;
        assert_eq!(reason, WorkerReason::PortInUse, "it is not removed");
        let message = outcome(&docker, &spec, &["before".to_owned()]).await.message;
        assert!(message.contains("asked"), "{message}");
    }

    #[tokio::test]
    async fn log_stays_on_the_node_if_it_is_not_to_be_reported() {
        let answers: Answers = |path| {
            let log = path.contains("/logs").then(|| json!("a name of a patient"));
            let list = || listed([("failed", "exited")]);
            let details = || json!({"State": {"Status": "exited", "ExitCode": 1}});
            let body = log.unwrap_or_else(|| {
                if path.contains("/containers/json") { list() } else { details() }
            });
            Some((200, body))
        };
        let observed = observed(answers, false).await;
        let ContainerState::Exited(exit) = &observed["failed"].as_ref().unwrap().state else {
            unreachable!("{observed:?}")
        };
        let expected = "not reported (--report-logs=false); run docker logs failed on the node";
        assert_eq!(exit.log_tail, expected);
    }
}

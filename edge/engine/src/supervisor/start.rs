//! Creates and starts the container of a worker or a model server, in place of others.

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bollard::{
    errors::Error as DockerError, models::ContainerCreateBody, query_parameters as query,
};
use neptune_agent_core::domain::{
    broker_login::BrokerLogin,
    container::{ContainerSpec, NodeAddress, container_name},
    observed_container::ContainerIdentity,
    problem::Problem,
};
use neptune_wire::WorkerReason;

use super::{Supervisor, devices::refused_devices};
use crate::{
    create::{check, create_request},
    docker::{labels_of, status_code},
};

/// How often a name is tried that an unfinished request has, which a process that was killed may have
/// left; 30 s in all.
const RESERVED_PAUSES: u32 = 150;
/// The pause before each attempt.
const RESERVED_PAUSE: Duration = Duration::from_millis(200);

impl Supervisor {
    /// Removes the containers of these IDs, then creates and starts one. The image and the mounted
    /// paths must exist. `login`: of a worker at the embedded broker. Returns the ID of the container.
    ///
    /// # Errors
    /// The engine does not answer, or refuses; or a port of the node is taken.
    pub async fn start(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> Result<String, Problem> {
        check(spec)?;
        self.check_engine(&spec.units).await?;
        let replaced = self.replace(identity, (spec, login), remove).await;
        replaced.map_err(|error| self.docker.problem(&error))?
    }

    async fn replace(
        &self,
        identity: &ContainerIdentity,
        (spec, login): (&ContainerSpec, Option<&BrokerLogin>),
        remove: &[String],
    ) -> Result<Result<String, Problem>, DockerError> {
        // First: the container before may have the same port.
        self.remove_all(remove).await?;
        let addresses = spec.node_addresses();
        if let Some(taken) = addresses.iter().find(|it| is_taken(it.address)) {
            return Ok(Err(port_taken(*taken)));
        }
        if let Err(problem) = self.provide_volumes(identity, spec).await? {
            return Ok(Err(problem));
        }
        let name = container_name(&identity.node, &identity.worker);
        let body = create_request(identity, spec, login);
        let created = match self.create_in_place(&name, identity, body).await {
            Ok(Ok(id)) => {
                self.start_with_devices(id, (spec, &identity.owner), &identity.node).await
            }
            Ok(Err(problem)) => return Ok(Err(problem)),
            Err(error) => Err(error),
        };
        match created {
            Err(error) => match refused_devices(&error, &spec.units, &identity.node) {
                Some(problem) => Ok(Err(problem)),
                None => Err(error),
            },
            started => started,
        }
    }

    /// Creates a container in place of one that this agent created and did not observe. Returns its ID,
    /// or that another program has the name. Waits while an unfinished request has the name.
    pub(super) async fn create_in_place(
        &self,
        name: &str,
        identity: &ContainerIdentity,
        body: ContainerCreateBody,
    ) -> Result<Result<String, Problem>, DockerError> {
        let mut pauses = 0;
        loop {
            let error = match self.create(name, body.clone()).await {
                Ok(id) => return Ok(Ok(id)),
                Err(error) => error,
            };
            // Docker returns 409; Podman returns 500 for every error.
            let Some(status) = status_code(&error) else { return Err(error) };
            if self.docker.details(name).await?.is_some() {
                let unobserved = self.of_this_agent(identity).await?;
                if unobserved.is_empty() {
                    return Ok(Err(name_taken(name)));
                }
                self.remove_all(&unobserved).await?;
                return self.create(name, body).await.map(Ok);
            }
            // Docker reserves a name before it shows the container, and longer on a slow disk.
            if status != 409 || pauses == RESERVED_PAUSES {
                return Err(error);
            }
            pauses += 1;
            tokio::time::sleep(RESERVED_PAUSE).await;
        }
    }

    /// The containers of this worker that this agent created. A process of it that was killed may
    /// have left a request, which the engine finishes after the containers were observed.
    async fn of_this_agent(&self, own: &ContainerIdentity) -> Result<Vec<String>, DockerError> {
        let listed = self.docker.socket().list(&labels_of(&own.node)).await?;
        let is_own = |labels: HashMap<String, String>| {
            let identity = ContainerIdentity::from_labels(&labels, &own.node);
            identity.is_some_and(|it| it.worker == own.worker && it.instance == own.instance)
        };
        let own = listed
            .into_iter()
            .filter_map(|summary| summary.labels.is_some_and(is_own).then_some(summary.id));
        Ok(own.collect())
    }

    /// Creates a container of this name. Returns its ID.
    pub(super) async fn create(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<String, DockerError> {
        let options = query::CreateContainerOptionsBuilder::new().name(name).build();
        Ok(self.docker.client()?.create_container(Some(options), body).await?.id)
    }

    /// Starts a created container. Returns its ID.
    pub(super) async fn start_created(&self, id: String) -> Result<String, DockerError> {
        let options = None::<query::StartContainerOptions>;
        self.docker.client()?.start_container(&id, options).await?;
        Ok(id)
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
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    };

    use neptune_agent_core::{
        desired::WantedWorker,
        fixtures::{container_identity, node_context, wanted_gateway, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
    };
    use serde_json::json;

    use super::*;
    use crate::tests::fake_engine::{Answers, engine};

    fn supervisor(answers: Answers) -> (Supervisor, tempfile::TempDir) {
        let (docker, directory) = engine(answers);
        (Supervisor::new(Arc::new(docker)), directory)
    }

    /// What comes of a start, after the removal of these containers.
    async fn outcome(own: &Supervisor, spec: &ContainerSpec, remove: &[String]) -> Problem {
        own.start(&container_identity(), (spec, None), remove).await.unwrap_err()
    }

    fn spec(wanted: &WantedWorker, variable: &str, value: &str) -> ContainerSpec {
        let inputs = WorkerInputs::default();
        let mut spec = resolve_worker(wanted, inputs, &node_context()).container.spec;
        spec.env.insert(variable.to_owned(), value.to_owned());
        spec
    }

    #[tokio::test]
    async fn port_that_another_program_has_is_named_and_no_container_is_made() {
        let (supervisor, _directory) = supervisor(|_| Some((500, json!({"message": "asked"}))));
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
            let Problem { reason, message } = outcome(&supervisor, spec, &[]).await;
            assert_eq!(reason, WorkerReason::PortInUse);
            assert!(message.starts_with(&format!("port {port} of the node")), "{message}");
            assert!(message.contains(remedy), "{message}");
        }
        drop(taken);
        for (_, spec) in &specs {
            let message = outcome(&supervisor, spec, &[]).await.message;
            assert!(message.contains("asked"), "the engine is asked: {message}");
        }
    }

    #[tokio::test]
    async fn gateway_shares_a_port_with_a_program_on_another_address() {
        let (supervisor, _directory) = supervisor(|_| Some((500, json!({"message": "asked"}))));
        let other = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let problem = async |address: &str| {
            let spec = spec(&wanted_gateway(), "GATEWAY_ADDRESSES", &format!("{address}:{port}"));
            outcome(&supervisor, &spec, &[]).await
        };
        assert!(problem("127.0.0.1").await.message.contains("asked"));
        assert_eq!(problem("0.0.0.0").await.reason, WorkerReason::PortInUse, "an exposed one");
    }

    /// How often the creation of a container was requested.
    static CREATIONS: AtomicU32 = AtomicU32::new(0);

    #[tokio::test]
    async fn name_that_an_unfinished_request_has_is_waited_for() {
        let (supervisor, _directory) = supervisor(|path| {
            let no_such = json!({"message": "No such container"});
            Some(match path {
                _ if path.contains("/containers/create") => {
                    match CREATIONS.fetch_add(1, Ordering::Relaxed) {
                        0..3 => (409, json!({"message": "the name is already in use"})),
                        _ => (201, json!({"Id": "c1", "Warnings": []})),
                    }
                }
                _ if path.contains("/start") => (204, json!(null)),
                _ => (404, no_such),
            })
        });
        let spec = spec(&wanted_worker(), "A", "b");
        let started = supervisor.start(&container_identity(), (&spec, None), &[]).await;
        assert_eq!(started.unwrap(), "c1");
        assert_eq!(CREATIONS.load(Ordering::Relaxed), 4);
    }

    /// The port of the container that is replaced; it is free when that is removed.
    static OF_THE_CONTAINER_BEFORE: Mutex<Option<TcpListener>> = Mutex::new(None);

    #[tokio::test]
    async fn port_of_the_container_that_is_replaced_is_free() {
        let (supervisor, _directory) = supervisor(|path| {
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
        let reason = outcome(&supervisor, &spec, &[]).await.reason;
        assert_eq!(reason, WorkerReason::PortInUse, "it is not removed");
        let message = outcome(&supervisor, &spec, &["before".to_owned()]).await.message;
        assert!(message.contains("asked"), "{message}");
    }
}

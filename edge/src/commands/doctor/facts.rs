//! The facts that the doctor collects about a node. `assess.rs` decides what they mean.

use std::{
    fmt::{self, Display, Formatter},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use jiff::Timestamp;
use neptune_agent_core::devices::{engine_support, offered::OfferedUnit};
use neptune_wire::NodeProblem;

pub use neptune_edge_engine::networks::Network;

/// The result of a check, or why the check failed.
pub type Checked<T> = Result<T, String>;

/// All facts, except the settings themselves.
#[derive(Debug, Clone)]
pub struct DoctorFacts {
    pub now: Timestamp,
    pub node: String,
    /// The user ID of the doctor. Should be that of the agent.
    pub user: u32,
    pub engine: EngineFacts,
    /// The file of `--registry-config`; `None` without one.
    pub registries: Option<RegistryFacts>,
    /// The network of `--worker-network`; `None` for the node's network.
    pub network: Option<NetworkFacts>,
    /// What containers may request; `None` without `--allow-device`.
    pub devices: Option<DeviceFacts>,
    /// The directories of `--allow-volume-dir`.
    pub volumes: Vec<VolumeDirFacts>,
    pub data: DataDirFacts,
    pub disk: Checked<DiskFacts>,
    /// The pin of the node's key; `None` before the agent's first start.
    pub key_pin: Checked<Option<String>>,
    /// The name of the seal key; `None` before the agent's first start.
    pub seal_key: Checked<Option<String>>,
    pub runtime_dir: RuntimeDirFacts,
    pub local: LocalBrokerFacts,
    /// Whether models are not shared although `--peers` is given.
    pub withholds_models: bool,
    /// `None` if other nodes cannot fetch from this one.
    pub peers: Option<PeerListenFacts>,
    pub downloads: DownloadFacts,
    pub cloud: CloudLinkFacts,
    /// Whether the machine's clock is synchronized; `None` if unknown.
    pub is_synchronized: Option<bool>,
    pub cloud_workers: Vec<CloudWorkerFacts>,
    pub edge_mesh: EdgeMeshFacts,
    pub secrets: SecretDirFacts,
    /// The name servers that containers use in place of this machine's resolver.
    pub name_servers: Vec<IpAddr>,
    pub certificates: Vec<CertificateFile>,
}

/// The Docker engine, or Podman with Docker's API.
#[derive(Debug, Clone)]
pub struct EngineFacts {
    pub socket: PathBuf,
    /// Name and version of the engine.
    pub version: Checked<String>,
}

/// The Docker network of the containers.
#[derive(Debug, Clone)]
pub struct NetworkFacts {
    pub name: String,
    /// The address of the embedded broker; `None` for another broker.
    pub listen: Option<SocketAddr>,
    /// `None` if it does not exist.
    pub state: Checked<Option<Network>>,
}

/// The devices that the node offers.
#[derive(Debug, Clone)]
pub struct DeviceFacts {
    pub units: Checked<Vec<OfferedUnit>>,
    /// What the engine states of itself; `None` if only device nodes are offered.
    pub engine: Option<Checked<engine_support::EngineFacts>>,
}

/// A directory that workers may mount.
#[derive(Debug, Clone)]
pub struct VolumeDirFacts {
    pub path: PathBuf,
    /// Its file system, or why it cannot be used.
    pub disk: Checked<DiskFacts>,
}

/// The directory of `--runtime-dir`.
#[derive(Debug, Clone)]
pub struct RuntimeDirFacts {
    pub path: PathBuf,
    /// `None` if it does not exist; an error if it cannot be used.
    pub state: Checked<Option<RuntimeDir>>,
}

/// A directory for files of Secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeDir {
    /// The permission bits of the directory.
    pub mode: u32,
    pub is_in_memory: bool,
}

/// The address of `--peers-listen`.
#[derive(Debug, Clone)]
pub struct PeerListenFacts {
    pub listen: SocketAddr,
    /// Whether a program listens there; an error if none can.
    pub state: Checked<bool>,
}

/// The settings of downloads.
#[derive(Debug, Clone, Default)]
pub struct DownloadFacts {
    /// The proxy, without its password; `None` without one.
    pub proxy: Option<String>,
    /// The hours of downloads, and the local time with its zone; `None` without hours.
    pub window: Option<(String, String)>,
}

/// The file with the credentials for registries.
#[derive(Debug, Clone)]
pub struct RegistryFacts {
    pub path: PathBuf,
    /// The number of its registries, and its permission bits.
    pub state: Checked<(usize, u32)>,
}

/// The directory with the secrets of gateways.
#[derive(Debug, Clone)]
pub struct SecretDirFacts {
    pub path: PathBuf,
    /// `None` if it does not exist.
    pub state: Checked<Option<SecretDir>>,
    /// What the stored services need.
    pub needed: Vec<NeededSecret>,
}

/// A directory of secrets that exists.
#[derive(Debug, Clone)]
pub struct SecretDir {
    pub access: SecretAccess,
    pub files: Vec<SecretFile>,
}

#[derive(Debug, Clone)]
pub struct SecretFile {
    pub name: String,
    pub access: SecretAccess,
    /// Whether the doctor can read it.
    pub is_readable: bool,
}

/// The owner and the permission bits of a file or directory.
#[derive(Debug, Clone, Copy)]
pub struct SecretAccess {
    pub owner: u32,
    pub mode: u32,
}

/// A secret that a service needs.
#[derive(Debug, Clone)]
pub struct NeededSecret {
    pub name: String,
    pub used_by: String,
    /// What is wrong with it, with the remedy.
    pub problem: Option<String>,
}

/// The state of the agent's data directory.
#[derive(Debug, Clone)]
pub struct DataDirFacts {
    pub path: PathBuf,
    pub state: Checked<DataState>,
}

#[derive(Debug, Clone)]
pub enum DataState {
    /// It does not exist. The agent creates it at its start, if the parent directory is writable.
    Absent { can_create: Checked<()> },
    Present {
        owner: u32,
        /// Whether a file could be created and removed.
        can_write: Checked<()>,
        /// Whether an agent has locked the directory.
        is_in_use: bool,
        database: DatabaseState,
    },
}

#[derive(Debug, Clone)]
pub enum DatabaseState {
    /// No agent has used the directory yet.
    Absent,
    Valid {
        objects: usize,
        /// Time of the last write to the database file.
        written: Option<Timestamp>,
        /// What the running agent reports about the node.
        problems: Vec<NodeProblem>,
    },
    Invalid(String),
}

/// The file system of the data directory, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct DiskFacts {
    pub free: u64,
    pub size: u64,
    /// What downloads must leave free.
    pub reserve: u64,
}

/// The broker of this node's workers.
#[derive(Debug, Clone)]
pub struct LocalBrokerFacts {
    /// URL of the broker without the password.
    pub url: String,
    pub access: LocalBrokerAccess,
    pub answer: LocalBrokerAnswer,
}

/// How the broker of this node's workers identifies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalBrokerAccess {
    /// The embedded broker, with a login per worker.
    LoginPerWorker,
    /// The embedded broker, which also accepts workers without a login.
    Anonymous,
    /// Another broker, with one URL for all workers.
    Shared,
}

#[derive(Debug, Clone)]
pub enum LocalBrokerAnswer {
    /// A broker, to which the doctor connected.
    Connected(Checked<()>),
    /// The agent's embedded broker while no agent runs: whether its address is free.
    Free(bool),
}

/// The connection to the controller's broker.
#[derive(Debug, Clone)]
pub struct CloudLinkFacts {
    /// URL of the broker without the password.
    pub url: String,
    /// The topic filter that was subscribed to, the same as the agent's.
    pub filter: String,
    /// Whether that is the node's broker behind `EventBus`, beyond which nothing can be checked.
    pub is_by_event_bus: bool,
    pub answer: Checked<()>,
}

/// The host of a cloud that workers or gateways of this node use, or a host that the user gave.
#[derive(Debug, Clone)]
pub struct CloudWorkerFacts {
    pub host: String,
    /// The object of the worker, or the flag.
    pub used_by: String,
    /// The addresses as its container sees them: of a host entry, or of a name server.
    pub addresses: Checked<Vec<IpAddr>>,
    /// Whether it is a Service of the cluster.
    pub is_service: bool,
    /// What `EdgeMesh`'s name server answers for the name of a host entry; `None` if it was not
    /// asked.
    pub name: Option<NameAnswer>,
    /// `None` if the host has no address, or its port is not known.
    pub call: Option<CallFacts>,
}

/// The protocol with which a cloud is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Http,
    Https,
    Grpc,
    /// gRPC over TLS, of which only the connection is checked.
    GrpcTls,
}

/// A request of the doctor to a cloud.
#[derive(Debug, Clone)]
pub struct CallFacts {
    pub address: SocketAddr,
    pub result: Result<Answer, CallError>,
    pub took: Duration,
}

/// How a call succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The cloud answered with this HTTP status.
    Http(u16),
    Grpc,
    /// The connection was accepted.
    Connected,
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    Refused,
    /// Nothing accepted or refused the connection in time.
    ConnectTimeout,
    NoRoute,
    /// The connection was accepted, and closed or reset before an answer.
    Closed,
    /// The connection was accepted, and nothing was answered.
    Silent,
    NotHttp,
    NotGrpc,
    /// The TLS handshake failed.
    Tls(String),
    Other(String),
}

/// What a name server answers for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameAnswer {
    Addresses(Vec<IpAddr>),
    /// The name, or an address of it, does not exist.
    Unknown,
    /// The name server answered with this response code, such as 2 for SERVFAIL.
    Failed(u8),
    /// The name server answered nothing within 2 s.
    Silent,
    /// Nothing listens at the address of the name server.
    Refused,
    Error(String),
}

impl NameAnswer {
    /// Whether a name server answered, also that the name does not exist.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Addresses(_) | Self::Unknown | Self::Failed(_))
    }
}

impl Display for NameAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addresses(addresses) => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "answers {}", addresses.join(", "))
            }
            Self::Unknown => f.write_str("does not know the name"),
            Self::Failed(code) => write!(f, "answers with the error code {code}"),
            Self::Silent => f.write_str("does not answer within 2 s"),
            Self::Refused => f.write_str("refuses the query: no program listens there"),
            Self::Error(why) => write!(f, "cannot be asked: {why}"),
        }
    }
}

/// `EdgeMesh` on this node.
#[derive(Debug, Clone)]
pub struct EdgeMeshFacts {
    /// Whether this machine has the address 169.254.96.16, which is that of `edgemesh0`.
    pub has_interface: bool,
    /// What its name server answers for a name that every cluster has.
    pub dns: NameAnswer,
    /// The `ClusterIP`s to which this machine has no route.
    pub unroutable: Vec<IpAddr>,
}

/// A PEM file with certificates.
#[derive(Debug, Clone)]
pub struct CertificateFile {
    pub flag: &'static str,
    pub path: PathBuf,
    pub certificates: Checked<Vec<CertificateFacts>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    pub subject: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

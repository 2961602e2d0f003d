//! The facts of a node that the doctor inspects. Nothing is assessed here.

use std::{net::IpAddr, path::PathBuf};

use jiff::Timestamp;

/// What was seen; or why it could not be.
pub type Checked<T> = Result<T, String>;

/// All that is looked at, beside the settings themselves.
#[derive(Debug, Clone)]
pub struct DoctorFacts {
    pub now: Timestamp,
    pub node: String,
    /// The user that looks; that of the agent, if it was asked rightly.
    pub user: u32,
    pub engine: EngineFacts,
    pub data: DataDirFacts,
    pub disk: Checked<DiskFacts>,
    pub local: LocalBrokerFacts,
    pub cloud: CloudLinkFacts,
    /// What the machine says of its own clock; nothing where it says nothing.
    pub is_synchronized: Option<bool>,
    pub names: Vec<HostLookup>,
    /// Whom containers ask in place of this machine's resolver.
    pub name_servers: Vec<IpAddr>,
    pub certificates: Vec<CertificateFile>,
}

/// The Docker engine, or what speaks as one.
#[derive(Debug, Clone)]
pub struct EngineFacts {
    pub socket: PathBuf,
    /// Its name and version.
    pub version: Checked<String>,
}

/// Where the agent keeps what lasts.
#[derive(Debug, Clone)]
pub struct DataDirFacts {
    pub path: PathBuf,
    pub state: Checked<DataState>,
}

#[derive(Debug, Clone)]
pub enum DataState {
    /// The agent makes it at its start, if the directory above lets it.
    Absent { can_be_made: Checked<()> },
    /// It is there.
    Present {
        owner: u32,
        /// Whether a file could be made and removed.
        written: Checked<()>,
        /// Whether an agent holds its lock.
        is_in_use: bool,
        database: Database,
    },
}

#[derive(Debug, Clone)]
pub enum Database {
    /// No agent has started here yet.
    Absent,
    Whole {
        objects: usize,
        /// When it was last written.
        written: Option<Timestamp>,
    },
    Unusable(String),
}

/// The file system of the data directory, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct DiskFacts {
    pub free: u64,
    pub size: u64,
    /// What downloads leave free.
    pub reserve: u64,
}

/// The broker of this node's workers.
#[derive(Debug, Clone)]
pub struct LocalBrokerFacts {
    /// Without a password.
    pub url: String,
    pub answer: LocalBrokerAnswer,
}

#[derive(Debug, Clone)]
pub enum LocalBrokerAnswer {
    /// A broker, asked by MQTT.
    Probed(Checked<()>),
    /// It is the agent's own, and no agent runs here: whether its address is free.
    PortFree(bool),
}

/// The way to the controller.
#[derive(Debug, Clone)]
pub struct CloudLinkFacts {
    /// Without a password.
    pub url: String,
    /// What was listened to, as the agent does.
    pub filter: String,
    /// What else has to be at that broker cannot be seen.
    pub is_by_event_bus: bool,
    pub answer: Checked<()>,
}

/// A host that this node's workers, or the user, want to reach by name.
#[derive(Debug, Clone)]
pub struct HostLookup {
    pub host: String,
    /// Which object's worker, or the flag.
    pub referenced_by: String,
    pub addresses: Checked<Vec<IpAddr>>,
}

/// A file with certificates.
#[derive(Debug, Clone)]
pub struct CertificateFile {
    pub flag: &'static str,
    pub path: PathBuf,
    pub certificates: Checked<Vec<CertificateFacts>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    pub subject: String,
    pub from: Timestamp,
    pub to: Timestamp,
}

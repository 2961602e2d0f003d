//! What the doctor sees of a node. Nothing is judged here.

use std::{net::IpAddr, path::PathBuf};

use jiff::Timestamp;

/// What was seen; or why it could not be.
pub type Seen<T> = Result<T, String>;

/// All that is looked at, beside the settings themselves.
#[derive(Debug, Clone)]
pub struct Facts {
    pub now: Timestamp,
    pub node: String,
    /// The user that looks; that of the agent, if it was asked rightly.
    pub user: u32,
    pub engine: Engine,
    pub data: DataDir,
    pub disk: Seen<Disk>,
    pub local: Local,
    pub cloud: Cloud,
    /// What the machine says of its own clock; nothing where it says nothing.
    pub is_synchronized: Option<bool>,
    pub names: Vec<Name>,
    /// Whom containers ask in place of this machine's resolver.
    pub name_servers: Vec<IpAddr>,
    pub certificates: Vec<CertificateFile>,
}

/// The Docker engine, or what speaks as one.
#[derive(Debug, Clone)]
pub struct Engine {
    pub socket: PathBuf,
    /// Its name and version.
    pub version: Seen<String>,
}

/// Where the agent keeps what lasts.
#[derive(Debug, Clone)]
pub struct DataDir {
    pub path: PathBuf,
    pub state: Seen<DataState>,
}

#[derive(Debug, Clone)]
pub enum DataState {
    /// The agent makes it at its start, if the directory above lets it.
    Absent { can_be_made: Seen<()> },
    /// It is there.
    There {
        owner: u32,
        /// Whether a file could be made and removed.
        written: Seen<()>,
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
pub struct Disk {
    pub free: u64,
    pub size: u64,
    /// What downloads leave free.
    pub reserve: u64,
}

/// The broker of this node's workers.
#[derive(Debug, Clone)]
pub struct Local {
    /// Without a password.
    pub url: String,
    pub answer: LocalAnswer,
}

#[derive(Debug, Clone)]
pub enum LocalAnswer {
    /// A broker, asked by MQTT.
    Asked(Seen<()>),
    /// It is the agent's own, and no agent runs here: whether its address is free.
    Free(bool),
}

/// The way to the controller.
#[derive(Debug, Clone)]
pub struct Cloud {
    /// Without a password.
    pub url: String,
    /// What was listened to, as the agent does.
    pub filter: String,
    /// What else has to be at that broker cannot be seen.
    pub is_by_event_bus: bool,
    pub answer: Seen<()>,
}

/// A host that this node's workers, or the user, want to reach by name.
#[derive(Debug, Clone)]
pub struct Name {
    pub host: String,
    /// Which object's worker, or the flag.
    pub wanted_by: String,
    pub addresses: Seen<Vec<IpAddr>>,
}

/// A file with certificates.
#[derive(Debug, Clone)]
pub struct CertificateFile {
    pub flag: &'static str,
    pub path: PathBuf,
    pub certificates: Seen<Vec<Certificate>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub subject: String,
    pub from: Timestamp,
    pub to: Timestamp,
}

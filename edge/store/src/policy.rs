//! The settings of a store. Values only.

use std::{path::PathBuf, time::Duration};

use neptune_hub::HubEndpoint;

use crate::{AllowedAddress, ArchiveLimits, DownloadProxy, PeerFetch, RegistryLogins, S3Config};

/// What a store may fetch, and how much.
#[derive(Debug, Clone)]
pub struct StorePolicy {
    /// Exceptions from the refused addresses: loopback, link-local, metadata services, multicast,
    /// unspecified, reserved. Default: none.
    pub allowed_addresses: Vec<AllowedAddress>,
    /// Disk space to leave free, in bytes. Default: 512 MiB.
    pub reserve_bytes: u64,
    /// Limits for the content of one archive.
    pub archive_limits: ArchiveLimits,
    /// Directories of the node from which `file://` URLs and paths may read. Default: none.
    pub file_roots: Vec<PathBuf>,
    /// Endpoint and credentials for `s3://` URLs.
    pub s3: S3Config,
    /// The hub for `hf://` URLs. Default: the public one, without a token.
    pub hub: HubEndpoint,
    /// File with the token for the hub. Read for each download, so that it can be replaced.
    pub hub_token_file: Option<PathBuf>,
    /// The logins at registries for `oci://` URLs. Default: none.
    pub registry_logins: Option<RegistryLogins>,
    /// File with PEM certificates of authorities to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The proxy of downloads from servers. Default: none; the proxies of the environment are not
    /// used.
    pub proxy: Option<DownloadProxy>,
    /// A server that sends nothing for this time is considered unavailable. Does not limit the
    /// duration of a download. Default: 30 s.
    pub stall_timeout: Duration,
    /// Bytes per second of all downloads from servers together, not from other nodes. Default: no
    /// limit.
    pub bytes_per_second: Option<u64>,
    /// Whether each namespace has files of its own: one that another namespace fetched is not used,
    /// and other nodes are not asked. Default: false.
    pub per_namespace: bool,
    /// Asks other nodes for contents with a digest before their URL is used. Received archives are
    /// kept then. Default: none.
    pub peers: Option<PeerFetch>,
}

impl Default for StorePolicy {
    fn default() -> Self {
        Self {
            allowed_addresses: Vec::new(),
            reserve_bytes: 512 << 20,
            archive_limits: ArchiveLimits::default(),
            file_roots: Vec::new(),
            s3: S3Config::default(),
            hub: HubEndpoint::default(),
            hub_token_file: None,
            registry_logins: None,
            ca_file: None,
            proxy: None,
            stall_timeout: Duration::from_secs(30),
            bytes_per_second: None,
            per_namespace: false,
            peers: None,
        }
    }
}

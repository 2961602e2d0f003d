//! The model store of a node. It downloads artifacts (models and datasets) over http(s), from S3
//! and from allowed directories of the node, verifies and unpacks them while they arrive, and
//! stores each once, by its sha256; once per namespace if the policy separates them.
//!
//! The crate does not know workers, resources or messages. The caller decides what to fetch and
//! what to keep. All state is in files, so that the content after a power failure can be inspected
//! with `ls`.
//!
//! # Layout
//! - [`ArtifactRequest`]: what to fetch.
//! - [`ModelStore`], `fetch`, `inventory`: the public interface, the fetch of one artifact, and the
//!   state that they share.
//! - `hub_fetch`, `oci_fetch`, `set_fetch`: files of a model hub and of a registry, and sets of files.
//! - `transfer`: copies bytes from servers and local files.
//! - `storage`: partial downloads and complete artifacts on disk.
//! - `archive`: unpacks archives and rejects hostile ones.
//!
//! # Disk writes
//! A plain file is written once. A set of files is a directory of hard links to plain files. An archive is written as received, so that the download can be
//! resumed, and once more unpacked. The received archive is removed when the unpacked one is in
//! place, unless the store fetches from other nodes: then it is kept for them.

#![deny(missing_docs)]

mod address_policy;
mod archive;
mod content_key;
mod disk_reserve;
mod error;
mod fetch;
mod git_id;
mod http_object;
mod hub_fetch;
mod inventory;
mod oci_fetch;
mod origin_meter;
mod part_fetch;
mod peer_download;
mod peer_fetch;
mod policy;
mod progress;
mod proxy;
mod registry_logins;
mod registry_sessions;
mod request;
mod resume;
mod set_fetch;
mod sources;
mod storage;
mod store;
mod storing;
mod transfer;

pub use address_policy::{AllowedAddress, InvalidAllowedAddress};
pub use archive::ArchiveLimits;
pub use content_key::ContentKey;
pub use error::{ModelError, ModelErrorClass};
pub use inventory::Artifact;
pub use neptune_hub::{HubEndpoint, HubError, HubProblem, InvalidEndpoint, Login};
pub use neptune_transfer::{Digest, InvalidDigest};
pub use peer_fetch::{PeerFetch, PeerFetchRequest};
pub use policy::StorePolicy;
pub use progress::{FetchPhase, FetchProgress};
pub use proxy::{DownloadProxy, InvalidProxy};
pub use registry_logins::RegistryLogins;
pub use request::ArtifactRequest;
pub use store::{ModelStore, StoredContent};
pub use transfer::{S3Config, S3Credentials};

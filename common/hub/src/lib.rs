//! Asks a model hub or a container registry which files a repository has and which content they
//! have. The agent's store
//! downloads what the answers name, and the controller's command fixes revisions and digests in
//! manifests.
//!
//! # Layout
//! - `requests`, `head`, `tree`, `failure`: URLs and answers of the hub. Pure.
//! - `challenge`, `manifest`: answers of a container registry. Pure. [`Registry`] sends the requests.
//! - `pattern`, `file_set`: selects files, and names a set of files by one digest. Pure.
//! - [`HubClient`]: sends the requests through a [`Transport`] of the caller, and fixes revisions and
//!   digests of addresses.

#![deny(missing_docs)]

mod challenge;
mod client;
mod endpoint;
mod error;
mod failure;
mod file_set;
mod git_id;
mod head;
mod manifest;
mod pattern;
mod registry;
mod requests;
mod resolve;
mod tree;

pub use challenge::Login;
pub use client::{HubClient, Transport, response_error};
pub use endpoint::{DEFAULT_ENDPOINT, HubEndpoint, InvalidEndpoint};
pub use error::{HubError, HubProblem};
pub use failure::{HubResponse, problem, retry_after};
pub use file_set::{FileSet, FileSetError, SetFile};
pub use git_id::GitBlobHash;
pub use head::{FileCheck, HubFile};
pub use manifest::ArtifactFiles;
pub use pattern::{is_selected, matches};
pub use registry::{Registry, is_loopback, registry_error};
pub use requests::file_url;
pub use resolve::ResolvedAddress;
pub use tree::{ListedFile, RepositoryListing};

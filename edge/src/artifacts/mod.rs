//! Models and datasets on this node: downloads, local files, counting, and the directories of
//! versions.

pub mod access;
pub mod datasets;
pub mod download_problem;
pub mod download_task;
pub mod downloads;
pub mod host_path;
pub mod local_model;
pub mod models;
pub mod registry_logins;
pub mod request;
pub mod version_directory;

//! Joint inference of three resources: a model that is served at the edge, one that is served in
//! the cloud, and an app at the edge that decides which of them answers.
//!
//! | file | |
//! |---|---|
//! | `protocol` | the Open Inference Protocol's JSON; pure |
//! | `versions` | the versions of a model, and which one answers; pure |
//! | `folder` | reads and polls a directory of versions |
//! | `server` | the model server's HTTP API |
//! | `client` | the client of a model server |
//! | `joint` | joint inference |
//! | `app` | the app's HTTP API |
//! | `evaluate` | accuracies on the held-out samples |
//! | `listen` | serves HTTP until a signal |

pub mod app;
pub mod client;
pub mod error;
pub mod evaluate;
pub mod folder;
pub mod joint;
pub mod listen;
pub mod protocol;
pub mod server;
pub mod versions;

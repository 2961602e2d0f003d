//! Joint inference of three resources: a model that is served at the edge, one that is served in
//! the cloud, and a service whose gateway decides which of them answers. Here are the model server
//! and the client that measures; the gateway is Neptune's.
//!
//! | file | |
//! |---|---|
//! | `protocol` | the Open Inference Protocol's JSON; pure |
//! | `versions` | the versions of a model, and which one answers; pure |
//! | `folder` | reads and polls a directory of versions |
//! | `server` | the model server's HTTP API |
//! | `listen` | serves HTTP until a signal |
//! | `source` | the header in which a gateway names who answered; pure |
//! | `client` | the client of a model server or a gateway |
//! | `evaluate` | accuracies on the held-out samples |

pub mod client;
pub mod error;
pub mod evaluate;
pub mod folder;
pub mod listen;
pub mod protocol;
pub mod server;
pub mod source;
pub mod versions;

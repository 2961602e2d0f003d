//! Joint inference of three resources: a model served at the edge, one served in the cloud, and an app at the edge that decides
//! which of them a digit's answer comes from.
//!
//! | file | |
//! |---|---|
//! | `protocol` | the Open Inference Protocol's JSON; pure |
//! | `shelf` | the versions of a model, and which one answers; pure |
//! | `folder` | reads and watches a directory of versions |
//! | `server` | the model server's HTTP API |
//! | `client` | asks a model server |
//! | `joint` | asks the edge, decides, asks the cloud |
//! | `app` | the app's HTTP API |
//! | `evaluate` | the held-out samples through all three |
//! | `listen` | a listener that serves until a signal |

pub mod app;
pub mod client;
pub mod error;
pub mod evaluate;
pub mod folder;
pub mod joint;
pub mod listen;
pub mod protocol;
pub mod server;
pub mod shelf;

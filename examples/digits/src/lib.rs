//! Handwritten digits by joint inference: a small model at the edge, a big one in the cloud, one program for both.
//!
//! | file | |
//! |---|---|
//! | `settings` | the environment of a worker, parsed once |
//! | `samples`, `model` | the images and what a model makes of them; pure |
//! | `model_file` | reads models |
//! | `predict` | what edge and cloud say to each other; pure |
//! | `breaker`, `tally` | when the cloud is left alone, and what is counted; pure |
//! | `evaluate` | accuracies without any network; pure |
//! | `cloud` | the cloud worker: HTTP server |
//! | `call`, `report`, `edge` | the edge worker: HTTP client, MQTT reports, and the loop that uses both |
//! | `stop` | SIGTERM and SIGINT |

pub mod breaker;
pub mod call;
pub mod cloud;
pub mod edge;
pub mod error;
pub mod evaluate;
pub mod model;
pub mod model_file;
pub mod predict;
pub mod report;
pub mod samples;
pub mod settings;
pub mod stop;
pub mod tally;

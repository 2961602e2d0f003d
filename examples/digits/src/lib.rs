//! Joint inference of handwritten digits: a small model at the edge, a big one in the cloud, one
//! program for both workers.
//!
//! | file | |
//! |---|---|
//! | `settings` | the environment of a worker, parsed once |
//! | `samples`, `model` | the images and the models; pure |
//! | `model_file` | reads models |
//! | `predict` | requests and responses between edge and cloud; pure |
//! | `counters` | the counters; pure |
//! | `evaluate` | accuracies without a network; pure |
//! | `simulation` | the outputs of both models for simulations of many samples; pure |
//! | `cloud` | the cloud worker: HTTP server |
//! | `call`, `report`, `edge` | the edge worker: HTTP client, MQTT reports, and the loop that uses both |
//! | `stop` | SIGTERM and SIGINT |

pub mod call;
pub mod cloud;
pub mod counters;
pub mod edge;
pub mod error;
pub mod evaluate;
pub mod model;
pub mod model_file;
pub mod predict;
pub mod report;
pub mod samples;
pub mod settings;
pub mod simulation;
pub mod stop;

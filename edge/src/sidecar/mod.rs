//! The sidecar of a cloud worker in a Pod: takes the worker's reports from the embedded broker and
//! posts them to the controller.
//!
//! | file | task |
//! |---|---|
//! | `pending` | which reports wait to be posted; pure |
//! | `reports` | shares them between the broker's thread and the relay |
//! | `poster` | one HTTP request |
//! | `relay` | when to post, until SIGTERM |

mod pending;
pub mod poster;
pub mod relay;
pub mod reports;

//! The HTTP server: connections, bodies with limits, and answers.

mod accept;
mod answer;
mod body;

pub use self::{
    accept::{Limits, Listener, serve},
    answer::{Answer, error, json, whole},
    body::{AnyBody, BodyError, Held, Paced, StreamSender, boxed, collect, stream_body},
};

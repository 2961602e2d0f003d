//! The HTTP server: connections, bodies with limits, and answers.

mod accept;
mod answer;
mod body;
mod grpc;
pub mod unix;

pub use self::{
    accept::{Limits, Listener, Wire, serve},
    answer::{Answer, error, json, whole},
    body::{
        AnyBody, BodyError, Held, Paced, StreamSender, boxed, collect, collect_all, stream_body,
    },
    grpc::{GrpcBody, finished, grpc_answer, grpc_error, grpc_status, status_of},
};

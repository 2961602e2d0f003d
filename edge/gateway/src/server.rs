//! The HTTP server: connections, bodies with limits, and answers.

mod accept;
mod answer;
mod body;
mod check;
mod grpc;
mod tls;
pub mod unix;

pub use self::{
    accept::{CountedAs, Entrance, Limits, Listener, Wire, serve},
    answer::{Answer, error, json, whole},
    body::{
        AnyBody, BodyError, BodyRoom, Held, HeldBody, Hold, Paced, StreamSender, boxed, collect,
        collect_all, stream_body,
    },
    check::{RequestError, check_request, has_content_coding, hides_cors, remove_cors},
    grpc::{GrpcBody, finished, grpc_answer, grpc_error, grpc_status, status_of},
    tls::Tls,
};

//! The clients of the two model servers.

mod call;
mod cloud;
mod cloud_grpc;
mod deadline;
mod edge;
mod excerpt;
mod failure;
mod headers;
mod hops;
mod path;
mod turn;

pub use self::{
    call::{CloudAnswer, CloudRequest},
    cloud::{CLIENT_TIMEOUT, CloudClient, CloudStream, read_token},
    deadline::Deadline,
    edge::{EdgeClient, EdgeError},
    excerpt::{excerpt, line as excerpt_line},
    failure::{CloudError, DEADLINE, DECISION, TOO_LARGE, failed, grpc_reason, reason},
    headers::{forwarded, to_cloud},
    hops::{Hops, PURPOSE, SHADOW},
    path::{AWAY, PATH, UPPER, Upper, UpperSample, header as path_header},
};

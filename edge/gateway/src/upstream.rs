//! The clients of the two model servers.

mod cloud;
mod cloud_grpc;
mod edge;
mod excerpt;
mod failure;
mod headers;
mod hops;
mod path;

pub use self::{
    cloud::{CLIENT_TIMEOUT, CloudAnswer, CloudClient, CloudRequest, CloudStream, read_token},
    edge::{EdgeClient, EdgeError},
    excerpt::excerpt,
    failure::{CloudError, failed},
    headers::{forwarded, to_cloud},
    hops::{Hops, PURPOSE, SHADOW},
    path::{AWAY, PATH, UPPER, Upper, UpperSample, header as path_header},
};

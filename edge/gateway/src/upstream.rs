//! The clients of the two model servers.

mod cloud;
mod edge;
mod headers;

pub use self::{
    cloud::{CloudClient, CloudError, CloudRequest, CloudStream, read_token},
    edge::{EdgeClient, EdgeError},
    headers::{forwarded, to_cloud},
};

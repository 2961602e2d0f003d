//! The model store of a node: fetches models over http(s), from S3 and from the node's own
//! directories, verifies and unpacks them while they arrive, and keeps each once, by its sha256.
//!
//! It knows nothing of workers, resources and messages: the agent says what it wants and what is to
//! be kept. All its state is files, so that what is there after a power cut can be seen with `ls`.
//!
//! Disk writes: a plain file is written once; an archive once as it came, which is what a download is
//! resumed from, and once unpacked. The former is removed when the latter is in its place.

mod address;
mod archive;
mod backoff;
mod dial;
mod digest;
mod error;
mod fetch;
mod http;
mod limits;
mod local;
mod names;
mod part;
mod progress;
mod record;
mod resume;
mod s3;
mod shelf;
mod space;
mod spool;
mod store;
mod tree;
mod want;

pub use address::{Allowed, NotAllowable};
pub use digest::{Digest, NotADigest};
pub use error::{Class, ModelError};
pub use limits::Limits;
pub use progress::{Phase, Progress};
pub use s3::{Credentials, S3};
pub use store::{Artifact, Policy, Store};
pub use want::Want;

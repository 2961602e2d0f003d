//! `OpenAPI` documents, enough for `kubectl explain`, for kubectl's own validation and for it to find that the server validates. Pure.

pub mod v2;
pub mod v3;

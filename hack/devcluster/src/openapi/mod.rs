//! `OpenAPI` documents for kubectl: `explain`, client-side validation, and the detection of
//! server-side validation. Pure.

pub mod v2;
pub mod v3;

//! How to handle an error: what decides whether a step is repeated.

/// How to handle an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Invalid configuration: report it and exit.
    Configuration,
    /// Another client wrote first: reconcile again with the new version.
    Conflict,
    /// The API server rejects the request until the object changes: report it in the status.
    Refused,
    /// Another attempt may succeed: retry with backoff.
    Transient,
}

impl Class {
    /// The class of a response of the API server with this HTTP status code.
    pub fn of_response(code: u16) -> Self {
        match code {
            409 => Self::Conflict,
            // The object is invalid, or RBAC denies the request. 401 is a token that is about
            // to be renewed and 404 an object that was deleted meanwhile: both are transient.
            400 | 403 | 422 => Self::Refused,
            _ => Self::Transient,
        }
    }
}

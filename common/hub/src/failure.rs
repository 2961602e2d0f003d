//! Decides what an error response of a hub means: from its status, the header `X-Error-Code`, and
//! the headers of a rate limit. Pure.

use neptune_wire::HubAddress;

use crate::error::{HubError, HubProblem};

/// The longest time that a hub can make a client wait, in seconds. A person sees the reason
/// meanwhile.
const MAX_WAIT: u64 = 3600;

/// The parts of an error response that name its reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct HubResponse<'a> {
    /// HTTP status code of the response.
    pub status: u16,
    /// Value of the header `X-Error-Code`.
    pub error_code: Option<&'a str>,
    /// Value of the header `Retry-After`.
    pub retry_after: Option<&'a str>,
    /// Value of the header `RateLimit`.
    pub rate_limit: Option<&'a str>,
}

/// The problem that an error response names. `address` is that of the request.
pub fn problem(response: &HubResponse<'_>, address: &HubAddress) -> HubError {
    let not_found = || match &address.path {
        Some(path) => HubProblem::FileNotFound { path: path.clone(), nearest: Vec::new() },
        None => HubProblem::RepositoryNotFound,
    };
    let problem = match (response.status, response.error_code) {
        (429, _) => HubProblem::RateLimited {
            seconds: retry_after(response.retry_after, response.rate_limit),
        },
        (_, Some("GatedRepo")) => HubProblem::Gated,
        (_, Some("RepoNotFound")) | (401, None) => HubProblem::RepositoryNotFound,
        (_, Some("RevisionNotFound")) => HubProblem::RevisionNotFound {
            revision: address.revision().to_owned(),
            nearest: Vec::new(),
        },
        (_, Some("EntryNotFound")) | (404, None) => not_found(),
        (status, _) => HubProblem::Status { status },
    };
    HubError { address: address.to_string(), problem }
}

/// The seconds to wait that a response names, at most an hour: from `Retry-After`, or from the
/// parameter `t` of `RateLimit`, as in `"api";r=0;t=55`.
pub fn retry_after(retry_after: Option<&str>, rate_limit: Option<&str>) -> Option<u64> {
    let named = retry_after.and_then(|text| text.trim().parse::<u64>().ok());
    let limit = || {
        let mut parameters = rate_limit?.split([';', ',']).map(str::trim);
        parameters.find_map(|part| part.strip_prefix("t=")?.trim().parse::<u64>().ok())
    };
    named.or_else(limit).map(|seconds| seconds.min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::ArtifactAddress;

    use super::*;

    fn address(text: &str) -> HubAddress {
        let ArtifactAddress::Hub(address) = text.parse().unwrap() else { unreachable!() };
        address
    }

    fn read(status: u16, error_code: Option<&str>) -> HubProblem {
        let response = HubResponse { status, error_code, ..HubResponse::default() };
        problem(&response, &address("hf://o/r@v1/m.bin")).problem
    }

    #[test]
    fn error_code_names_the_problem_and_its_remedy() {
        let gated = problem(
            &HubResponse { status: 403, error_code: Some("GatedRepo"), ..HubResponse::default() },
            &address("hf://o/r/m.bin"),
        );
        assert_eq!(gated.problem, HubProblem::Gated);
        assert!(
            gated.to_string().starts_with("hf://o/r/m.bin: access to the repository"),
            "{gated}"
        );
        for status in [401, 404] {
            assert_eq!(read(status, Some("RepoNotFound")), HubProblem::RepositoryNotFound);
        }
        assert_eq!(read(401, None), HubProblem::RepositoryNotFound, "a private repository");
        let revision = HubProblem::RevisionNotFound { revision: "v1".into(), nearest: vec![] };
        assert_eq!(read(404, Some("RevisionNotFound")), revision);
        let file = HubProblem::FileNotFound { path: "m.bin".into(), nearest: vec![] };
        assert_eq!(read(404, Some("EntryNotFound")), file);
        assert_eq!(read(404, None), file);
        assert_eq!(read(403, None), HubProblem::Status { status: 403 });
        assert_eq!(read(403, Some("New")), HubProblem::Status { status: 403 });
    }

    #[test]
    fn rate_limit_names_how_long_to_wait() {
        for (after, limit, expected) in [
            (Some("17"), None, Some(17)),
            (Some("17"), Some("\"api\";r=0;t=55"), Some(17)),
            (None, Some("\"api\";r=0;t=55"), Some(55)),
            (None, Some("\"resolvers\"; r=0; t= 3"), Some(3)),
            (Some("Wed, 21 Oct 2026 07:28:00 GMT"), None, None),
            (Some("999999"), None, Some(3600)),
            (None, None, None),
        ] {
            assert_eq!(retry_after(after, limit), expected, "{after:?} {limit:?}");
        }
        let limited = HubProblem::RateLimited { seconds: Some(55) };
        assert!(limited.is_transient() && limited.to_string().contains("in 55 s"), "{limited}");
        for (status, is_transient) in [(500, true), (503, true), (408, true), (403, false)] {
            assert_eq!(HubProblem::Status { status }.is_transient(), is_transient, "{status}");
        }
    }
}

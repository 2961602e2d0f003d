//! The URLs of a hub. Pure.

use neptune_wire::HubAddress;
use url::Url;

use crate::endpoint::HubEndpoint;

/// The URL of a file's content. The address must name a file.
pub fn file_url(endpoint: &HubEndpoint, address: &HubAddress) -> Url {
    let path = address.path.as_deref().unwrap_or_default();
    let parts = [&*address.organization, &address.repository, "resolve", address.revision()];
    with_path(endpoint, parts.into_iter().chain(path.split('/')))
}

/// The URL of the description of a revision.
pub(crate) fn revision_url(endpoint: &HubEndpoint, address: &HubAddress) -> Url {
    api_url(endpoint, address, "revision", address.revision())
}

/// The URL of the first page of the files at a commit.
pub(crate) fn tree_url(endpoint: &HubEndpoint, address: &HubAddress, commit: &str) -> Url {
    let mut url = api_url(endpoint, address, "tree", commit);
    url.query_pairs_mut().append_pair("recursive", "true");
    url
}

/// The URL of the branches and tags.
pub(crate) fn refs_url(endpoint: &HubEndpoint, address: &HubAddress) -> Url {
    let parts = ["api", "models", &address.organization, &address.repository, "refs"];
    with_path(endpoint, parts)
}

fn api_url(endpoint: &HubEndpoint, address: &HubAddress, what: &str, revision: &str) -> Url {
    let parts = ["api", "models", &address.organization, &address.repository, what, revision];
    with_path(endpoint, parts)
}

fn with_path<'a>(endpoint: &HubEndpoint, parts: impl IntoIterator<Item = &'a str>) -> Url {
    let mut url = endpoint.url().clone();
    // Fails only for URLs without a host, which are no endpoints.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    url
}

/// The target of the link `rel="next"` in a `Link` header.
pub(crate) fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (target, parameters) = part.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = parameters.split(';').map(str::trim).any(|parameter| {
            parameter.strip_prefix("rel=").is_some_and(|rel| rel.trim_matches('"') == "next")
        });
        is_next.then_some(target)
    })
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

    #[test]
    fn names_are_escaped_and_a_prefix_of_the_endpoint_remains() {
        let hub = HubEndpoint::default();
        let mirror: HubEndpoint = "http://h:1/hf/".parse().unwrap();
        let file = address("hf://o/r@refs%2Fpr%2F1/a/b c.bin");
        assert_eq!(
            file_url(&hub, &file).as_str(),
            "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/a/b%20c.bin"
        );
        assert_eq!(
            file_url(&mirror, &address("hf://o/r/m?x.bin".split('?').next().unwrap())).as_str(),
            "http://h:1/hf/o/r/resolve/main/m"
        );
        let set = address("hf://o/r@refs%2Fpr%2F1");
        assert_eq!(
            revision_url(&mirror, &set).as_str(),
            "http://h:1/hf/api/models/o/r/revision/refs%2Fpr%2F1"
        );
        assert_eq!(
            tree_url(&hub, &set, "c0").as_str(),
            "https://huggingface.co/api/models/o/r/tree/c0?recursive=true"
        );
    }

    #[test]
    fn next_page_is_the_link_with_that_relation() {
        let next = "<https://h/api?cursor=a%2C&x=1>; rel=\"next\"";
        assert_eq!(next_page(next), Some("https://h/api?cursor=a%2C&x=1"));
        assert_eq!(next_page("</api?c=2>; title=\"a\"; rel=next"), Some("/api?c=2"));
        assert!(next_page(&format!("<https://h/1>; rel=\"prev\", {next}")).is_some());
        for none in ["", "<https://h>; rel=\"prev\"", "https://h; rel=\"next\"", "<a; rel=next"] {
            assert_eq!(next_page(none), None, "{none}");
        }
    }
}

//! Which headers are passed on.

use hyper::{
    HeaderMap,
    header::{
        ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, EXPECT, HeaderName, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

/// The headers that the cloud gets. The client's credentials are for the edge, and are not among
/// them.
const TO_CLOUD: [HeaderName; 5] = [
    CONTENT_TYPE,
    ACCEPT,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];

/// Whether a header belongs to one connection.
fn is_hop(name: &HeaderName) -> bool {
    [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT].contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "proxy-authorization")
}

/// The headers without those of the connection.
pub fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        if !is_hop(name) && !named.contains(name) {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// The headers for the cloud. Answers come without compression.
pub fn to_cloud(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in TO_CLOUD {
        if let Some(value) = headers.get(&name) {
            kept.insert(name, value.clone());
        }
    }
    kept.remove(ACCEPT_ENCODING);
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_of_the_connection_stay_and_credentials_do_not_reach_the_cloud() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("authorization", "Bearer client"),
            ("content-type", "application/json"),
            ("x-other", "a"),
            ("x-other", "b"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        let edge = forwarded(&headers);
        assert_eq!(edge.len(), 4);
        assert_eq!(edge.get_all("x-other").iter().count(), 2);
        let cloud = to_cloud(&headers);
        assert_eq!(cloud.keys().collect::<Vec<_>>(), [CONTENT_TYPE]);
    }
}

//! The HTTP object of a request: its URL, and what a server wants to see before it sends the bytes.

use jiff::Timestamp;
use neptune_hub::file_url;
use neptune_sources::ArtifactLocation;

use crate::{
    ArtifactRequest, ModelError, hub_fetch,
    inventory::Inventory,
    transfer::{access::Access, connector::Connector, http::HttpObject},
};

/// The object of a request for one file that is not on this node.
///
/// # Errors
/// Those of the registry; [`ModelError::NoCredentials`] and others of a policy that lacks a setting.
pub async fn http_object(
    inventory: &Inventory,
    connector: &Connector,
    request: &ArtifactRequest,
) -> Result<HttpObject, ModelError> {
    let policy = &inventory.policy;
    let (url, access) = match &request.location {
        ArtifactLocation::File(_) => unreachable!("the caller copies files of this node"),
        ArtifactLocation::Hub(address) => {
            let endpoint = hub_fetch::endpoint(policy).await?;
            let url = file_url(&endpoint, address);
            (url, Access::Hub(Box::new((endpoint, address.clone()))))
        }
        ArtifactLocation::Oci(address) | ArtifactLocation::OciLayer(address) => {
            let access = inventory.registries.open(policy, connector, address).await?;
            let digest = request.sha256.expect("the list of a set has digests");
            let url = access.registry.blob_url(address, digest);
            (url, Access::Registry(Box::new(access)))
        }
        ArtifactLocation::Http(url) => (url.clone(), Access::Open),
        ArtifactLocation::S3 { bucket, key } => {
            let url = policy.s3.object_url(bucket, key)?;
            let access = Access::Signed(policy.s3.sign(&url, now(), &[]));
            (url, access)
        }
    };
    Ok(HttpObject { url, redacted_url: request.redacted_url(), access })
}

/// Returns the wall time for the signature of an S3 request.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> Timestamp {
    Timestamp::now()
}

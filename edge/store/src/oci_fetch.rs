//! Fetches from a container registry: the list of the files of an artifact. Each file is a layer
//! whose digest is that of the file.

use neptune_hub::{FileSet, HubError, HubProblem};
use neptune_wire::OciAddress;

use crate::{
    ModelError, StorePolicy, hub_fetch::check_limits, registry_sessions::RegistrySessions,
    storage::content_store::SetRecord, transfer::connector::Connector,
};

/// Asks the registry for the files of an artifact. Returns them, and what the store records of them.
///
/// # Errors
/// Those of the registry; [`HubProblem::InvalidSet`] for too many files or bytes.
pub async fn list(
    sessions: &RegistrySessions,
    policy: &StorePolicy,
    connector: &Connector,
    address: &OciAddress,
) -> Result<(FileSet, SetRecord), ModelError> {
    let access = sessions.open(policy, connector, address).await?;
    let files = match access.registry.files(connector, address).await {
        Err(error) if sessions.forget_if_denied(&access, &error) => {
            let access = sessions.open(policy, connector, address).await?;
            access.registry.files(connector, address).await?
        }
        result => result?,
    };
    check_limits(&policy.archive_limits, files.set.files().len(), files.bytes).map_err(
        |reason| HubError {
            address: address.to_string(),
            problem: HubProblem::InvalidSet { reason },
        },
    )?;
    let pinned = address.at(&files.manifest.to_string()).to_string();
    Ok((files.set, SetRecord { address: Some(pinned), bytes: Some(files.bytes) }))
}

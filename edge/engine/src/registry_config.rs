//! Reads the credentials for registries, at each pull, so that a change needs no restart.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use bollard::auth::DockerCredentials;
use neptune_registry_config::{RegistryConfig, RegistryLogin, registry, server_address};

/// What a pull gets from `imagePullSecrets` or the file of `--registry-config`.
pub(crate) struct PullLogin {
    pub credentials: Option<DockerCredentials>,
    /// What to do if the registry denies access to the image. Never contains credentials.
    pub hint: String,
}

/// The credentials for the registry of an image: those of its worker, or of the file. Without usable
/// ones the image is pulled without credentials: it may be public.
pub(crate) async fn pull_login(
    own: &[RegistryConfig],
    path: Option<&Path>,
    image: &str,
) -> PullLogin {
    let without = |hint| PullLogin { credentials: None, hint };
    let registry = registry(image);
    if let Some(login) = own.iter().find_map(|config| config.login(image)) {
        let hint = format!(
            "it was pulled with the credentials for {registry} of imagePullSecrets; correct them if it denied access"
        );
        return PullLogin { credentials: Some(credentials(login.clone(), image)), hint };
    }
    let Some(path) = path else {
        let hint = format!(
            "if {registry} needs credentials, set --registry-config of the node's agent, or imagePullSecrets of the worker"
        );
        return without(hint);
    };
    let file = path.display();
    let config = match read(path).await {
        Ok((config, _)) => config,
        Err(why) => {
            return without(format!(
                "it was pulled without credentials, because --registry-config {file} is not usable: {why}"
            ));
        }
    };
    let Some(login) = config.login(image).cloned() else {
        return without(format!(
            "--registry-config {file} has no credentials for {registry}; add them if it needs some (credential helpers are not supported)"
        ));
    };
    let hint = format!(
        "it was pulled with the credentials for {registry} of --registry-config {file}; correct them if it denied access"
    );
    PullLogin { credentials: Some(credentials(login, image)), hint }
}

fn credentials(login: RegistryLogin, image: &str) -> DockerCredentials {
    DockerCredentials {
        username: login.username,
        password: login.password,
        identitytoken: login.identity_token,
        serveraddress: Some(server_address(image).to_owned()),
        ..DockerCredentials::default()
    }
}

/// The content of the file, and its permission bits.
///
/// # Errors
/// The reason as text, without the content.
pub async fn read(path: &Path) -> Result<(RegistryConfig, u32), String> {
    let content = tokio::fs::read(path).await.map_err(|error| error.to_string())?;
    let mode = tokio::fs::metadata(path).await.map_err(|error| error.to_string())?.mode();
    let config = RegistryConfig::parse(&content).map_err(|error| error.to_string())?;
    Ok((config, mode & 0o777))
}

//! The logins of `--registry-config`, or of a variable in a Pod, for downloads of models from
//! registries. I/O: reads the file.

use std::path::PathBuf;

use neptune_edge_engine::registry_config::read;
use neptune_registry_config::{LOGINS_VARIABLE, RegistryConfig};
use neptune_store::{Login, RegistryLogins};

/// Looks up logins in a file, which is read for each download. Without a file there are none, and
/// public artifacts are downloaded without a login.
pub fn registry_logins(path: Option<PathBuf>) -> Option<RegistryLogins> {
    // A variable that is set and empty counts as not set.
    let path = path.filter(|path| !path.as_os_str().is_empty())?;
    Some(RegistryLogins::new(move |repository| {
        let path = path.clone();
        async move {
            let (config, _) =
                read(&path).await.map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(Login::of_repository(&config, &repository))
        }
    }))
}

/// Looks up logins in the content of [`LOGINS_VARIABLE`].
pub fn logins_of_variable(content: String) -> RegistryLogins {
    RegistryLogins::new(move |repository| {
        let config = RegistryConfig::parse(content.as_bytes());
        let config = config.map_err(|error| format!("{LOGINS_VARIABLE}: {error}"));
        async move { Ok(Login::of_repository(&config?, &repository)) }
    })
}

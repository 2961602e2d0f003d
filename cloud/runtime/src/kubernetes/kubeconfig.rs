//! Finds the API server and the credentials, as kubectl does. Reads the kubeconfig.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::error::Error;

/// Timeout of a connection attempt to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration from a file, or from the environment: `$KUBECONFIG`, `~/.kube/config`, the
/// Pod's service account.
///
/// # Errors
/// [`Error::Kubeconfig`]: the kubeconfig is missing or invalid.
pub async fn config(path: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let origin = path.map_or_else(
        || "--kubeconfig is not set, and the environment has no kubeconfig".to_owned(),
        |path| format!("--kubeconfig {}", path.display()),
    );
    let error = |why: String| Error::Kubeconfig { origin, why };
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    #[expect(clippy::disallowed_methods, reason = "the one place that configures the API client")]
    let config = match path {
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
            Err(why) => Err(why),
        },
        None if context.is_some() => Config::from_kubeconfig(&options).await,
        None => {
            let config = Config::infer().await.map(with_timeouts);
            return config.map_err(|why| error(why.to_string()));
        }
    };
    config.map(with_timeouts).map_err(|why| error(why.to_string()))
}

/// A connection attempt during an outage must not outlast the outage by half a minute.
fn with_timeouts(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config
}

/// Creates the client.
///
/// # Errors
/// [`Error::Kubeconfig`], such as a certificate that cannot be read.
pub fn client(config: Config) -> Result<Client, Error> {
    let origin = config.cluster_url.to_string();
    Client::try_from(config).map_err(|why| Error::Kubeconfig { origin, why: why.to_string() })
}

//! Validates the settings of the model hub. Pure.

use std::path::{Component, Path, PathBuf};

use neptune_store::{HubEndpoint, InvalidEndpoint};

use super::flags::{given, invalid};
use crate::Error;

const ENDPOINT_REMEDY: &str = "use the URL of a hub, such as https://huggingface.co, or omit it";

/// The hub of `--hf-endpoint`.
///
/// # Errors
/// [`Error::Config`] with the flag and the remedy.
pub fn hub(endpoint: Option<&String>) -> Result<HubEndpoint, Error> {
    let parsed = given(endpoint).map(str::parse::<HubEndpoint>);
    let parsed = parsed.transpose();
    let parsed = parsed.map_err(|error| invalid("--hf-endpoint", error, ENDPOINT_REMEDY))?;
    Ok(parsed.unwrap_or_default())
}

/// The file of `--hf-token-file`, in the directory of the secrets.
///
/// # Errors
/// [`Error::Config`] if it is not the name of a file, or if the hub gets no token because it is
/// reached without encryption.
pub fn token_file(
    name: Option<&String>,
    secret_dir: &Path,
    hub: &HubEndpoint,
) -> Result<Option<PathBuf>, Error> {
    let flag = "--hf-token-file";
    let Some(name) = given(name) else { return Ok(None) };
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        let remedy = "use the name of a file in --secret-dir, without a directory";
        return Err(invalid(flag, format!("{name:?}"), remedy));
    }
    let remedy = "use an https:// --hf-endpoint, or omit the token";
    hub.clone().with_token("token").map_err(|error| invalid(flag, error, remedy))?;
    Ok(Some(secret_dir.join(name)))
}

/// The hub of a download without the agent, such as in a Pod: that of `--hf-endpoint` or
/// `HF_ENDPOINT`, with the token in `HF_TOKEN`.
///
/// # Errors
/// [`Error::Config`] with the flag or the variable, and the remedy.
pub fn hub_from_environment(
    endpoint: Option<&String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<HubEndpoint, Error> {
    let named = variable("HF_ENDPOINT");
    let hub = hub(given(endpoint).map(str::to_owned).or(named).as_ref())?;
    let Some(token) = variable("HF_TOKEN") else { return Ok(hub) };
    let remedy = match hub.clone().with_token(&token) {
        Err(InvalidEndpoint::Token) => "set it to the token as the hub shows it",
        _ => "use an https:// endpoint, or unset the variable",
    };
    hub.with_token(&token).map_err(|error| invalid("HF_TOKEN", error, remedy))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(value: &str) -> String {
        value.to_owned()
    }

    #[test]
    fn token_file_is_a_name_in_the_directory_of_the_secrets() {
        let (dir, https) = (Path::new("/s"), HubEndpoint::default());
        let file = |name: &str, hub: &HubEndpoint| token_file(Some(&text(name)), dir, hub);
        assert_eq!(file("hub", &https).unwrap(), Some("/s/hub".into()));
        assert_eq!(file("", &https).unwrap(), None);
        for name in ["/etc/hub", "../hub", "a/b", "."] {
            let error = file(name, &https).unwrap_err().to_string();
            assert!(error.starts_with("--hf-token-file"), "{error}");
        }
        let plain = hub(Some(&text("http://mirror.local"))).unwrap();
        let error = file("hub", &plain).unwrap_err().to_string();
        assert!(error.contains("https://"), "{error}");
    }

    #[test]
    fn pod_takes_hub_and_token_from_the_usual_variables() {
        let variable = |name: &str| match name {
            "HF_ENDPOINT" => Some(text("https://mirror.local/")),
            "HF_TOKEN" => Some(text("hf_secret")),
            _ => None,
        };
        let hub = hub_from_environment(None, variable).unwrap();
        let url = "https://mirror.local/x".parse().unwrap();
        assert_eq!(hub.authorization(&url), Some(text("Bearer hf_secret")));
        let other = text("https://other.local");
        let hub = hub_from_environment(Some(&other), variable).unwrap();
        assert_eq!(hub.url().as_str(), "https://other.local/");
        let error = hub_from_environment(Some(&text("http://other.local")), variable);
        assert!(error.unwrap_err().to_string().starts_with("HF_TOKEN"));
    }
}

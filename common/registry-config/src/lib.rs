//! The credentials for container registries, in the format of Docker's `config.json`, and which of
//! them an image or an artifact needs. Pure.

#![deny(missing_docs)]

use std::{collections::BTreeMap, fmt};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::Deserialize;

/// The variable with the content of a file of logins, for programs that read no file.
pub const LOGINS_VARIABLE: &str = "DOCKER_AUTH_CONFIG";

/// Docker Hub, the registry of images without a host.
const DOCKER_HUB: &str = "docker.io";
/// Other hosts of Docker Hub. `docker login` writes the first one.
const DOCKER_HUB_ALIASES: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
/// The key of Docker Hub, which the engine expects in a request.
const DOCKER_HUB_ADDRESS: &str = "https://index.docker.io/v1/";

/// The registries of a file, each with its login.
#[derive(Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// The logins by host and port, or by the path of repositories below it.
    logins: BTreeMap<String, RegistryLogin>,
}

/// The login at one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// Name of the account.
    pub username: Option<String>,
    /// Password, or a token that the registry issued in place of it.
    pub password: Option<String>,
    /// A token that the registry exchanges for others.
    pub identity_token: Option<String>,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistryLogin(..)")
    }
}

/// Why a file is not valid. Never quotes its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegistryConfig {
    /// The text is not JSON with these fields.
    #[error("not JSON in the format of Docker's config.json (line {line}, column {column})")]
    Format {
        /// Number of the line, from 1.
        line: usize,
        /// Number of the column, from 1.
        column: usize,
    },
    /// The user and the password of an entry are not encoded as they have to be.
    #[error("auths[{0:?}].auth is not the base64 encoding of USER:PASSWORD")]
    Auth(String),
    /// An entry has only one of user and password.
    #[error("auths[{0:?}] has a user name or a password without the other")]
    Incomplete(String),
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
}

#[derive(Deserialize)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl RegistryConfig {
    /// Parses the content of a file. Entries without credentials, as `docker login` writes them
    /// beside a credential helper, are left out.
    ///
    /// # Errors
    /// [`InvalidRegistryConfig`] with the place, without the content.
    pub fn parse(content: &[u8]) -> Result<Self, InvalidRegistryConfig> {
        // The text of the JSON parser's error quotes values.
        let file: ConfigFile = serde_json::from_slice(content).map_err(|error| {
            InvalidRegistryConfig::Format { line: error.line(), column: error.column() }
        })?;
        let mut logins = BTreeMap::new();
        for (key, entry) in file.auths {
            if let Some(login) = entry.login(&key)? {
                logins.insert(repository_prefix(&key), login);
            }
        }
        Ok(Self { logins })
    }

    /// The login for an image: that of the longest path which contains its repository, or of its
    /// registry.
    pub fn login(&self, image: &str) -> Option<&RegistryLogin> {
        let repository = repository(image);
        let contains = |prefix: &str| {
            repository.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
                || repository == prefix
        };
        let matching = self.logins.iter().filter(|(prefix, _)| contains(prefix));
        matching.max_by_key(|(prefix, _)| prefix.len()).map(|(_, login)| login)
    }

    /// The passwords and tokens of the logins.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let logins = self.logins.values();
        let secrets = logins.flat_map(|it| [it.password.as_deref(), it.identity_token.as_deref()]);
        secrets.flatten()
    }

    /// The number of logins.
    pub fn count(&self) -> usize {
        self.logins.len()
    }
}

impl AuthEntry {
    fn login(self, key: &str) -> Result<Option<RegistryLogin>, InvalidRegistryConfig> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let identity_token = given(self.identitytoken);
        let (username, password) = match given(self.auth) {
            Some(auth) => {
                let (username, password) =
                    decode(&auth).ok_or_else(|| InvalidRegistryConfig::Auth(key.to_owned()))?;
                (given(Some(username)), given(Some(password)))
            }
            None => (given(self.username), given(self.password)),
        };
        if identity_token.is_none() && username.is_some() != password.is_some() {
            return Err(InvalidRegistryConfig::Incomplete(key.to_owned()));
        }
        let is_empty = username.is_none() && identity_token.is_none();
        Ok((!is_empty).then_some(RegistryLogin { username, password, identity_token }))
    }
}

/// Decodes the value of `auth` to user and password; `None` if it is invalid.
fn decode(auth: &str) -> Option<(String, String)> {
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = GeneralPurpose::new(&STANDARD, config).decode(auth.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (username, password) = text.split_once(':')?;
    // Old versions of Docker pad the password.
    Some((username.to_owned(), password.trim_end_matches('\0').to_owned()))
}

/// The host of a key, with its port and path. Keys can be URLs, with the version of the API.
fn repository_prefix(key: &str) -> String {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let rest = rest.unwrap_or(key).trim_end_matches('/');
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = if DOCKER_HUB_ALIASES.contains(&host) { DOCKER_HUB } else { host };
    match path {
        "" | "v1" | "v2" => host.to_owned(),
        path => format!("{host}/{path}"),
    }
}

/// The image's registry, as host and port.
pub fn registry(image: &str) -> &str {
    split_host(image).0
}

/// The registry of an image as the engine expects it in a request.
pub fn server_address(image: &str) -> &str {
    match registry(image) {
        DOCKER_HUB => DOCKER_HUB_ADDRESS,
        host => host,
    }
}

/// The image's repository with its registry, without tag and digest.
fn repository(image: &str) -> String {
    let (host, path) = split_host(image);
    let path = path.split('@').next().unwrap_or(path);
    let path = match path.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => path,
    };
    let library = if host == DOCKER_HUB && !path.contains('/') { "library/" } else { "" };
    format!("{host}/{library}{path}")
}

/// The registry of an image reference, and the rest. The first part is a host if it looks like one.
fn split_host(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            let host = if DOCKER_HUB_ALIASES.contains(&host) { DOCKER_HUB } else { host };
            (host, path)
        }
        _ => (DOCKER_HUB, image),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> RegistryConfig {
        RegistryConfig::parse(text.as_bytes()).unwrap()
    }

    fn user<'a>(config: &'a RegistryConfig, image: &str) -> Option<&'a str> {
        config.login(image).and_then(|login| login.username.as_deref())
    }

    #[test]
    fn image_gets_the_login_of_its_registry() {
        let config = parse(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
                "registry.example.org": {"username": "plain", "password": "p"},
                "registry.example.org:5000": {"username": "port", "password": "p"},
                "http://127.0.0.1:5000/v2/": {"username": "loopback", "password": "p"},
                "ghcr.io/team": {"username": "team", "password": "p"},
                "ghcr.io/team/a": {"username": "a", "password": "p"},
                "helper.example.org": {}
            }, "credsStore": "desktop"}"#,
        );
        for (image, expected) in [
            ("busybox", Some("hub")),
            ("team/worker:1", Some("hub")),
            ("docker.io/team/worker", Some("hub")),
            ("index.docker.io/team/worker", Some("hub")),
            ("registry.example.org/worker:1", Some("plain")),
            ("registry.example.org:5000/a/b@sha256:0f", Some("port")),
            ("registry.example.org:5001/a", None),
            ("127.0.0.1:5000/worker", Some("loopback")),
            ("ghcr.io/team/worker:1", Some("team")),
            ("ghcr.io/team/a:1", Some("a")),
            ("ghcr.io/team/a@sha256:0f", Some("a")),
            ("ghcr.io/team-b/worker", None),
            ("ghcr.io/worker", None),
            ("helper.example.org/worker", None),
            ("example.org/worker", None),
        ] {
            assert_eq!(user(&config, image), expected, "{image}");
        }
        assert_eq!(config.count(), 6);
        assert_eq!(server_address("busybox"), "https://index.docker.io/v1/");
        assert_eq!(server_address("127.0.0.1:5000/worker:1"), "127.0.0.1:5000");
    }

    #[test]
    fn login_is_read_from_auth_and_from_an_identity_token() {
        // user:pass:word with and without padding, and padded with NUL as by old versions.
        for auth in ["dXNlcjpwYXNzOndvcmQ=", "dXNlcjpwYXNzOndvcmQ", "dXNlcjpwYXNzOndvcmQA"] {
            let config = parse(&format!(r#"{{"auths": {{"a.b": {{"auth": "{auth}"}}}}}}"#));
            let login = config.login("a.b/c").unwrap();
            let (username, password) = (login.username.as_deref(), login.password.as_deref());
            assert_eq!((username, password), (Some("user"), Some("pass:word")), "{auth}");
        }
        // As `az acr login` writes it: a user without a password.
        let token = r#"{"auths": {"a.b": {"auth": "dXNlcjo=", "identitytoken": "t0k3n"}}}"#;
        let login = parse(token).login("a.b/c").cloned().unwrap();
        assert_eq!(login.identity_token.as_deref(), Some("t0k3n"));
        assert_eq!(login.password, None);
        assert_eq!(parse("{}").login("a.b/c"), None);
    }

    #[test]
    fn errors_and_debug_never_quote_the_content() {
        let place = |key: &str| key.to_owned();
        for (text, expected) in [
            ("{", InvalidRegistryConfig::Format { line: 1, column: 1 }),
            (r#"{"auths": "s3cret"}"#, InvalidRegistryConfig::Format { line: 1, column: 18 }),
            (
                r#"{"auths": {"a.b": {"auth": "s3cret!"}}}"#,
                InvalidRegistryConfig::Auth(place("a.b")),
            ),
            // "s3cret" without a colon.
            (
                r#"{"auths": {"a.b": {"auth": "czNjcmV0"}}}"#,
                InvalidRegistryConfig::Auth(place("a.b")),
            ),
            (
                r#"{"auths": {"a.b": {"password": "s3cret"}}}"#,
                InvalidRegistryConfig::Incomplete(place("a.b")),
            ),
        ] {
            let error = RegistryConfig::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let config = parse(r#"{"auths": {"a.b": {"username": "u", "password": "s3cret"}}}"#);
        assert_eq!(format!("{:?}", config.login("a.b/c")), "Some(RegistryLogin(..))");
        assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    }

    #[test]
    fn secrets_are_the_passwords_and_tokens() {
        let config = parse(
            r#"{"auths": {
                "a.b": {"username": "u", "password": "s3cret"},
                "c.d": {"username": "u", "identitytoken": "t0k3n"}
            }}"#,
        );
        assert_eq!(config.secrets().collect::<Vec<_>>(), ["s3cret", "t0k3n"]);
    }

    #[test]
    fn login_of_a_repository_does_not_depend_on_tag_and_digest() {
        let config = parse(
            r#"{"auths": {
                "docker.io/library/busybox": {"username": "official", "password": "p"},
                "docker.io/team": {"username": "team", "password": "p"},
                "a.b/c:5/d": {"username": "colon", "password": "p"}
            }}"#,
        );
        for image in ["busybox", "busybox:1", "docker.io/busybox@sha256:0f"] {
            assert_eq!(user(&config, image), Some("official"), "{image}");
        }
        assert_eq!(user(&config, "team/busybox"), Some("team"));
        assert_eq!(user(&config, "a.b/busybox"), None);
        assert_eq!(user(&config, "a.b/c:5/d"), Some("colon"), "a colon before a slash is no tag");
    }
}

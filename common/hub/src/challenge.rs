//! How a registry asks for credentials: the `WWW-Authenticate` header of a response. Pure.

use data_encoding::BASE64;
use neptune_registry_config::RegistryConfig;
use url::Url;

/// What a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token of the server at this URL.
    Bearer(Url),
}

/// The user and the password at a registry. The `Debug` output has neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Name of the account.
    pub username: String,
    /// Password, or a token that the registry issued in place of it.
    pub password: String,
}

impl Login {
    /// The login of a file for a repository, as host, port and path. `None` if it has none there, or an
    /// identity token only.
    pub fn of_repository(config: &RegistryConfig, repository: &str) -> Option<Self> {
        let login = config.login(repository)?;
        let (username, password) = (login.username.clone()?, login.password.clone()?);
        Some(Self { username, password })
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(..)")
    }
}

impl Login {
    /// The value of `Authorization`.
    pub(crate) fn basic(&self) -> String {
        let Self { username, password } = self;
        format!("Basic {}", BASE64.encode(format!("{username}:{password}").as_bytes()))
    }
}

/// Reads the header of a registry at `registry`. `None` if the scheme is unknown, or the server of
/// tokens is unsafe: a registry that is reached over https has one over https.
pub(crate) fn challenge(header: &str, registry: &Url, repository: &str) -> Option<Challenge> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut url: Url = parameter(rest, "realm")?.parse().ok()?;
    let is_safe =
        url.scheme() == "https" || (url.scheme() == "http" && registry.scheme() == "http");
    if !is_safe || url.host().is_none() || !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    let mut query = url.query_pairs_mut();
    if let Some(service) = parameter(rest, "service") {
        query.append_pair("service", service);
    }
    query.append_pair("scope", &format!("repository:{repository}:pull"));
    drop(query);
    Some(Challenge::Bearer(url))
}

/// A quoted parameter of a challenge.
fn parameter<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = text;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, next) = after.split_once('"')?;
        if key.trim_matches([' ', ',']).eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = next;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[test]
    fn challenge_names_basic_or_a_server_of_tokens() {
        let https: Url = "https://r/v2/".parse().unwrap();
        let http: Url = "http://r/v2/".parse().unwrap();
        let read = |text: &str, registry| challenge(text, registry, "a/m");
        assert_eq!(read("Basic realm=\"x\"", &https), Some(Challenge::Basic));
        let bearer =
            "Bearer realm=\"https://t/token\",service=\"r, x\",scope=\"repository:other:push\"";
        let Some(Challenge::Bearer(url)) = read(bearer, &https) else { panic!() };
        assert_eq!(url.as_str(), "https://t/token?service=r%2C+x&scope=repository%3Aa%2Fm%3Apull");
        assert!(read("bearer realm=\"http://t/token\"", &http).is_some());
        for unsafe_one in [
            "Bearer realm=\"http://t/token\"",
            "Bearer realm=\"file:///etc\"",
            "Bearer realm=\"https://u:p@t/\"",
            "Bearer realm=\"https://t",
            "Bearer service=\"r\"",
            "Negotiate",
            "",
        ] {
            assert_eq!(read(unsafe_one, &https), None, "{unsafe_one}");
        }
    }

    #[test]
    fn login_is_not_shown() {
        let login = Login { username: "ann".to_owned(), password: "s3cret".to_owned() };
        assert_eq!(login.basic(), "Basic YW5uOnMzY3JldA==");
        assert_eq!(format!("{login:?}"), "Login(..)");
    }
}

//! Parses `--router-url` and `--upstream-url`, to which paths are appended. Pure.

use std::{fmt, str::FromStr};

use reqwest::Url;

/// A base URL: `http://host[:port][/path]`, or https, without a slash at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(String);

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("{error}; write http://host:port"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "the scheme {:?} is not supported; use http:// or https://",
                url.scheme()
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("paths are appended to it; remove '?' and '#' with what follows".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("remove the user and the password".to_owned());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_url_accepts_only_what_paths_can_be_appended_to() {
        for (text, read) in [
            ("http://cloudcore.kubeedge:9443", "http://cloudcore.kubeedge:9443"),
            ("http://127.0.0.1:9443/", "http://127.0.0.1:9443"),
            ("https://gate.example/neptune/", "https://gate.example/neptune"),
        ] {
            assert_eq!(text.parse::<BaseUrl>().map(|url| url.to_string()), Ok(read.to_owned()));
        }
        for wrong in [
            "cloudcore",
            "cloudcore:9443",
            "mqtt://broker",
            "http://a/?b",
            "http://a#b",
            "http://u:p@a",
            "",
        ] {
            assert!(wrong.parse::<BaseUrl>().is_err(), "{wrong:?} was accepted");
        }
    }
}

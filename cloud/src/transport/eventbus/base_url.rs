//! The addresses of `--router-url` and `--upstream-url`: what paths are put behind. Pure.

use std::{fmt, str::FromStr};

use reqwest::Url;

/// `http://host[:port][/path]`, or https, without a slash at the end.
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
            return Err(format!("{}:// is neither http:// nor https://", url.scheme()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("paths are put behind it, so it can have neither '?' nor '#'".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it can have neither user nor password".to_owned());
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_put_behind_it() {
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
            assert!(wrong.parse::<BaseUrl>().is_err(), "{wrong:?} was taken");
        }
    }
}

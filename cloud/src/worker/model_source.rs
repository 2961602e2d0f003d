//! Parses a Model's `modelUrl`. Pure.

use std::str::FromStr;

/// The source of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// An absolute path on the node that runs the worker.
    Path(String),
    /// An http or https address.
    Http(String),
}

/// Why a `modelUrl` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelUrlError {
    #[error("it is empty")]
    Empty,
    #[error("the scheme {0:?} is not supported")]
    Scheme(String),
    #[error("the host is missing")]
    Host,
    #[error("the path is not absolute")]
    Relative,
    #[error("the path names no file")]
    NoFile,
    #[error("the path has a part \"..\"")]
    Parent,
}

impl FromStr for ModelSource {
    type Err = ModelUrlError;

    fn from_str(url: &str) -> Result<Self, ModelUrlError> {
        if url.is_empty() {
            return Err(ModelUrlError::Empty);
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return path(url);
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" if rest.is_empty() || rest.starts_with(['/', '?', '#']) => {
                Err(ModelUrlError::Host)
            }
            "http" | "https" => Ok(Self::Http(url.to_owned())),
            "file" => path(rest),
            _ => Err(ModelUrlError::Scheme(scheme.to_owned())),
        }
    }
}

fn path(path: &str) -> Result<ModelSource, ModelUrlError> {
    if !path.starts_with('/') {
        return Err(ModelUrlError::Relative);
    }
    if path.split('/').any(|part| part == "..") {
        return Err(ModelUrlError::Parent);
    }
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() {
        return Err(ModelUrlError::NoFile);
    }
    Ok(ModelSource::Path(trimmed.to_owned()))
}

impl ModelSource {
    /// The file name in the worker's model directory: the last segment of the path, with '_' for characters that are
    /// special in mounts or shells.
    pub fn file_name(&self) -> String {
        let path = match self {
            Self::Path(path) => path,
            Self::Http(url) => {
                let end = url.find(['?', '#']).unwrap_or(url.len());
                let start = url.find("://").map_or(0, |scheme| scheme + 3);
                url[start..end].split_once('/').map_or("", |(_, path)| path)
            }
        };
        match path.rsplit('/').next() {
            None | Some("" | "." | "..") => "model".to_owned(),
            Some(name) => name.replace(|c: char| !is_plain(c), "_"),
        }
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_supported_url_has_a_file_name() {
        for (url, source, file) in [
            ("/model/frozen.pb", ModelSource::Path("/model/frozen.pb".into()), "frozen.pb"),
            ("file:///model/frozen.pb", ModelSource::Path("/model/frozen.pb".into()), "frozen.pb"),
            ("/model/saved/", ModelSource::Path("/model/saved".into()), "saved"),
            ("http://h/a/b.onnx", ModelSource::Http("http://h/a/b.onnx".into()), "b.onnx"),
            ("HTTPS://h/b?x=/y#z", ModelSource::Http("HTTPS://h/b?x=/y#z".into()), "b"),
            ("http://host", ModelSource::Http("http://host".into()), "model"),
            ("http://host/a/", ModelSource::Http("http://host/a/".into()), "model"),
            ("/model/a b:c", ModelSource::Path("/model/a b:c".into()), "a_b_c"),
            ("http://host/..", ModelSource::Http("http://host/..".into()), "model"),
        ] {
            let parsed: ModelSource = url.parse().unwrap();
            assert_eq!((&*parsed.file_name(), &parsed), (file, &source), "{url}");
        }
    }

    #[test]
    fn unsupported_model_url_is_rejected() {
        for (url, error) in [
            ("", ModelUrlError::Empty),
            ("model.pb", ModelUrlError::Relative),
            ("file://model.pb", ModelUrlError::Relative),
            ("s3://bucket/model", ModelUrlError::Scheme("s3".into())),
            ("http:///model", ModelUrlError::Host),
            ("/", ModelUrlError::NoFile),
            ("/models/../etc/shadow", ModelUrlError::Parent),
        ] {
            assert_eq!(url.parse::<ModelSource>(), Err(error), "{url}");
        }
    }
}

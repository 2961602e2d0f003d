//! Which requests are decided, from method and path, and the paths of the same requests at the
//! cloud.

use std::time::Duration;

use hyper::Method;

use crate::config::Protocol;

/// Whether a request asks whether the model server works, and nothing else: it needs no key.
pub fn is_health(protocol: Protocol, method: &Method, path: &str) -> bool {
    let is_read = [Method::GET, Method::HEAD].contains(method);
    is_read
        && match protocol {
            Protocol::Openai => path == "/health",
            Protocol::Oip => ["/v2/health/live", "/v2/health/ready"].contains(&path),
            Protocol::Tfserving => false,
        }
}

/// A request that is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task<'a> {
    /// One batch for a model of a tensor protocol.
    Tensors {
        /// Name of the model, with the suffix of a route pin if it has one.
        model: &'a str,
        /// What follows the model in the path, such as `/versions/3/infer` or `:predict`.
        rest: &'a str,
        /// Whether the path names a version.
        is_versioned: bool,
    },
    /// A chat completion, `/v1/chat/completions`.
    Chat,
    /// A text completion, `/v1/completions`.
    Completion,
}

impl<'a> Task<'a> {
    /// The request, if it is one that is decided.
    pub fn from_request(protocol: Protocol, method: &Method, path: &'a str) -> Option<Self> {
        if method != Method::POST {
            return None;
        }
        match protocol {
            Protocol::Openai => match path {
                "/v1/chat/completions" => Some(Self::Chat),
                "/v1/completions" => Some(Self::Completion),
                _ => None,
            },
            Protocol::Oip => {
                let (model, rest) = split(path.strip_prefix("/v2/models/")?, "/")?;
                let version = rest.strip_suffix("/infer")?;
                let is_versioned = is_element(version, "/versions/");
                (is_versioned || version.is_empty()).then_some(Self::Tensors {
                    model,
                    rest,
                    is_versioned,
                })
            }
            Protocol::Tfserving => {
                let (model, rest) = split(path.strip_prefix("/v1/models/")?, "/:")?;
                let version = rest.strip_suffix(":predict")?;
                let is_versioned =
                    is_element(version, "/versions/") || is_element(version, "/labels/");
                (is_versioned || version.is_empty()).then_some(Self::Tensors {
                    model,
                    rest,
                    is_versioned,
                })
            }
        }
    }

    /// The path of the request with another name of the model.
    pub fn path(&self, protocol: Protocol, name: &str) -> String {
        match self {
            Self::Chat => "/v1/chat/completions".to_owned(),
            Self::Completion => "/v1/completions".to_owned(),
            Self::Tensors { rest, .. } => {
                let api = if protocol == Protocol::Oip { "v2" } else { "v1" };
                format!("/{api}/models/{name}{rest}")
            }
        }
    }

    /// The path at the cloud: its models have versions of their own.
    pub fn cloud_path(&self, protocol: Protocol, name: &str) -> String {
        let latest = match protocol {
            Protocol::Oip => "/infer",
            _ => ":predict",
        };
        match self {
            Self::Tensors { model, .. } => {
                Task::Tensors { model, rest: latest, is_versioned: false }.path(protocol, name)
            }
            _ => self.path(protocol, name),
        }
    }
}

/// Splits before the first of the characters; the first part is not empty.
fn split<'a>(text: &'a str, characters: &str) -> Option<(&'a str, &'a str)> {
    let at = text.find(|c| characters.contains(c)).filter(|at| *at > 0)?;
    Some(text.split_at(at))
}

/// Whether it is the prefix and one more element of a path.
fn is_element(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
}

/// Whether the path is of Triton's shared memory, which one of two servers cannot have alone.
pub fn is_shared_memory(protocol: Protocol, path: &str) -> bool {
    let folders = ["/v2/systemsharedmemory", "/v2/cudasharedmemory"];
    protocol == Protocol::Oip && folders.iter().any(|folder| path.starts_with(folder))
}

/// Returns the name of a model without the suffix that is a route pin; `None` if it has none.
pub fn unpinned(model: &str) -> Option<&str> {
    model.strip_suffix("@edge").or_else(|| model.strip_suffix("%40edge"))
}

/// The time in `grpc-timeout`, such as `100m`; `None` if it is none.
pub fn grpc_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The URL of a path below the cloud's base. A base that ends with the path's first element, such
/// as `/v1`, has it already.
pub fn join(base: &str, path: &str) -> String {
    let base = base.trim_end_matches('/');
    let first = path.get(1..).and_then(|path| path.find('/')).map(|end| &path[..=end]);
    match first {
        Some(first) if base.ends_with(first) => format!("{base}{}", &path[first.len()..]),
        _ => format!("{base}{path}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn model(protocol: Protocol, path: &str) -> Option<(&str, bool)> {
        match Task::from_request(protocol, &Method::POST, path)? {
            Task::Tensors { model, is_versioned, .. } => Some((model, is_versioned)),
            _ => None,
        }
    }

    #[test]
    fn only_inference_is_decided() {
        for (protocol, path, expected) in [
            (Protocol::Oip, "/v2/models/m/infer", Some(("m", false))),
            (Protocol::Oip, "/v2/models/m/versions/3/infer", Some(("m", true))),
            (Protocol::Oip, "/v2/models/m/generate", None),
            (Protocol::Oip, "/v2/models/m/x/y/infer", None),
            (Protocol::Oip, "/v2/models//infer", None),
            (Protocol::Oip, "/v1/models/m:predict", None),
            (Protocol::Tfserving, "/v1/models/m:predict", Some(("m", false))),
            (Protocol::Tfserving, "/v1/models/m/labels/a:predict", Some(("m", true))),
            (Protocol::Tfserving, "/v1/models/m:classify", None),
            (Protocol::Openai, "/v1/embeddings", None),
        ] {
            assert_eq!(model(protocol, path), expected, "{path}");
        }
        assert_eq!(Task::from_request(Protocol::Oip, &Method::GET, "/v2/models/m/infer"), None);
    }

    #[test]
    fn cloud_gets_its_own_model_without_the_edges_version() {
        let path = "/v2/models/small/versions/3/infer";
        let task = Task::from_request(Protocol::Oip, &Method::POST, path).unwrap();
        assert_eq!(task.path(Protocol::Oip, "small"), path);
        assert_eq!(task.cloud_path(Protocol::Oip, "big"), "/v2/models/big/infer");
        let path = "/v1/models/small/versions/3:predict";
        let task = Task::from_request(Protocol::Tfserving, &Method::POST, path).unwrap();
        assert_eq!(task.cloud_path(Protocol::Tfserving, "big"), "/v1/models/big:predict");
    }

    #[test]
    fn base_may_contain_the_first_element_of_the_path() {
        for (base, expected) in [
            ("https://a/v1", "https://a/v1/chat/completions"),
            ("https://a/v1/", "https://a/v1/chat/completions"),
            ("https://a", "https://a/v1/chat/completions"),
            ("https://a/team", "https://a/team/v1/chat/completions"),
        ] {
            assert_eq!(join(base, "/v1/chat/completions"), expected);
        }
    }

    #[test]
    fn timeouts_of_grpc_have_a_unit() {
        for (text, millis) in [
            ("2H", Some(7_200_000)),
            ("1M", Some(60_000)),
            ("3S", Some(3_000)),
            ("250m", Some(250)),
            ("5000u", Some(5)),
            ("5000000n", Some(5)),
            ("123456789m", None),
            ("-1m", None),
            ("m", None),
            ("1", None),
            ("1é", None),
            ("", None),
        ] {
            assert_eq!(grpc_timeout(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn suffix_of_the_model_keeps_a_request_at_the_edge() {
        assert_eq!(unpinned("m@edge"), Some("m"));
        assert_eq!(unpinned("m%40edge"), Some("m"));
        assert_eq!(unpinned("m"), None);
    }
}

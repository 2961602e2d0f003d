//! The path, query and headers of a request as types. Pure.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::field::FieldError;
use crate::status::{ApiError, GroupName};

/// A path of a resource under `/api` or `/apis`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub namespace: Option<String>,
    pub plural: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl ResourcePath {
    /// Returns `None` for other paths.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..]
                if !matches!(*plural, "status" | "finalize") =>
            {
                (Some(*namespace), std::iter::once(plural).chain(rest).copied().collect::<Vec<_>>())
            }
            other => (None, other.to_vec()),
        };
        let (plural, name, subresource) = match rest.as_slice() {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return None,
        };
        let owned = |text: &str| text.to_owned();
        Some(Self {
            group: owned(group),
            version: owned(version),
            namespace: namespace.map(owned),
            plural: owned(plural),
            name: name.map(owned),
            subresource: subresource.map(owned),
        })
    }
}

/// The handling of unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The query and the headers that verbs use.
#[derive(Debug, Clone)]
pub struct Options {
    query: HashMap<String, String>,
    pub accept: String,
    user_agent: String,
    /// The API type of the verb's options.
    pub kind: &'static str,
    pub now: Timestamp,
    /// The impersonated user; "" for none.
    pub user: String,
}

impl Options {
    pub fn new(
        query: HashMap<String, String>,
        accept: &str,
        user_agent: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            query,
            accept: accept.to_owned(),
            user_agent: user_agent.to_owned(),
            kind: "GetOptions",
            now,
            user: String::new(),
        }
    }

    /// The same options with a dry run.
    pub fn as_dry_run(&self) -> Self {
        let mut options = self.clone();
        options.query.insert("dryRun".to_owned(), "All".to_owned());
        options
    }

    pub fn get(&self, name: &str) -> &str {
        self.query.get(name).map(String::as_str).unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1")
    }

    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            "" => Ok(None),
            // Negative numbers are ignored.
            text => text.parse::<i64>().map(|number| u64::try_from(number).ok()).map_err(|_| {
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }

    /// The requested `resourceVersion`.
    ///
    /// # Errors
    /// The text of the violation.
    pub fn version(&self) -> Result<Option<u64>, String> {
        match self.get("resourceVersion") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
            }),
        }
    }

    /// The error for an invalid option.
    fn invalid(&self, error: FieldError) -> ApiError {
        ApiError::invalid(GroupName { group: "meta.k8s.io", name: self.kind }, "", &[error])
    }

    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(self.invalid(FieldError::unsupported("dryRun", vec![other], &["All"]))),
        }
    }

    pub fn field_validation(&self) -> Result<FieldValidation, ApiError> {
        match self.get("fieldValidation") {
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Ignore" => Ok(FieldValidation::Ignore),
            "Strict" => Ok(FieldValidation::Strict),
            other => Err(self.invalid(FieldError::unsupported(
                "fieldValidation",
                other,
                &["", "Ignore", "Strict", "Warn"],
            ))),
        }
    }

    /// The field manager of the query, or the first part of the user agent.
    pub fn field_manager(&self) -> String {
        match self.get("fieldManager") {
            "" => match self.user_agent.split('/').next() {
                None | Some("") => "unknown".to_owned(),
                Some(prefix) => prefix.chars().take(128).collect(),
            },
            given => given.to_owned(),
        }
    }

    /// Whether the client requests a Table instead of objects.
    pub fn wants_table(&self) -> bool {
        self.first_known_accept() == Some("Table")
    }

    /// The `as=` parameter of the first supported media type in Accept; none for plain JSON.
    fn first_known_accept(&self) -> Option<&str> {
        let known = self.accept.split(',').map(str::trim).find(|media| is_json(media))?;
        let parameter = |name: &str| {
            known
                .split(';')
                .map(str::trim)
                .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        parameter("as").filter(|_| parameter("g") == Some("meta.k8s.io"))
    }

    /// Whether Accept contains a supported media type.
    pub fn accepts_json(&self) -> bool {
        self.accept.is_empty() || self.accept.split(',').any(|media| is_json(media.trim()))
    }
}

fn is_json(media: &str) -> bool {
    let name = media.split(';').next().unwrap_or_default().trim();
    matches!(name, "application/json" | "application/*" | "*/*" | "")
}

/// A path with decoded `%41` sequences; malformed sequences are kept.
pub fn percent_decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let pair =
            path.get(position + 1..position + 3).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (bytes[position], pair) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                position += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                position += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shown(path: &str) -> Option<String> {
        ResourcePath::parse(path).map(|p| {
            format!(
                "{}|{}|{:?}|{}|{:?}|{:?}",
                p.group,
                p.version,
                p.namespace.as_deref(),
                p.plural,
                p.name.as_deref(),
                p.subresource.as_deref()
            )
        })
    }

    #[test]
    fn paths_are_parsed() {
        let table = [
            ("/api/v1/pods", r"|v1|None|pods|None|None"),
            ("/api/v1/namespaces", r"|v1|None|namespaces|None|None"),
            ("/api/v1/namespaces/x", r#"|v1|None|namespaces|Some("x")|None"#),
            ("/api/v1/namespaces/x/status", r#"|v1|None|namespaces|Some("x")|Some("status")"#),
            (
                "/api/v1/namespaces/x/pods/p/status",
                r#"|v1|Some("x")|pods|Some("p")|Some("status")"#,
            ),
            ("/apis/g.io/v1/namespaces/x/things", r#"g.io|v1|Some("x")|things|None|None"#),
        ];
        for (path, expected) in table {
            assert_eq!(shown(path).unwrap(), expected, "{path}");
        }
        assert_eq!(shown("/healthz"), None);
        assert_eq!(shown("/apis/g.io/v1"), None);
    }

    #[test]
    fn accept_header_selects_tables() {
        let options = |accept: &str| {
            Options::new(HashMap::new(), accept, "kubectl/v1.32", Timestamp::UNIX_EPOCH)
        };
        assert!(
            options("application/json;as=Table;v=v1;g=meta.k8s.io,application/json").wants_table()
        );
        assert!(!options("application/json").wants_table());
        assert!(!options("application/vnd.kubernetes.protobuf").accepts_json());
        assert_eq!(options("").field_manager(), "kubectl");
    }
}

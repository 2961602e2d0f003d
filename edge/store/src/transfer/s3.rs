//! The URL of an S3 object, and the signature of a request for it (AWS Signature Version 4). Pure.
//! `http` sends the requests, so that S3 downloads resume, stall and fail like all others.
//!
//! The `object_store` crate is not used: it has its own client, without the address checks and the
//! resumption with If-Match, and adds a second TLS, hash and date library for one signed GET.

use std::{collections::BTreeMap, fmt};

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use sha2::Sha256;

use crate::{Digest, ModelError};

/// Endpoint, region and credentials for S3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Config {
    /// URL of a server such as `MinIO`, with the bucket in the path. `None` for AWS.
    pub endpoint: Option<Url>,
    /// Region, for the signature and for the host name of AWS. Default: `us-east-1`.
    pub region: String,
    /// `None` for public buckets: requests are then not signed.
    pub credentials: Option<S3Credentials>,
}

/// An access key for S3. Its `Debug` output contains only the key ID.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    /// ID of the access key.
    pub key_id: String,
    /// Secret of the access key.
    pub secret: String,
    /// Session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Default for S3Config {
    fn default() -> Self {
        Self { endpoint: None, region: "us-east-1".to_owned(), credentials: None }
    }
}

impl S3Config {
    /// Reads the environment variables that AWS programs read: `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` or `AWS_DEFAULT_REGION`,
    /// `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`. Unset values come from profile `[default]` of
    /// `file`, the content of a file like `~/.aws/credentials`.
    ///
    /// # Errors
    /// [`ModelError::S3Settings`] if only one part of the access key is set, or if the endpoint is
    /// not a URL.
    pub fn from_env(
        variable: impl Fn(&str) -> Option<String>,
        file: Option<&str>,
    ) -> Result<Self, ModelError> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let profile = file.map(default_profile).unwrap_or_default();
        let credentials = match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
            (Some(key_id), Some(secret)) => {
                Some(S3Credentials { key_id, secret, session_token: set("AWS_SESSION_TOKEN") })
            }
            (None, None) => from_profile(&profile)?,
            _ => {
                return Err(invalid(
                    "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither",
                ));
            }
        };
        let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.map(|text| {
            text.parse()
                .map_err(|_| invalid("AWS_ENDPOINT_URL_S3 is not a URL; use http://host:port"))
        });
        let region = set("AWS_REGION")
            .or_else(|| set("AWS_DEFAULT_REGION"))
            .or_else(|| profile.get("region").cloned());
        Ok(Self {
            endpoint: endpoint.transpose()?,
            region: region.unwrap_or(Self::default().region),
            credentials,
        })
    }

    /// Returns the URL of an object at the endpoint.
    pub(crate) fn object_url(&self, bucket: &str, key: &str) -> Result<Url, ModelError> {
        let key = encode(key);
        let region = &self.region;
        let text = match &self.endpoint {
            Some(endpoint) => {
                format!("{}/{bucket}/{key}", endpoint.as_str().trim_end_matches('/'))
            }
            // The wildcard certificate of AWS does not cover a bucket name with a dot.
            None if bucket.contains('.') => {
                format!("https://s3.{region}.amazonaws.com/{bucket}/{key}")
            }
            None => format!("https://{bucket}.s3.{region}.amazonaws.com/{key}"),
        };
        let url: Option<Url> = text.parse().ok();
        url.filter(|url| matches!(url.scheme(), "http" | "https")).ok_or_else(|| {
            invalid("AWS_ENDPOINT_URL_S3 is not an http or https URL; use http://host:port")
        })
    }

    /// The headers that authorize a GET of `url`. `signed` are further headers to sign.
    pub(crate) fn sign(&self, url: &Url, now: Timestamp, signed: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let Some(credentials) = &self.credentials else { return headers };
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let host = url.host_str().unwrap_or_default();
        let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let empty = Digest::of_bytes(b"").to_string();
        let mut all: BTreeMap<&str, &str> = signed.iter().copied().collect();
        all.extend([("host", &*host), ("x-amz-content-sha256", &*empty), ("x-amz-date", &*time)]);
        if let Some(token) = &credentials.session_token {
            all.insert("x-amz-security-token", token);
        }
        let authorization = self.authorization(credentials, url.path(), &time, &all);
        for (name, value) in all.into_iter().filter(|(name, _)| name.starts_with("x-amz-")) {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                headers.insert(name, value);
            }
        }
        if let Ok(mut value) = authorization.parse::<HeaderValue>() {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers
    }

    fn authorization(
        &self,
        credentials: &S3Credentials,
        path: &str,
        time: &str,
        headers: &BTreeMap<&str, &str>,
    ) -> String {
        let names: Vec<&str> = headers.keys().copied().collect();
        let names = names.join(";");
        let lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}:{}", value.trim())).collect();
        let lines = lines.join("\n");
        let body = headers.get("x-amz-content-sha256").copied().unwrap_or_default();
        let request = format!("GET\n{path}\n\n{lines}\n\n{names}\n{body}");
        let date = &time[..8];
        let scope = format!("{date}/{}/s3/aws4_request", self.region);
        let text =
            format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", Digest::of_bytes(request.as_bytes()));
        let key = [date, &self.region, "s3", "aws4_request"]
            .iter()
            .fold(format!("AWS4{}", credentials.secret).into_bytes(), |key, part| hmac(&key, part));
        let signature = hex(&hmac(&key, &text));
        let id = &credentials.key_id;
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={names},Signature={signature}"
        )
    }
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let digits = |byte: &u8| {
        [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
    };
    bytes.iter().flat_map(digits).collect()
}

/// Percent-encodes everything except unreserved characters and slashes, as S3 requires.
fn encode(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    key.bytes()
        .map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

fn default_profile(text: &str) -> BTreeMap<String, String> {
    let mut is_default = false;
    let mut values = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_default = line == "[default]";
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_default) {
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    values
}

fn from_profile(profile: &BTreeMap<String, String>) -> Result<Option<S3Credentials>, ModelError> {
    let get = |name: &str| profile.get(name).cloned();
    match (get("aws_access_key_id"), get("aws_secret_access_key")) {
        (None, None) => Ok(None),
        (Some(key_id), Some(secret)) => {
            Ok(Some(S3Credentials { key_id, secret, session_token: get("aws_session_token") }))
        }
        _ => Err(invalid(
            "credentials file must have both aws_access_key_id and aws_secret_access_key, or neither",
        )),
    }
}

fn invalid(reason: &str) -> ModelError {
    ModelError::S3Settings { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn example() -> S3Config {
        S3Config {
            credentials: Some(S3Credentials {
                key_id: "AKIAIOSFODNN7EXAMPLE".into(),
                secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
                session_token: None,
            }),
            ..S3Config::default()
        }
    }

    #[test]
    fn signature_equals_the_published_example() {
        // Source: Amazon S3 API reference, "Authenticating Requests: Using the Authorization
        // Header", GET Object.
        let url = "https://examplebucket.s3.amazonaws.com/test.txt".parse().unwrap();
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        let headers = example().sign(&url, now, &[("range", "bytes=0-9")]);
        assert_eq!(
            headers[AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn object_url_depends_on_endpoint_and_bucket() {
        let aws = S3Config { region: "eu-west-1".into(), ..S3Config::default() };
        let minio =
            S3Config { endpoint: Some("http://h:9000/".parse().unwrap()), ..S3Config::default() };
        for (s3, bucket, url) in [
            (&aws, "models", "https://models.s3.eu-west-1.amazonaws.com/a/b%20c%2B%C3%A9.bin"),
            (
                &aws,
                "my.models",
                "https://s3.eu-west-1.amazonaws.com/my.models/a/b%20c%2B%C3%A9.bin",
            ),
            (&minio, "models", "http://h:9000/models/a/b%20c%2B%C3%A9.bin"),
        ] {
            assert_eq!(s3.object_url(bucket, "a/b c+é.bin").unwrap().as_str(), url);
        }
        assert!(
            S3Config::default()
                .sign(&"http://h/".parse().unwrap(), Timestamp::UNIX_EPOCH, &[])
                .is_empty()
        );
    }

    #[test]
    fn credentials_are_read_from_environment_or_file_and_hidden() {
        let file = "[other]\naws_access_key_id=no\n[default]\naws_access_key_id = id\naws_secret_access_key=hidden\nregion=eu\n";
        let from_file = S3Config::from_env(|_| None, Some(file)).unwrap();
        assert_eq!(from_file.region, "eu");
        assert!(!format!("{from_file:?}").contains("hidden"));
        let variables = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("first".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("s".to_owned()),
            "AWS_ENDPOINT_URL" => Some("http://minio:9000".to_owned()),
            _ => None,
        };
        let both = S3Config::from_env(variables, Some(file)).unwrap();
        assert_eq!(both.credentials.unwrap().key_id, "first");
        assert_eq!(both.endpoint.unwrap().as_str(), "http://minio:9000/");
        assert!(
            S3Config::from_env(|name| (name == "AWS_ACCESS_KEY_ID").then(|| "x".into()), None)
                .is_err()
        );
        assert_eq!(S3Config::from_env(|_| None, None).unwrap(), S3Config::default());
    }
}

//! Parses the addresses of models and datasets (`modelUrl`, `dataUrl`, `downloadURL`). This is the
//! only parser: the controller, the agent and its store use it, and tests hold the CRDs to it.

use std::{fmt, str::FromStr};

use crate::{AddressError, ContentHash, HubAddress, OciAddress};

/// The address of a model or dataset.
///
/// Accepted are `http://...`, `https://...`, `s3://bucket/key`, `hf://organization/repository`,
/// `oci://host/repository`, `file:///path`, and an absolute path. The scheme is not case-sensitive. White space at the end is
/// ignored.
///
/// `Display` and `Debug` show no user, password, query and fragment, which may contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArtifactAddress {
    /// An absolute path on a node, without trailing `/` and white space, and without `..`.
    Path(String),
    /// An http or https URL.
    Http(HttpUrl),
    /// An object in an S3 bucket.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Key of the object.
        key: String,
    },
    /// A file or a set of files in a repository of a model hub.
    Hub(HubAddress),
    /// The files of an artifact in a container registry.
    Oci(OciAddress),
}

/// An http or https URL with a host. It may contain credentials, which `Display` and `Debug` omit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpUrl(String);

/// Endings of archives, which are extracted.
const ARCHIVES: [&str; 5] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip"];

/// Maximum length of [`ArtifactAddress::file_name`].
const MAX_FILE_NAME: usize = 128;

impl FromStr for ArtifactAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim_end();
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(AddressError::ControlCharacter);
        }
        if text.starts_with('/') {
            return path(text);
        }
        let (scheme, rest) = text.split_once(':').ok_or(AddressError::NotAnAddress)?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => http(text, rest),
            "file" => file(rest),
            "s3" => s3(rest),
            "hf" => HubAddress::parse(rest).map(Self::Hub),
            "oci" => OciAddress::parse(rest).map(Self::Oci),
            scheme if is_scheme(scheme) => Err(AddressError::Scheme(scheme.to_owned())),
            _ => Err(AddressError::NotAnAddress),
        }
    }
}

/// Whether an error may show this text. It is the start of the address, which may be a password.
fn is_scheme(text: &str) -> bool {
    (1..=20).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

fn path(text: &str) -> Result<ArtifactAddress, AddressError> {
    if text.split('/').any(|part| part == "..") {
        return Err(AddressError::Parent);
    }
    // Both, so that the path remains itself when it is parsed again.
    match text.trim_end_matches(|last: char| last == '/' || last.is_whitespace()) {
        "" => Err(AddressError::Root),
        path => Ok(ArtifactAddress::Path(path.to_owned())),
    }
}

fn file(rest: &str) -> Result<ArtifactAddress, AddressError> {
    let path_text = rest
        .strip_prefix("//localhost")
        .or_else(|| rest.strip_prefix("//"))
        .filter(|path| path.starts_with('/') && !path.contains(['%', '?', '#']))
        .ok_or(AddressError::FileUrl)?;
    path(path_text).map_err(|error| match error {
        AddressError::Parent => AddressError::FileUrl,
        error => error,
    })
}

fn http(text: &str, rest: &str) -> Result<ArtifactAddress, AddressError> {
    let rest = rest.strip_prefix("//").ok_or(AddressError::Host)?;
    if rest.contains('\\') {
        // URL parsers treat it as `/`, so that the host would be another one than it seems.
        return Err(AddressError::Backslash);
    }
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, "")) => (host, ""),
        Some((host, port)) => (host, port.strip_prefix(':').ok_or(AddressError::Host)?),
        None => host.split_once(':').unwrap_or((host, "")),
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(AddressError::Host);
    }
    let is_digits = port.bytes().all(|b| b.is_ascii_digit());
    if !is_digits || (!port.is_empty() && port.parse::<u16>().is_err()) {
        return Err(AddressError::Port);
    }
    Ok(ArtifactAddress::Http(HttpUrl(text.to_owned())))
}

fn s3(rest: &str) -> Result<ArtifactAddress, AddressError> {
    let (bucket, key) =
        rest.strip_prefix("//").and_then(|rest| rest.split_once('/')).ok_or(AddressError::S3)?;
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-');
    if !(3..=63).contains(&bucket.len())
        || !bucket.chars().all(is_valid)
        || bucket.starts_with(['.', '-'])
        || bucket.contains("..")
    {
        return Err(AddressError::Bucket);
    }
    if key.is_empty() || key.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(AddressError::Key);
    }
    Ok(ArtifactAddress::S3 { bucket: bucket.to_owned(), key: key.to_owned() })
}

impl ArtifactAddress {
    /// Returns the complete address including credentials, for a download. It parses to an equal
    /// value.
    pub fn to_url(&self) -> String {
        match self {
            Self::Path(path) => path.clone(),
            Self::Http(url) => url.0.clone(),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
            Self::Hub(address) => address.to_string(),
            Self::Oci(address) => address.to_string(),
        }
    }

    /// Selects files of a repository by patterns, which the complete address then contains.
    ///
    /// # Errors
    /// [`AddressError::FilesNotSupported`] for other addresses than those of a repository,
    /// [`AddressError::FilesOfFile`] for that of one file, [`AddressError::FilePatterns`].
    pub fn with_files(self, files: &[String]) -> Result<Self, AddressError> {
        match self {
            address if files.is_empty() => Ok(address),
            Self::Hub(address) => address.with_files(files).map(Self::Hub),
            Self::Oci(address) => address.with_files(files).map(Self::Oci),
            Self::Path(_) | Self::Http(_) | Self::S3 { .. } => Err(AddressError::FilesNotSupported),
        }
    }

    /// Returns whether the artifact is a set of files, each of which is downloaded on its own. An
    /// artifact of a registry is always one.
    pub fn is_set(&self) -> bool {
        match self {
            Self::Hub(address) => address.is_set(),
            Self::Oci(_) => true,
            Self::Path(_) | Self::Http(_) | Self::S3 { .. } => false,
        }
    }

    /// Returns whether the artifact is a directory once it is downloaded: an archive, or a set of
    /// files.
    pub fn is_directory(&self) -> bool {
        self.is_set() || self.is_archive()
    }

    /// Returns whether the artifact is an archive, which is extracted: `.tar`, `.tar.gz`, `.tgz`,
    /// `.tar.zst` or `.zip`. A set of files is none.
    pub fn is_archive(&self) -> bool {
        if self.is_set() {
            return false;
        }
        let path = self.path().to_ascii_lowercase();
        ARCHIVES.iter().any(|end| path.ends_with(end))
    }

    /// Returns the last part of the path as a file name: letters, digits, '.', '-' and '_', at most
    /// 128 characters. `model` if there is none.
    pub fn file_name(&self) -> String {
        safe_file_name(self.path())
    }

    fn path(&self) -> &str {
        match self {
            Self::Path(path) => path,
            Self::Http(url) => url.path(),
            Self::S3 { key, .. } => key,
            Self::Hub(address) => address.path.as_deref().unwrap_or(&address.repository),
            Self::Oci(address) => address.name(),
        }
    }
}

/// Returns an address as messages show it: without user, password, query and fragment, whether it is
/// valid or not. Queries of different text stay different: four hex digits of their hash replace
/// them, too few to guess a secret.
pub fn redact(text: &str) -> String {
    let text = text.trim_end();
    let address = text.parse::<ArtifactAddress>();
    if let Ok(ArtifactAddress::Path(_) | ArtifactAddress::S3 { .. }) = address {
        return text.to_owned();
    }
    if let Ok(ArtifactAddress::Hub(_) | ArtifactAddress::Oci(_)) = address {
        return address.map_or_else(|_| String::new(), |address| address.to_string());
    }
    let (scheme, rest) = match text.find("://") {
        Some(at) if is_scheme(&text[..at]) => text.split_at(at + 3),
        _ => ("", text),
    };
    // If the address is not valid, any part before an `@` may be a password.
    let end = match address {
        Ok(_) => rest.find(['/', '?', '#']).unwrap_or(rest.len()),
        Err(_) => rest.len(),
    };
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let shown = &rest[host..];
    if scheme.is_empty() && host == 0 && shown.contains(':') {
        return String::new();
    }
    let (shown, query) = shown.split_at(shown.find(['?', '#']).unwrap_or(shown.len()));
    let query = match query {
        "" => String::new(),
        query if is_redacted(query) => query.to_owned(),
        query => format!("{REDACTED}{}", &ContentHash::compute(&query).as_str()[..4]),
    };
    format!("{scheme}{shown}{query}")
}

/// Stands for a query, followed by four hex digits of its hash.
const REDACTED: &str = "?redacted-";

fn is_redacted(query: &str) -> bool {
    query.strip_prefix(REDACTED).is_some_and(|hash| {
        hash.len() == 4 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// Returns the last part of `path` as a file name, see [`ArtifactAddress::file_name`].
pub fn safe_file_name(path: &str) -> String {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let last = path.rsplit('/').next().unwrap_or_default();
    let name: String =
        last.chars().map(|c| if valid(c) { c } else { '_' }).take(MAX_FILE_NAME).collect();
    if name.trim_matches('.').is_empty() { "model".to_owned() } else { name }
}

impl HttpUrl {
    /// Returns the complete URL, including credentials and query.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scheme with `://`, and the rest without query and fragment.
    fn split(&self) -> (&str, &str) {
        let end = self.0.find(['?', '#']).unwrap_or(self.0.len());
        let start = self.0.find("://").map_or(0, |at| at + 3);
        (&self.0[..start], self.0.get(start..end).unwrap_or_default())
    }

    fn path(&self) -> &str {
        self.split().1.split_once('/').map_or("", |(_, path)| path)
    }
}

impl fmt::Display for ArtifactAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::Http(url) => url.fmt(f),
            Self::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            Self::Hub(address) => address.fmt(f),
            Self::Oci(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.split();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        write!(f, "{scheme}{host}{path}")
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ArtifactAddress, AddressError> {
        text.parse()
    }

    #[test]
    fn every_form_is_accepted_and_names_its_file() {
        for (text, shown, file) in [
            ("/model/frozen.pb", "/model/frozen.pb", "frozen.pb"),
            ("file:///model/frozen.pb", "/model/frozen.pb", "frozen.pb"),
            ("FILE://localhost/model/frozen.pb", "/model/frozen.pb", "frozen.pb"),
            ("/model/saved/", "/model/saved", "saved"),
            ("//m", "//m", "m"),
            ("/model/a b:c", "/model/a b:c", "a_b_c"),
            ("/data/50%#?", "/data/50%#?", "50___"),
            ("http://h/a/b.onnx", "http://h/a/b.onnx", "b.onnx"),
            ("HTTPS://h/b?x=/y#z", "HTTPS://h/b", "b"),
            ("http://host", "http://host", "model"),
            ("http://host/a/", "http://host/a/", "model"),
            ("http://host/..", "http://host/..", "model"),
            ("http://h:8080/a%2f..%2fb\n", "http://h:8080/a%2f..%2fb", "a_2f.._2fb"),
            ("http://[::1]:80/m", "http://[::1]:80/m", "m"),
            ("http://models.local:/m", "http://models.local:/m", "m"),
            ("http://h#@other/m", "http://h", "model"),
            ("s3://bucket/a/b.tgz", "s3://bucket/a/b.tgz", "b.tgz"),
            ("S3://my.bucket-1/k?x#y", "s3://my.bucket-1/k?x#y", "k_x_y"),
            ("hf://o/r@v1/a/m.gguf", "hf://o/r@v1/a/m.gguf", "m.gguf"),
            ("HF://o/r.tar", "hf://o/r.tar", "r.tar"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!((&*address.to_string(), &*address.file_name()), (shown, file), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_refused_with_the_reason() {
        use AddressError as E;
        let scheme = |scheme: &str| E::Scheme(scheme.to_owned());
        for (text, error) in [
            ("", E::Empty),
            (" \n", E::Empty),
            ("/a\nb", E::ControlCharacter),
            ("http://127.0.0.1\n.models.example/m", E::ControlCharacter),
            ("model.pb", E::NotAnAddress),
            ("../etc/passwd", E::NotAnAddress),
            ("a b://h", E::NotAnAddress),
            ("://h", E::NotAnAddress),
            ("ftp://h/m", scheme("ftp")),
            ("nfs://h/m", scheme("nfs")),
            ("data:text/plain,x", scheme("data")),
            ("unix:/var/run/docker.sock", scheme("unix")),
            ("http://", E::Host),
            ("http:///model", E::Host),
            ("http:/host/model", E::Host),
            ("http:host", E::Host),
            ("http:\\\\host/m", E::Host),
            ("http://?", E::Host),
            ("http://ann@/m", E::Host),
            ("http://ho st/m", E::Host),
            ("http://[::1]80/m", E::Host),
            ("http://h:99999/m", E::Port),
            ("http://h:+1/m", E::Port),
            ("http://ann:pass/word@h/m", E::Port),
            ("http://models.example\\@127.0.0.1/m", E::Backslash),
            ("file://model.pb", E::FileUrl),
            ("file://host/m", E::FileUrl),
            ("file:/m", E::FileUrl),
            ("file:///models/../m", E::FileUrl),
            ("file:///models/%2e%2e/m", E::FileUrl),
            ("file:///", E::Root),
            ("/", E::Root),
            ("//", E::Root),
            ("/ /", E::Root),
            ("/models/../etc/shadow", E::Parent),
            ("s3://", E::S3),
            ("s3://bucket", E::S3),
            ("s3:///key", E::Bucket),
            ("s3://Bucket/k", E::Bucket),
            ("s3://b/k", E::Bucket),
            ("s3://.bucket/k", E::Bucket),
            ("s3://-bucket/k", E::Bucket),
            ("s3://my..bucket/k", E::Bucket),
            ("s3://a@169.254.169.254/m", E::Bucket),
            ("s3://bucket/", E::Key),
            ("s3://bucket/../other/m", E::Key),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn credentials_are_never_shown() {
        for text in [
            "https://ann:secret@h/m?token=secret#secret",
            "https://ann:s@secret@h/m",
            "ann:secret@h",
            "http:ann:secret@h/",
            "se_cret:x",
            "secret",
        ] {
            let shown = match parse(text) {
                Ok(address) => format!("{address} {address:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("cret"), "{text}: {shown}");
        }
    }

    #[test]
    fn redacted_address_has_no_secret_and_stays_distinct() {
        for (text, shown) in [
            ("/model/a?b@c#d", "/model/a?b@c#d"),
            ("file:///model/a", "file:///model/a"),
            ("s3://bucket/a?b", "s3://bucket/a?b"),
            ("hf://o/r@v1?files=*.json", "hf://o/r@v1?files=*.json"),
            ("hf://ann:secret@o/r", "hf://o/r"),
            ("https://h/m.pb", "https://h/m.pb"),
            ("https://ann:secret@h:8080/a@2/m.pb", "https://h:8080/a@2/m.pb"),
            ("http://ann:pass/word@h/m", "http://h/m"),
            ("ftp://ann:secret@h/m", "ftp://h/m"),
            ("ann:secret", ""),
            ("ann:secret@h/m", "h/m"),
            ("http://ann:pa?ss@h/m", "http://h/m"),
            ("s3://key:secret@bucket/m", "s3://bucket/m"),
            ("model.pb", "model.pb"),
        ] {
            assert_eq!(redact(text), shown, "{text}");
        }
        let signed = |signature: &str| redact(&format!("https://h/m?X-Amz-Signature={signature}"));
        assert!(signed("secret").starts_with("https://h/m?redacted-"), "{}", signed("secret"));
        assert_eq!(signed("secret").len(), "https://h/m?redacted-0000".len());
        assert_ne!(signed("a"), signed("b"), "another query is another model");
        assert_eq!(redact(&signed("a")), signed("a"));
    }

    #[test]
    fn debug_text_of_an_address_names_it_without_credentials() {
        let address = parse("https://ann:secret@h/m").unwrap();
        assert_eq!(format!("{address:?}"), "Http(HttpUrl(https://h/m))");
    }

    #[test]
    fn archives_are_recognized_by_the_path() {
        for (text, is_archive) in [
            ("HTTPS://user:pw@h/a.TAR.GZ", true),
            ("http://h/a.tar?x=y", true),
            ("http://h/a.onnx?x=/y.tar", false),
            ("s3://bucket/b.tgz", true),
            ("file:///models/x.tar.zst", true),
            ("/models/x.zip", true),
            ("/models/x.gz", false),
            ("hf://o/r/x.zip", true),
            ("hf://o/r.zip", false),
        ] {
            assert_eq!(parse(text).unwrap().is_archive(), is_archive, "{text}");
        }
    }

    #[test]
    fn archives_and_sets_are_directories() {
        for (text, is_directory) in [
            ("http://h/a.tar", true),
            ("hf://o/r", true),
            ("oci://h/r:1", true),
            ("hf://o/r/x.onnx", false),
            ("s3://bucket/b.onnx", false),
            ("/models/x", false),
        ] {
            assert_eq!(parse(text).unwrap().is_directory(), is_directory, "{text}");
        }
    }

    #[test]
    fn file_name_is_bounded() {
        let name = parse(&format!("/{}", "ä".repeat(300))).unwrap().file_name();
        assert_eq!(name, "_".repeat(128));
    }

    fn text() -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec![
            "http",
            "https",
            "s3",
            "file",
            "ftp",
            "://",
            ":",
            "/",
            "//",
            "..",
            ".",
            "@",
            "?",
            "#",
            "%",
            "\\",
            "[",
            "]",
            "bucket",
            "host",
            "a",
            " ",
            "8080",
            "\n",
            "ä",
            ".tar.gz",
            "localhost",
            "user:pw",
        ]);
        prop_oneof![
            prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat()),
            any::<String>()
        ]
    }

    proptest! {
        #[test]
        fn accepted_address_round_trips_and_has_a_safe_name(text in text()) {
            if let Ok(address) = parse(&text) {
                let again = parse(&address.to_url());
                prop_assert_eq!(again.as_ref(), Ok(&address));
                let name = address.file_name();
                prop_assert!(!name.is_empty() && name.len() <= 128 && name != "." && name != "..");
                prop_assert!(!name.contains(['/', '\0', ' ']));
            }
        }

        #[test]
        fn shown_url_has_no_user_query_and_fragment(text in text()) {
            if let Ok(address @ ArtifactAddress::Http(_)) = parse(&text) {
                let shown = address.to_string();
                let (_, rest) = shown.split_once("://").expect("the scheme is shown");
                let authority = rest.split('/').next().unwrap_or_default();
                prop_assert!(!authority.is_empty() && !authority.contains('@'), "{}", shown);
                prop_assert!(!shown.contains(['?', '#']), "{}", shown);
            }
        }

        #[test]
        fn redacted_text_never_contains_a_password(text in text()) {
            let shown = redact(&format!("https://ann:pa55@h/{text}"));
            prop_assert!(!shown.contains("pa55"), "{}", shown);
            let text = format!("{text}:pa55@h");
            let shown = redact(&text);
            // In a path it is no password: RFC 3986 has none behind the host.
            let in_path = parse(&text).is_ok_and(|address| address.path().contains("pa55"));
            prop_assert!(!shown.contains("pa55") || in_path, "{}", shown);
        }

        #[test]
        fn paths_are_absolute_and_stay_below_their_start(text in text()) {
            if let Ok(ArtifactAddress::Path(path)) = parse(&text) {
                prop_assert!(path.starts_with('/') && !path.ends_with('/'));
                prop_assert!(path.split('/').all(|part| part != ".."));
            }
        }
    }
}

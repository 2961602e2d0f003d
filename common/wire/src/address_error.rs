//! Why a text is not the address of a model or dataset, with the remedy.

/// Why a text is not the address of a model or dataset. The message has the remedy, and no part of
/// the text that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is empty.
    #[error("the address is empty; {FORMS}")]
    Empty,
    /// The text contains control characters.
    #[error("the address contains control characters; remove them")]
    ControlCharacter,
    /// The text has neither a scheme nor a leading `/`.
    #[error("the address is neither a URL nor an absolute path; {FORMS}")]
    NotAnAddress,
    /// The scheme is none of http, https, s3, hf, oci and file.
    #[error("the scheme {0:?} is not supported; {FORMS}")]
    Scheme(String),
    /// An http or https URL has no `//` and host after the scheme.
    #[error("the scheme must be followed by // and a host; use http://host/path")]
    Host,
    /// An http or https URL has a port that is not a number from 0 to 65535.
    #[error("the port is not a number from 0 to 65535; use http://host:port/path")]
    Port,
    /// An http or https URL contains a backslash.
    #[error("the URL contains a backslash; use / or %5C")]
    Backslash,
    /// A file URL is not `file:///path`.
    #[error("a file URL must be file:///absolute/path, without host, escapes and \"..\"")]
    FileUrl,
    /// A path is the root directory.
    #[error("the path is the root directory; use the path of a file or directory in it")]
    Root,
    /// A segment of the path is `..`.
    #[error("the path must not contain \"..\"; use the path of the file itself")]
    Parent,
    /// An S3 URL has no bucket or no key.
    #[error("an S3 URL must be s3://bucket/key")]
    S3,
    /// The bucket name of an S3 URL is not valid.
    #[error(
        "the bucket name must have 3 to 63 characters: a-z, 0-9, '.' and '-'; use s3://bucket/key"
    )]
    Bucket,
    /// The key of an S3 URL is empty or contains `.` or `..`.
    #[error("the object key is empty or contains \".\" or \"..\"; use s3://bucket/key")]
    Key,
    /// A hub URL has no valid organization, repository or revision.
    #[error(
        "a hub URL must be hf://organization/repository[@revision][/path/of/file]; write a slash in the revision as %2F"
    )]
    Hub,
    /// The path of a file in a repository is empty or has unsupported parts.
    #[error(
        "the path of the file must not be empty, end with \"/\", or contain \"..\", '#', '%' and '\\'; use hf://organization/repository/path/of/file"
    )]
    HubPath,
    /// An address of a registry has no valid host, repository, tag or digest.
    #[error(
        "an address of a registry must be oci://host[:port]/repository[:tag][@sha256:digest], with a repository in lower case"
    )]
    Oci,
    /// The patterns of a set of files are not valid.
    #[error(
        "the patterns of files must be up to 32 texts such as *.json or weights/**, without white space, quotes, brackets, '&', '?', '#', '%' and '\\'"
    )]
    FilePatterns,
    /// Patterns are given beside the path of one file.
    #[error(
        "patterns of files select from a repository, and the address names one file; remove the path or the patterns"
    )]
    FilesOfFile,
    /// Patterns are given beside an address of another scheme.
    #[error(
        "patterns of files need the address of a repository; use hf://organization/repository or oci://host/repository, or remove them"
    )]
    FilesNotSupported,
    /// The address of a dataset is that of a model hub or a registry.
    #[error(
        "datasets are not downloaded from a model hub or a registry; use http://..., https://..., s3://bucket/key, file:///path or an absolute path on the node"
    )]
    NoDataset,
}

const FORMS: &str = "use http://..., https://..., s3://bucket/key, hf://organization/repository, oci://host/repository:tag, file:///path or an absolute path on the node";

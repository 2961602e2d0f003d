//! Decides the source of a `Model` object's file, or why it is invalid. Pure.

use std::path::PathBuf;

use neptune_wire::{ContentHash, ObjectContent};

use crate::{
    desired::spec::{ModelFields, model_fields},
    domain::artifact::ArtifactSource,
};

/// The desired state of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedModel {
    /// The location of the file, or why it is invalid: a message with the field and the remedy.
    pub source: Result<ModelSource, String>,
    /// `spec.modelUrl`.
    pub url: String,
    /// `spec.sha256sum`: 64 lower-case hex digits.
    pub sha256: Option<String>,
    /// Identifies this URL and digest among all that the object ever had.
    pub content_key: String,
}

/// The location of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A download.
    Remote(ArtifactSource),
    /// An absolute path on the node.
    Local(PathBuf),
}

/// Derives the desired state of a Model object. An invalid object is kept with the reason.
pub fn wanted_model(content: &ObjectContent) -> WantedModel {
    let ModelFields { url, sha256 } = model_fields(content);
    let (url, sha256) = (url.to_owned(), sha256.to_ascii_lowercase());
    let content_key = ContentHash::of(&[&url, &sha256]).to_string();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = is_digest.then(|| sha256.clone());
    let source = if !sha256.is_empty() && !is_digest {
        Err(format!(
            "spec.sha256sum {sha256:?} is not 64 hex digits; use the output of `sha256sum FILE`, or omit the field"
        ))
    } else {
        source(&url, digest.as_ref())
    };
    WantedModel { source, url, sha256: digest, content_key }
}

fn source(url: &str, sha256: Option<&String>) -> Result<ModelSource, String> {
    let remedy = "use http://..., https://..., s3://bucket/key, file:///... or the absolute path of a file on the node";
    match url.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(ModelSource::Local(path.into())),
        None if url.starts_with('/') => Ok(ModelSource::Local(url.into())),
        None if url.is_empty() => Err(format!("spec.modelUrl is required; {remedy}")),
        Some(("http" | "https" | "s3", _)) => {
            let source = ArtifactSource { url: url.to_owned(), sha256: sha256.cloned() };
            source.want().map_err(|why| format!("spec.modelUrl: {why}"))?;
            Ok(ModelSource::Remote(source))
        }
        _ => Err(format!("spec.modelUrl: unsupported URL {url:?}; {remedy}")),
    }
}

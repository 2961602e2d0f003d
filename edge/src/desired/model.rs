//! Decides where the model of a `Model` object comes from, or why it cannot be used. Pure.

use std::path::PathBuf;

use neptune_wire::{ContentHash, ObjectContent};

use crate::{
    desired::spec::{ModelFields, model_fields},
    domain::artifact::ArtifactSource,
};

/// A model object as this node has to have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedModel {
    /// Where it is, or why that cannot be: for a person, naming the field and what helps.
    pub source: Result<ModelSource, String>,
    /// `spec.modelUrl`.
    pub url: String,
    /// 64 lower-case hex digits.
    pub sha256: Option<String>,
    /// Tells this content from any other that the object ever named.
    pub content_key: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// To be fetched.
    Remote(ArtifactSource),
    /// On the node already: an absolute path.
    Local(PathBuf),
}

/// Reads a Model. One that cannot work is kept with the reason.
pub fn wanted_model(content: &ObjectContent) -> WantedModel {
    let ModelFields { url, sha256 } = model_fields(content);
    let (url, sha256) = (url.to_owned(), sha256.to_ascii_lowercase());
    let content_key = ContentHash::of(&[&url, &sha256]).to_string();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = is_digest.then(|| sha256.clone());
    let source = if !sha256.is_empty() && !is_digest {
        Err(format!(
            "spec.sha256sum {sha256:?} is not 64 hex digits; write what `sha256sum FILE` prints, or leave it out"
        ))
    } else {
        source(&url, digest.as_ref())
    };
    WantedModel { source, url, sha256: digest, content_key }
}

fn source(url: &str, sha256: Option<&String>) -> Result<ModelSource, String> {
    let remedy = "write http://..., https://..., s3://bucket/key, file:///... or the absolute path of a file on the node";
    match url.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(ModelSource::Local(path.into())),
        None if url.starts_with('/') => Ok(ModelSource::Local(url.into())),
        None if url.is_empty() => Err(format!("spec.modelUrl is missing; {remedy}")),
        Some(("http" | "https" | "s3", _)) => {
            let source = ArtifactSource { url: url.to_owned(), sha256: sha256.cloned() };
            source.want().map_err(|why| format!("spec.modelUrl: {why}"))?;
            Ok(ModelSource::Remote(source))
        }
        _ => Err(format!("spec.modelUrl {url:?} cannot be used on a node; {remedy}")),
    }
}

//! Decides the source of a `Model` object's file, or why it is invalid.

use std::path::PathBuf;

use neptune_wire::{ArtifactAddress, ContentHash, Namespace, ObjectContent, redact};

use crate::domain::artifact::ArtifactSource;

/// A model whose file this node needs, or why it cannot have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedModel {
    /// The location of the file, or why it is invalid: a message with the field and the remedy.
    pub source: Result<ModelSource, String>,
    /// `spec.modelUrl` without passwords, for messages.
    pub shown_url: String,
    /// `spec.sha256sum`: 64 lower-case hex digits.
    pub sha256: Option<String>,
    /// Further addresses of the same content. They do not identify the model.
    pub mirrors: Vec<String>,
    /// Identifies this URL and digest among all that the object ever had.
    pub content_key: String,
}

/// The location of a model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file or archive that the node downloads.
    Remote(ArtifactSource),
    /// An absolute path on the node.
    Local(PathBuf),
}

/// The problem of an object that an older controller sent, without the section for its kind.
pub const NO_CONTENT: &str = "the controller did not send typed content; upgrade neptune-cloud";

/// Derives the desired state of a Model object. An invalid object is kept with the reason.
pub fn wanted_model(content: &ObjectContent) -> WantedModel {
    let model = content.model.as_deref();
    let url = model.map_or("", |model| model.url.trim()).to_owned();
    let sha256 = model.and_then(|model| model.sha256.as_deref()).unwrap_or_default();
    let sha256 = sha256.trim().to_ascii_lowercase();
    let content_key = ContentHash::compute(&[&url, &sha256]).to_string();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = is_digest.then(|| sha256.clone());
    let source = if model.is_none() {
        Err(NO_CONTENT.to_owned())
    } else if !sha256.is_empty() && !is_digest {
        Err(format!(
            "spec.sha256sum {sha256:?} is not 64 hex digits; use the output of `sha256sum FILE`, or omit the field"
        ))
    } else {
        source(&content.metadata.namespace, &url, digest.as_ref())
    };
    let mirrors = model.map_or_else(Vec::new, |model| model.mirrors.clone());
    WantedModel { source, shown_url: redact(&url), sha256: digest, mirrors, content_key }
}

fn source(
    namespace: &Namespace,
    url: &str,
    sha256: Option<&String>,
) -> Result<ModelSource, String> {
    match url.parse::<ArtifactAddress>() {
        Ok(ArtifactAddress::Path(path)) => Ok(ModelSource::Local(path.into())),
        Ok(remote) => {
            let (namespace, url) = (namespace.clone(), remote.to_url());
            let source = ArtifactSource { namespace, url, sha256: sha256.cloned() };
            source.check().map_err(|why| format!("spec.modelUrl: {why}"))?;
            Ok(ModelSource::Remote(source))
        }
        Err(error) => Err(format!("spec.modelUrl: {error}")),
    }
}

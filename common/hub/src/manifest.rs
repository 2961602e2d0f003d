//! The files of an artifact in a container registry, from its manifest. Pure.
//!
//! Two layouts are known: layers with the annotation `org.opencontainers.image.title`, and the CNCF
//! `ModelPack`, whose layers have `org.cncf.model.filepath`. The SHA-256 of a file is the digest of its
//! layer.

use std::collections::{BTreeMap, BTreeSet};

use neptune_transfer::Digest;
use serde::Deserialize;

use crate::{
    error::HubProblem,
    file_set::{FileSet, SetFile, check_paths},
    pattern::matches,
    tree::nearest,
};

/// Media type of a manifest of the OCI.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Media types of manifests that a client asks for. Indexes are among them so that a refusal names
/// what the registry has.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.artifact.manifest.v1+json";

const TITLE: &str = "org.opencontainers.image.title";
const UNPACK: &str = "io.deis.oras.content.unpack";
const MODEL_PATH: &str = "org.cncf.model.filepath";
const MODEL_PREFIX: &str = "application/vnd.cncf.model.";
const MODEL_CONFIG: &str = "application/vnd.cncf.model.config.v1+json";
/// Ends of the media types of `ModelPack`'s layers that are files as they are.
const MODEL_FILES: [&str; 3] = [".raw", ".gguf", ".safetensors"];
/// Maximum number of media types in a message.
const MAX_SEEN: usize = 8;

/// The selected files of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactFiles {
    /// SHA-256 of the manifest, by which the artifact never changes.
    pub manifest: Digest,
    /// The files with their digests.
    pub set: FileSet,
    /// Size of all files together as the manifest states it, in bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// The path of a layer that is a file as it is.
    fn path(&self, is_model_pack: bool) -> Option<&str> {
        let is_model = self.media_type.starts_with(MODEL_PREFIX);
        if is_model && !self.is_model_file() || self.annotation(UNPACK) == Some("true") {
            return None;
        }
        let path = self.annotation(MODEL_PATH).filter(|_| is_model_pack);
        path.or_else(|| self.annotation(TITLE))
    }

    fn is_model_file(&self) -> bool {
        self.media_type.starts_with(MODEL_PREFIX)
            && MODEL_FILES.iter().any(|end| self.media_type.ends_with(end))
    }
}

/// The files of a manifest that the patterns select; without patterns all. One layer of a model
/// without a path gets the name `only`.
///
/// # Errors
/// [`HubProblem::LayoutUnknown`], [`HubProblem::InvalidManifest`], [`HubProblem::FileNotFound`],
/// [`HubProblem::InvalidSet`].
pub(crate) fn files(
    body: &[u8],
    patterns: &[String],
    only: &str,
) -> Result<ArtifactFiles, HubProblem> {
    let invalid = |reason: String| HubProblem::InvalidManifest { reason };
    let manifest: Manifest = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("not a manifest (line {})", error.line())))?;
    let media_type = manifest.media_type.clone().unwrap_or_else(|| OCI_MANIFEST.to_owned());
    let Some(layers) = manifest.layers else {
        return Err(HubProblem::LayoutUnknown { seen: shown(&media_type) });
    };
    let config = manifest.config.map(|config| config.media_type).unwrap_or_default();
    let is_model_pack = config == MODEL_CONFIG;
    let mut files = Vec::with_capacity(layers.len());
    for layer in &layers {
        let is_only = layers.len() == 1 && is_model_pack && layer.is_model_file();
        let path = layer.path(is_model_pack).or_else(|| is_only.then_some(only));
        let Some(path) = path else {
            return Err(HubProblem::LayoutUnknown { seen: seen(&config, &layers) });
        };
        let digest = layer.digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
        let sha256: Digest = digest.ok_or_else(|| {
            invalid(format!("the digest {:?} of a layer is no SHA-256", shown(&layer.digest)))
        })?;
        files.push((SetFile { path: path.to_owned(), sha256 }, layer.size));
    }
    // All paths are checked, so that patterns do not hide a hostile artifact.
    check_paths(files.iter().map(|(file, _)| file.path.as_str()))?;
    let is_wanted =
        |path: &str| patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, path));
    let (wanted, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(file, _)| is_wanted(&file.path));
    if wanted.is_empty() {
        let names = others.iter().map(|(file, _)| file.path.as_str());
        let nearest = nearest(patterns.first().map_or("", String::as_str), names);
        return Err(HubProblem::FileNotFound { path: patterns.join(", "), nearest });
    }
    let bytes = wanted.iter().map(|(_, size)| *size).fold(0, u64::saturating_add);
    let set = FileSet::new(wanted.into_iter().map(|(file, _)| file).collect())?;
    Ok(ArtifactFiles { manifest: Digest::of_bytes(body), set, bytes })
}

/// The media types of an artifact for a message.
fn seen(config: &str, layers: &[Descriptor]) -> String {
    let types: BTreeSet<String> = layers
        .iter()
        .map(|layer| {
            let unpack = layer.annotation(UNPACK) == Some("true");
            shown(&layer.media_type) + if unpack { " (packed directory)" } else { "" }
        })
        .collect();
    let mut seen = vec![format!("config {}", shown(config))];
    seen.extend(types.iter().take(MAX_SEEN).cloned());
    if types.len() > MAX_SEEN {
        seen.push(format!("{} others", types.len() - MAX_SEEN));
    }
    seen.join(", ")
}

/// A text comes from the registry, so it is truncated and without control characters.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::*;

    fn layer(media_type: &str, content: &str, annotations: &Value) -> Value {
        let digest = format!("sha256:{}", Digest::of_bytes(content.as_bytes()));
        json!({"mediaType": media_type, "digest": digest, "size": 2, "annotations": annotations})
    }

    fn parse(
        config: &str,
        layers: &[Value],
        patterns: &[&str],
    ) -> Result<ArtifactFiles, HubProblem> {
        let body = json!({"schemaVersion": 2, "config": {"mediaType": config}, "layers": layers});
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        files(body.to_string().as_bytes(), &patterns, "model")
    }

    fn titled(title: &str) -> Value {
        layer("application/octet-stream", title, &json!({TITLE: title}))
    }

    fn paths(files: &ArtifactFiles) -> Vec<&str> {
        files.set.files().iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn titled_layers_are_files_with_the_digests_of_the_layers() {
        let all = parse("x", &[titled("b/m.bin"), titled("README.md")], &[]).unwrap();
        assert_eq!((paths(&all), all.bytes), (vec!["README.md", "b/m.bin"], 4));
        assert_eq!(all.set.files()[1].sha256, Digest::of_bytes(b"b/m.bin"));
        let one = parse("x", &[titled("b/m.bin"), titled("a.json")], &["*.json"]).unwrap();
        assert_eq!(paths(&one), ["a.json"]);
        let none = parse("x", &[titled("a.json")], &["b.json"]).unwrap_err();
        assert!(matches!(none, HubProblem::FileNotFound { .. }), "{none}");
    }

    #[test]
    fn model_pack_has_files_at_their_paths_and_one_layer_without_a_path_is_the_model() {
        let raw = "application/vnd.cncf.model.weight.v1.raw";
        let doc = "application/vnd.cncf.model.doc.v1.raw";
        let at = |path: &str| json!({MODEL_PATH: path});
        let layers = [layer(raw, "w", &at("w/m.safetensors")), layer(doc, "d", &at("LICENSE"))];
        assert_eq!(
            paths(&parse(MODEL_CONFIG, &layers, &[]).unwrap()),
            ["LICENSE", "w/m.safetensors"]
        );
        let gguf = layer("application/vnd.cncf.model.weight.v1.gguf", "g", &json!({}));
        assert_eq!(
            paths(&parse(MODEL_CONFIG, std::slice::from_ref(&gguf), &[]).unwrap()),
            ["model"]
        );
        for layers in [
            vec![gguf.clone(), titled("a")],
            vec![layer("application/vnd.cncf.model.weight.v1.tar", "t", &at("w"))],
        ] {
            let error = parse(MODEL_CONFIG, &layers, &[]).unwrap_err();
            assert!(error.to_string().contains("application/vnd.cncf.model.weight.v1."), "{error}");
        }
    }

    #[test]
    fn other_layouts_are_named_by_their_media_types() {
        let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
        let packed = layer(tar, "d", &json!({TITLE: "dir", UNPACK: "true"}));
        for layers in [vec![layer(tar, "i", &Value::Null)], vec![packed]] {
            let error =
                parse("application/vnd.oci.image.config.v1+json", &layers, &[]).unwrap_err();
            let HubProblem::LayoutUnknown { seen } = error else { panic!("{error}") };
            assert!(seen.contains("image.config.v1+json") && seen.contains(tar), "{seen}");
        }
        let index =
            json!({"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []});
        let error = files(index.to_string().as_bytes(), &[], "m").unwrap_err();
        assert!(error.to_string().contains("image.index"), "{error}");
    }

    #[test]
    fn hostile_manifests_are_refused() {
        for title in ["../x", "/etc/x", "a/../../x", "", "a\\b", "a\nb"] {
            let error = parse("x", &[titled(title), titled("ok")], &["ok"]).unwrap_err();
            assert!(matches!(error, HubProblem::InvalidSet { .. }), "{title:?}: {error}");
        }
        let twice = parse("x", &[titled("a"), titled("a")], &[]).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
        let many: Vec<Value> = (0..100_000).map(|n| titled(&n.to_string())).collect();
        assert!(matches!(parse("x", &many, &[]), Err(HubProblem::InvalidSet { .. })));
        let mut other = titled("a");
        other["digest"] = json!("sha512:00");
        let error = parse("x", &[other], &[]).unwrap_err();
        assert!(matches!(error, HubProblem::InvalidManifest { .. }), "{error}");
        for text in ["", "{", "[]", "{\"layers\": 1}"] {
            let error = files(text.as_bytes(), &[], "m").unwrap_err();
            assert!(matches!(error, HubProblem::InvalidManifest { .. }), "{text}: {error}");
        }
    }
}

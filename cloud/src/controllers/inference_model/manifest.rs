//! The manifest, and the version of it that is to be served. Pure: a part of `validate`.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, InferenceModelFile};
use neptune_wire::ServedModel;

use crate::{
    controllers::inference_model::{
        program::{Directory, Program},
        target::{Deployed, HOLD_ANNOTATION, MAX_VERSION, is_plain, named, target_version},
    },
    finding::Finding,
    reason::Reason,
    worker::model_source::ModelSource,
};

/// The target version, when the whole manifest is in order. `on_node` says whether files of a node can
/// be served.
pub fn version(
    model: &InferenceModel,
    directory: Option<&Directory>,
    on_node: bool,
    findings: &mut Vec<Finding>,
) -> Option<ServedModel> {
    let manifest = &model.spec.manifest;
    if manifest.is_empty() {
        let message = "spec.manifest is empty and spec.image too; list the model's versions, or give an image that has the model in it";
        findings.push(Finding::new(Reason::ManifestRequired, message));
        return None;
    }
    let before = findings.len();
    let mut seen = BTreeSet::new();
    for (index, file) in manifest.iter().enumerate() {
        check(index, file, directory, on_node, &mut seen, findings);
    }
    let target = target_version(model);
    let Some(file) =
        manifest.iter().find(|file| target.is_some() && file.version.as_deref() == target)
    else {
        let known = seen.into_iter().collect::<Vec<_>>().join(", ");
        let message = match target {
            Some(target) => format!(
                "spec.targetVersion {target:?} is not in spec.manifest, which has {known}; correct it or add the version"
            ),
            None => format!("spec.targetVersion is missing; name one of {known}"),
        };
        findings.push(Finding::new(Reason::TargetVersionUnknown, message));
        return None;
    };
    if findings.len() > before {
        return None;
    }
    Some(served(file, &directory?.path))
}

/// What a Deployment is to have while its switch is held: what it has.
pub fn held(
    model: &InferenceModel,
    target: Option<ServedModel>,
    program: Program,
    deployed: &Deployed,
    findings: &mut Vec<Finding>,
) -> (Option<ServedModel>, Program) {
    let kept = match (target, deployed) {
        (None, Deployed::Image(image)) => {
            return (None, Program { image: image.clone(), ..program });
        }
        (Some(target), Deployed::Version(version)) if target.version == *version => {
            return (Some(target), program);
        }
        (Some(target), Deployed::Version(version)) => {
            let is_kept =
                |file: &&InferenceModelFile| file.version.as_deref() == Some(version.as_str());
            model.spec.manifest.iter().find(is_kept).map(|file| served(file, &target.directory))
        }
        _ => None,
    };
    if kept.is_none() {
        let (Deployed::Version(what) | Deployed::Image(what)) = deployed;
        let message = format!(
            "spec: {}, which the annotation {HOLD_ANNOTATION} keeps, is not in it any more; put it back, or remove the annotation",
            named(Some(what))
        );
        findings.push(Finding::new(Reason::HeldVersionMissing, message));
    }
    (kept, program)
}

fn served(file: &InferenceModelFile, directory: &str) -> ServedModel {
    ServedModel {
        version: file.version.clone().unwrap_or_default(),
        url: file.download_url.clone().unwrap_or_default(),
        sha256: digest(file).map(str::to_ascii_lowercase),
        directory: directory.to_owned(),
    }
}

fn digest(file: &InferenceModelFile) -> Option<&str> {
    file.sha256sum.as_deref().filter(|digest| !digest.is_empty())
}

fn check<'a>(
    index: usize,
    file: &'a InferenceModelFile,
    directory: Option<&Directory>,
    on_node: bool,
    seen: &mut BTreeSet<&'a str>,
    findings: &mut Vec<Finding>,
) {
    let field = |name: &str| format!("spec.manifest[{index}].{name}");
    let version = file.version.as_deref().unwrap_or_default();
    let is_number = version.bytes().all(|b| b.is_ascii_digit()) && !version.starts_with('0');
    if !is_plain(version) {
        findings.push(Finding::new(
            Reason::VersionInvalid,
            format!(
                "{} {version:?} must be at most {MAX_VERSION} letters, digits, '.', '-' and '_', beginning and ending with a letter or digit",
                field("version")
            ),
        ));
    } else if directory.is_some_and(|directory| directory.numeric_versions) && !is_number {
        findings.push(Finding::new(
            Reason::VersionInvalid,
            format!("{} {version:?} must be a whole number above 0: the framework's server takes no other", field("version")),
        ));
    } else if !seen.insert(version) {
        findings.push(Finding::new(
            Reason::VersionDuplicate,
            format!("{} {version:?} stands there twice; remove one", field("version")),
        ));
    }
    let url = file.download_url.as_deref().unwrap_or_default();
    if let Err(why) = download_url(url, on_node) {
        findings.push(Finding::new(
            Reason::DownloadUrlInvalid,
            format!("{} {url:?}: {why}", field("downloadURL")),
        ));
    }
    if let Some(digest) = digest(file)
        && (digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        findings.push(Finding::new(
            Reason::ModelDigestInvalid,
            format!(
                "{} {digest:?} must be 64 hex digits, as sha256sum prints them",
                field("sha256sum")
            ),
        ));
    }
}

fn download_url(url: &str, on_node: bool) -> Result<(), String> {
    const FORMS: &str =
        "write http://..., https://..., s3://bucket/key or, on a node with an agent, file:///...";
    if let Some(place) = url.strip_prefix("s3://") {
        let complete = place
            .split_once('/')
            .is_some_and(|(bucket, key)| !bucket.is_empty() && !key.is_empty());
        return if complete {
            Ok(())
        } else {
            Err("it lacks a bucket or a key; write s3://bucket/key".to_owned())
        };
    }
    match url.parse::<ModelSource>() {
        Ok(ModelSource::Path(_)) if !on_node => {
            Err("a Pod in the cloud has no files of a node; write http://..., https://... or s3://bucket/key".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error}; {FORMS}")),
    }
}

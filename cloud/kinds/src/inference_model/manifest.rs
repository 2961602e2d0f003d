//! Validates the manifest and selects the version to serve. A part of `validate`.

use std::collections::BTreeSet;

use neptune_api::{InferenceModel, InferenceModelFile};
use neptune_wire::{
    ArtifactAddress, ContainerProgram, MAX_LABEL_VALUE, ServedModel, is_label_value, redact,
};

use crate::{
    finding::Finding,
    inference_model::{
        program::{ServerProgram, VersionDirectory},
        target::{Deployed, HOLD_ANNOTATION, named, target_version},
    },
    model::{address::selected_text, mirrors},
    reason::Reason,
};

/// The target version, if the whole manifest is valid. `on_node`: whether the server can read files
/// of its node.
pub fn version(
    model: &InferenceModel,
    directory: Option<&VersionDirectory>,
    on_node: bool,
    findings: &mut Vec<Finding>,
) -> Option<ServedModel> {
    let manifest = &model.spec.manifest;
    if manifest.is_empty() {
        let message = "spec.manifest and spec.image are empty; list the model's versions, set spec.model, or set an image that contains the model";
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
            None => format!("spec.targetVersion is missing; set it to one of {known}"),
        };
        findings.push(Finding::new(Reason::TargetVersionUnknown, message));
        return None;
    };
    if findings.len() > before {
        return None;
    }
    Some(served(file, &directory?.path))
}

/// Returns the version and program of a Deployment while the annotation prevents its switch: those
/// that it has.
pub fn held(
    model: &InferenceModel,
    target: Option<ServedModel>,
    program: ServerProgram,
    deployed: &Deployed,
    findings: &mut Vec<Finding>,
) -> (Option<ServedModel>, ServerProgram) {
    let current = match (target, deployed) {
        (None, Deployed::Image(image)) => {
            let container = ContainerProgram { image: image.clone(), ..program.container };
            return (None, ServerProgram { container, ..program });
        }
        (Some(target), Deployed::Version(version)) if target.version == *version => {
            return (Some(target), program);
        }
        (Some(target), Deployed::Version(version)) => {
            let is_deployed =
                |file: &&InferenceModelFile| file.version.as_deref() == Some(version.as_str());
            model.spec.manifest.iter().find(is_deployed).map(|file| served(file, &target.directory))
        }
        _ => None,
    };
    if current.is_none() {
        let (Deployed::Version(name) | Deployed::Image(name)) = deployed;
        let message = format!(
            "spec no longer has {}, kept by annotation {HOLD_ANNOTATION}; restore it or remove the annotation",
            named(Some(name))
        );
        findings.push(Finding::new(Reason::HeldVersionMissing, message));
    }
    (current, program)
}

fn served(file: &InferenceModelFile, directory: &str) -> ServedModel {
    ServedModel {
        version: file.version.clone().unwrap_or_default(),
        url: selected_text(file.download_url.as_deref().unwrap_or_default(), &file.files),
        sha256: digest(file).map(str::to_ascii_lowercase),
        mirrors: mirrors::addresses(&file.mirrors, &file.files),
        directory: directory.to_owned(),
    }
}

fn digest(file: &InferenceModelFile) -> Option<&str> {
    file.sha256sum.as_deref().filter(|digest| !digest.is_empty())
}

fn check<'a>(
    index: usize,
    file: &'a InferenceModelFile,
    directory: Option<&VersionDirectory>,
    on_node: bool,
    seen: &mut BTreeSet<&'a str>,
    findings: &mut Vec<Finding>,
) {
    let field = |name: &str| format!("spec.manifest[{index}].{name}");
    let version = file.version.as_deref().unwrap_or_default();
    let is_number = version.bytes().all(|b| b.is_ascii_digit()) && !version.starts_with('0');
    if !is_label_value(version) {
        findings.push(Finding::new(
            Reason::VersionInvalid,
            format!(
                "{} {version:?} must be at most {MAX_LABEL_VALUE} letters, digits, '.', '-' and '_', beginning and ending with a letter or digit",
                field("version")
            ),
        ));
    } else if directory.is_some_and(|directory| directory.numeric_versions) && !is_number {
        findings.push(Finding::new(
            Reason::VersionInvalid,
            format!("{} {version:?} must be a whole number above 0: the framework's model server accepts no other version", field("version")),
        ));
    } else if !seen.insert(version) {
        findings.push(Finding::new(
            Reason::VersionDuplicate,
            format!("{}: duplicate version {version:?}; remove one", field("version")),
        ));
    }
    let url = file.download_url.as_deref().unwrap_or_default();
    let one_file = directory.is_some_and(|directory| directory.one_file);
    if let Err(why) = check_address(url, on_node, one_file) {
        findings.push(Finding::new(
            Reason::DownloadUrlInvalid,
            format!("{} {:?}: {why}", field("downloadURL"), redact(url)),
        ));
    }
    if let Ok(address) = url.parse::<ArtifactAddress>() {
        let mirrors = mirrors::check(&address, digest(file).is_some(), &file.mirrors);
        let files = address.with_files(&file.files).map_err(|error| error.to_string());
        for (name, checked) in [("mirrors", mirrors), ("files", files.map(drop))] {
            if let Err(why) = checked {
                let message = format!("{}: {why}", field(name));
                findings.push(Finding::new(Reason::DownloadUrlInvalid, message));
            }
        }
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

/// Checks the address of a file or archive. `on_node`: whether the server can read files of its node;
/// `one_file`: whether it loads one file.
pub fn check_address(url: &str, on_node: bool, one_file: bool) -> Result<(), String> {
    match url.parse::<ArtifactAddress>() {
        Ok(address) if one_file && (address.is_directory() || url.ends_with('/')) => Err(
            "the model server loads one file, not an archive or a directory; use the address of the file"
                .to_owned(),
        ),
        Ok(ArtifactAddress::Path(_)) if !on_node => Err(
            "Pods in the cloud have no access to files of a node; use http://..., https://..., s3://bucket/key, hf://organization/repository or oci://registry/repository"
                .to_owned(),
        ),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

//! The version that an `InferenceModel` with `spec.model` serves: the file of the Model. A part of
//! `validate`.

use std::sync::Arc;

use neptune_api::{InferenceModel, Model, SecretReference};
use neptune_wire::{ArtifactAddress, Resource, ServedModel, redact};

use crate::{
    finding::Finding,
    inference_model::{manifest::check_address, program::VersionDirectory},
    reason::Reason,
};

/// The number of hex digits of a digest that are a version: enough to tell files apart, and less
/// than any server's limit of a number.
const VERSION_DIGITS: usize = 12;

/// The version of the Model's file. `on_node`: whether the server can read files of its node.
pub fn version(
    model: &InferenceModel,
    source: Option<&Arc<Model>>,
    directory: Option<&VersionDirectory>,
    on_node: bool,
    findings: &mut Vec<Finding>,
) -> Option<ServedModel> {
    let name = model.spec.model.as_ref()?.name.as_str();
    let Some(source) = source else {
        let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
        let (kind, field) = (Resource::Models, "spec.model.name");
        let reason = Reason::ModelNotFound;
        findings.push(Finding::missing_object(reason, kind, namespace, name, field));
        return None;
    };
    let address = match crate::model::validate(source) {
        Ok(address) => address,
        Err(finding) => {
            findings.push(finding);
            return None;
        }
    };
    let url = crate::model::address_text(&source.spec);
    let one_file = directory.is_some_and(|directory| directory.one_file);
    if let Err(why) = check_address(&url, on_node, one_file) {
        let message = format!("spec.modelUrl {:?} of Model {name}: {why}", redact(&url));
        findings.push(Finding::new(Reason::DownloadUrlInvalid, message));
        return None;
    }
    let Some(digest) = source.spec.digest() else {
        let message = format!(
            "Model {name} has no spec.sha256sum, whose first {VERSION_DIGITS} digits are the version; set it as sha256sum prints it, or list the file in spec.manifest instead of spec.model"
        );
        findings.push(Finding::new(Reason::ModelDigestRequired, message));
        return None;
    };
    let directory = directory?;
    Some(ServedModel {
        version: named(&digest, directory.numeric_versions),
        url: match address {
            // As a manifest writes a path.
            ArtifactAddress::Path(path) => format!("file://{path}"),
            _ => url,
        },
        sha256: Some(digest),
        mirrors: crate::model::mirrors::addresses(&source.spec.mirrors, &source.spec.files),
        directory: directory.path.clone(),
    })
}

/// The version of a digest: its first digits, as a decimal number above 0 for servers that accept
/// only numbers.
fn named(digest: &str, is_numeric: bool) -> String {
    let digits = &digest[..VERSION_DIGITS.min(digest.len())];
    if !is_numeric {
        return digits.to_owned();
    }
    u64::from_str_radix(digits, 16).map_or(1, |number| number.max(1)).to_string()
}

/// The Secret with the credentials for `s3://`: that of the spec, or else that of the Model.
pub fn credentials(model: &InferenceModel, source: Option<&Arc<Model>>) -> Option<SecretReference> {
    let own = model.spec.credentials_secret.as_ref();
    own.or_else(|| source?.spec.credentials_secret.as_ref()).cloned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::{ModelReference, ModelSpec, SecretReference};

    use super::*;
    use crate::inference_model::{
        fixtures, plan::plan, target::InferenceModelFacts, validate::validate,
    };

    const DIGEST: &str = "2CF24DBA5FB0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn source(url: &str, digest: Option<&str>) -> Arc<Model> {
        let spec = ModelSpec {
            model_url: url.to_owned(),
            sha256sum: digest.map(str::to_owned),
            ..ModelSpec::default()
        };
        let mut model = Model::new("small", spec);
        model.metadata.namespace = Some("default".to_owned());
        Arc::new(model)
    }

    fn served(framework: &str, source: Option<Arc<Model>>) -> Result<ServedModel, String> {
        let mut model = fixtures::model();
        model.spec.manifest.clear();
        model.spec.target_version = None;
        framework.clone_into(&mut model.spec.framework_type);
        model.spec.model = Some(ModelReference { name: "small".to_owned() });
        let facts = InferenceModelFacts { source, ..fixtures::facts() };
        match validate(&model, &facts) {
            Ok(valid) => Ok(valid.version.unwrap()),
            Err(findings) => {
                let describe =
                    |finding: &Finding| format!("{}: {}", finding.reason, finding.message);
                Err(findings.iter().map(describe).collect::<Vec<_>>().join("\n"))
            }
        }
    }

    #[test]
    fn version_is_the_prefix_of_the_digest_as_the_server_accepts_it() {
        let with_framework =
            |framework: &str| served(framework, Some(source("http://h/m.onnx", Some(DIGEST))));
        let numeric = with_framework("tensorflow").unwrap();
        assert_eq!(numeric.version, "49419197767600");
        assert_eq!(numeric.version, 0x2cf2_4dba_5fb0_u64.to_string());
        assert_eq!(numeric.url, "http://h/m.onnx");
        assert_eq!(numeric.sha256, Some(DIGEST.to_ascii_lowercase()));
        assert_eq!(with_framework("llamacpp").unwrap().version, "2cf24dba5fb0");
        assert_eq!(named(&"0".repeat(64), true), "1");
        let path = served("tensorflow", Some(source("/model/small", Some(DIGEST)))).unwrap();
        assert_eq!(path.url, "file:///model/small");
    }

    #[test]
    fn model_that_cannot_be_served_is_a_finding_with_the_remedy() {
        let missing = served("tensorflow", None).unwrap_err();
        assert_eq!(
            missing,
            "ModelNotFound: Model \"small\" not found in namespace \"default\"; create it or correct spec.model.name"
        );
        let without = served("tensorflow", Some(source("http://h/m", None))).unwrap_err();
        assert_eq!(
            without,
            "ModelDigestRequired: Model small has no spec.sha256sum, whose first 12 digits are the version; set it as sha256sum prints it, or list the file in spec.manifest instead of spec.model"
        );
        let archive = served("llamacpp", Some(source("http://h/m.tar", Some(DIGEST)))).unwrap_err();
        assert!(archive.starts_with("DownloadUrlInvalid: spec.modelUrl \"http://h/m.tar\" of Model small: the model server loads one file"), "{archive}");
        let invalid = served("tensorflow", Some(source("ftp://h/m", Some(DIGEST)))).unwrap_err();
        assert!(invalid.starts_with("ModelUrlInvalid: "), "{invalid}");
    }

    #[test]
    fn manifest_or_credentials_beside_a_model_follow_one_rule() {
        let mut model = fixtures::model();
        model.spec.model = Some(ModelReference { name: "small".to_owned() });
        let mut small = source("s3://bucket/m", Some(DIGEST));
        let secret = |name: &str| Some(SecretReference { name: name.to_owned() });
        Arc::make_mut(&mut small).spec.credentials_secret = secret("of-the-model");
        let facts = InferenceModelFacts { source: Some(small), ..fixtures::facts() };
        let findings = validate(&model, &facts).map(drop).unwrap_err();
        let messages: Vec<_> = findings.iter().map(|finding| &*finding.message).collect();
        assert_eq!(
            messages,
            [
                "spec.manifest: give manifest or model, not both; remove one",
                "spec.targetVersion: remove it: the version comes from the Model"
            ]
        );
        let mut model = fixtures::cloud_model();
        model.spec.model = Some(ModelReference { name: "small".to_owned() });
        (model.spec.manifest, model.spec.target_version) = (Vec::new(), None);
        let secret_of = |model: &InferenceModel| {
            let valid = validate(model, &facts).unwrap();
            let objects = plan(model, &valid, "neptune-edge:test").objects.unwrap();
            let text = serde_json::to_string(&objects.deployment).unwrap();
            ["of-the-model", "own"].map(|name| text.contains(&format!("\"name\":\"{name}\"")))
        };
        assert_eq!(secret_of(&model), [true, false]);
        model.spec.credentials_secret = secret("own");
        assert_eq!(secret_of(&model), [false, true]);
    }
}

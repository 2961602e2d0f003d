//! Which writes are looked at, read from a review. Pure.

use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, Operation},
};
use neptune_api::{Dataset, InferenceModel, JointInferenceService, Model};
use serde::de::DeserializeOwned;

/// An object as it is to be, and as it is, if it is there.
#[derive(Debug, Clone)]
pub struct Change<K> {
    /// As it is to be.
    pub object: K,
    /// As it is.
    pub old: Option<K>,
}

/// A write that is looked at.
#[derive(Debug, Clone)]
pub enum ReviewedChange {
    /// Of a service.
    Service(Box<Change<JointInferenceService>>),
    /// Of an inference model.
    InferenceModel(Box<Change<InferenceModel>>),
    /// Of a model.
    Model(Box<Change<Model>>),
    /// Of a dataset.
    Dataset(Box<Change<Dataset>>),
}

/// The write of a review, if it is one that is looked at: not of a status, and not of what is being
/// deleted, of which finalizers have to be removed whatever else is wrong.
///
/// # Errors
/// When this version of the controller cannot read the object.
pub fn reviewed_change(
    request: &AdmissionRequest<DynamicObject>,
) -> Result<Option<ReviewedChange>, String> {
    let is_write = matches!(request.operation, Operation::Create | Operation::Update);
    let of_status = request.sub_resource.as_deref().is_some_and(|name| !name.is_empty());
    let object = request.object.as_ref();
    let leaving = object.is_some_and(|object| object.metadata.deletion_timestamp.is_some());
    if !is_write || of_status || leaving {
        return Ok(None);
    }
    Ok(match (&*request.kind.group, &*request.kind.kind) {
        ("neptune.io", "JointInferenceService") => change(request)?.map(ReviewedChange::Service),
        ("sedna.io", "InferenceModel") => change(request)?.map(ReviewedChange::InferenceModel),
        ("edgeai.io", "Model") => change(request)?.map(ReviewedChange::Model),
        ("edgeai.io", "Dataset") => change(request)?.map(ReviewedChange::Dataset),
        _ => None,
    })
}

fn change<K: DeserializeOwned>(
    request: &AdmissionRequest<DynamicObject>,
) -> Result<Option<Box<Change<K>>>, String> {
    let read = |object: &Option<DynamicObject>| -> serde_json::Result<Option<K>> {
        object
            .as_ref()
            .map(|object| serde_json::from_value(serde_json::to_value(object)?))
            .transpose()
    };
    let object = read(&request.object).map_err(|error| {
        let kind = &request.kind.kind;
        format!("this neptune-cloud cannot read the {kind}: {error}; is it older than the CRDs?")
    })?;
    // One that was there and cannot be read is as good as none.
    let old = read(&request.old_object).unwrap_or_default();
    Ok(object.map(|object| Box::new(Change { object, old })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn service() -> Value {
        let sample = include_str!("../../../common/api/tests/samples/jointinferenceservice.yaml");
        serde_saphyr::from_str(sample).unwrap()
    }

    fn ask(change: impl FnOnce(&mut Value)) -> Result<Option<ReviewedChange>, String> {
        let mut request = json!({
            "uid": "u", "operation": "UPDATE", "userInfo": {}, "name": "x", "namespace": "default",
            "kind": {"group": "neptune.io", "version": "v1alpha1", "kind": "JointInferenceService"},
            "resource": {"group": "neptune.io", "version": "v1alpha1", "resource": "jointinferenceservices"},
            "object": service(), "oldObject": service(),
        });
        change(&mut request);
        reviewed_change(&serde_json::from_value(request).unwrap())
    }

    #[test]
    fn creates_and_updates_of_our_kinds_are_looked_at_and_nothing_else() {
        type Case = (&'static str, fn(&mut Value), bool);
        let table: &[Case] = &[
            ("update", |_| {}, true),
            ("create", |r| (r["operation"], r["oldObject"]) = ("CREATE".into(), Value::Null), true),
            ("delete", |r| (r["operation"], r["object"]) = ("DELETE".into(), Value::Null), false),
            ("connect", |r| r["operation"] = "CONNECT".into(), false),
            ("status", |r| r["subResource"] = "status".into(), false),
            (
                "being deleted",
                |r| r["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
                false,
            ),
            ("another kind", |r| r["kind"]["kind"] = "Pod".into(), false),
            ("no object", |r| r["object"] = Value::Null, false),
        ];
        for (name, change, expected) in table {
            assert_eq!(ask(change).unwrap().is_some(), *expected, "{name}");
        }
    }

    #[test]
    fn an_object_of_a_newer_definition_is_not_guessed_at() {
        let error = ask(|r| r["object"]["spec"]["edgeWorker"]["model"] = json!("a")).unwrap_err();
        assert!(error.contains("cannot read the JointInferenceService"), "{error}");
        let reviewed_change = ask(|r| r["oldObject"]["spec"] = json!(1)).unwrap();
        assert!(
            matches!(reviewed_change, Some(ReviewedChange::Service(change)) if change.old.is_none())
        );
    }
}

//! Decides which writes are reviewed, and parses the objects in them. Pure.

use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, Operation},
};
use neptune_cloud_kinds::kind::Kind;
use serde::de::DeserializeOwned;

/// A write of an object.
#[derive(Debug, Clone)]
pub struct ReviewedChange<K> {
    /// The object after the write.
    pub object: K,
    /// The object before the write, if it exists.
    pub old: Option<K>,
}

/// Whether a write is reviewed. Writes of a status are not. Neither are writes of an object that is
/// being deleted: its finalizers must be removable even if its spec is invalid.
pub fn is_reviewed(request: &AdmissionRequest<DynamicObject>) -> bool {
    let is_write = matches!(request.operation, Operation::Create | Operation::Update);
    let of_status = request.sub_resource.as_deref().is_some_and(|name| !name.is_empty());
    let object = request.object.as_ref();
    let is_deleted = object.is_some_and(|object| object.metadata.deletion_timestamp.is_some());
    is_write && !of_status && !is_deleted
}

/// Whether a write is of an object of this kind.
pub fn is_of_kind<K: Kind>(request: &AdmissionRequest<DynamicObject>) -> bool {
    request.kind.group == K::group(&()) && request.kind.kind == K::kind(&())
}

/// The objects of a write.
///
/// # Errors
/// When this version of the controller cannot parse the object.
pub fn reviewed_change<K: DeserializeOwned>(
    request: &AdmissionRequest<DynamicObject>,
) -> Result<Option<ReviewedChange<K>>, String> {
    let parse = |object: &Option<DynamicObject>| -> serde_json::Result<Option<K>> {
        object
            .as_ref()
            .map(|object| serde_json::from_value(serde_json::to_value(object)?))
            .transpose()
    };
    let object = parse(&request.object).map_err(|error| {
        let kind = &request.kind.kind;
        format!("cannot parse the {kind}: {error}; check that neptune-cloud is not older than the installed CRDs")
    })?;
    // An old object that cannot be parsed counts as none.
    let old = parse(&request.old_object).unwrap_or_default();
    Ok(object.map(|object| ReviewedChange { object, old }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::JointInferenceService;
    use serde_json::{Value, json};

    use super::*;

    fn service() -> Value {
        let sample =
            include_str!("../../../../common/api/tests/samples/jointinferenceservice.yaml");
        serde_saphyr::from_str(sample).unwrap()
    }

    fn review(
        change: impl FnOnce(&mut Value),
    ) -> Result<Option<ReviewedChange<JointInferenceService>>, String> {
        let mut request = json!({
            "uid": "u", "operation": "UPDATE", "userInfo": {}, "name": "x", "namespace": "default",
            "kind": {"group": "neptune.io", "version": "v1alpha1", "kind": "JointInferenceService"},
            "resource": {"group": "neptune.io", "version": "v1alpha1", "resource": "jointinferenceservices"},
            "object": service(), "oldObject": service(),
        });
        change(&mut request);
        let request = serde_json::from_value(request).unwrap();
        if !is_reviewed(&request) || !is_of_kind::<JointInferenceService>(&request) {
            return Ok(None);
        }
        reviewed_change(&request)
    }

    #[test]
    fn only_creates_and_updates_of_registered_kinds_are_reviewed() {
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
            assert_eq!(review(change).unwrap().is_some(), *expected, "{name}");
        }
    }

    #[test]
    fn object_of_a_newer_crd_version_is_an_error() {
        let error =
            review(|r| r["object"]["spec"]["edgeWorker"]["model"] = json!("a")).unwrap_err();
        assert!(error.contains("cannot parse the JointInferenceService"), "{error}");
        let change = review(|r| r["oldObject"]["spec"] = json!(1)).unwrap();
        assert!(change.unwrap().old.is_none());
    }
}

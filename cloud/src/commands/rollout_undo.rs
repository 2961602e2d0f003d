//! `rollout undo`: the spec of the last complete rollout that differs from the present one.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use neptune_cloud_runtime::merge_patch;
use serde_json::{Value, json};

use super::rolled_out::RolledOut;
use crate::error::Error;

/// The change that restores the spec, and what to tell the user.
///
/// # Errors
/// No answer from the API server, or no earlier spec.
pub async fn undo<K: RolledOut>(
    client: &Client,
    object: &K,
    namespace: &str,
) -> Result<(Value, String), Error> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let step = format!("list ControllerRevisions of {namespace}");
    let revisions = api.list(&ListParams::default()).await.map_err(Error::api(step))?;
    let uid = object.meta().uid.as_deref().unwrap_or_default();
    let is_own = |revision: &ControllerRevision| {
        revision.owner_references().iter().any(|owner| owner.uid == uid)
    };
    let own = revisions.items.into_iter().filter(is_own).collect();
    let name = format!("{}/{}", K::SHORT, object.name_any());
    let Some((spec, number)) = earlier(&object.spec(), own) else {
        let why = format!(
            "{name} has no complete rollout with another spec; apply the manifest that you want"
        );
        return Err(Error::Rollout(why));
    };
    let mut patch = json!({"spec": merge_patch(&object.spec(), &spec)});
    if let Some(version) = object.resource_version() {
        patch["metadata"] = json!({"resourceVersion": version});
    }
    Ok((patch, format!("{name}: back to the spec of rollout {number}\n")))
}

/// The newest spec that differs from the present one in more than `rollout`, with its number.
fn earlier(present: &Value, mut revisions: Vec<ControllerRevision>) -> Option<(Value, i64)> {
    revisions.sort_by_key(|revision| std::cmp::Reverse(revision.revision));
    revisions.into_iter().find_map(|revision| {
        let mut spec = revision.data?.0;
        // The settings of the rollout stay as they are now.
        let fields = spec.as_object_mut()?;
        fields.remove("rollout");
        fields
            .extend(present.get("rollout").map(|rollout| ("rollout".to_owned(), rollout.clone())));
        (spec != *present).then_some((spec, revision.revision))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

    use super::*;

    fn revision(number: i64, spec: Value) -> ControllerRevision {
        ControllerRevision {
            revision: number,
            data: Some(RawExtension(spec)),
            ..Default::default()
        }
    }

    #[test]
    fn newest_spec_that_differs_is_restored_with_the_present_settings() {
        let old = revision(1, json!({"image": "a:1", "extra": 1}));
        let last = revision(2, json!({"image": "a:2", "rollout": {"paused": false}}));
        let present = json!({"image": "a:3", "rollout": {"paused": true}});
        let all = vec![old.clone(), last.clone()];
        let spec = json!({"image": "a:2", "rollout": {"paused": true}});
        assert_eq!(earlier(&present, all.clone()), Some((spec.clone(), 2)));
        let spec = json!({"image": "a:1", "extra": 1, "rollout": {"paused": true}});
        assert_eq!(
            earlier(&json!({"image": "a:2", "rollout": {"paused": true}}), all),
            Some((spec, 1))
        );
        assert_eq!(earlier(&json!({"image": "a:2"}), vec![last]), None);
    }
}

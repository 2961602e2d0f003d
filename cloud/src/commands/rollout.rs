//! The `rollout` commands: they change `spec.rollout.paused` and an annotation, or restore an earlier
//! spec. The controller acts on it.

use std::io::Write as _;

use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use neptune_api::{InferenceModel, JointInferenceService, RolloutStatus};
use neptune_cloud_kinds::{kubernetes::identity::is_owned, rollout::policy::RESUMED_ANNOTATION};
use serde_json::{Value, json};

use crate::{
    cli::{ObjectArgument, Rollout, RolloutCommand},
    commands::{connect::connect, rolled_out::RolledOut, rollout_undo::undo},
    error::Error,
};

/// Pauses, resumes or undoes a rollout, or prints its state.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, no such object, or one without a rollout.
pub async fn rollout(command: RolloutCommand) -> Result<(), Error> {
    let (RolloutCommand::Pause(flags)
    | RolloutCommand::Resume(flags)
    | RolloutCommand::Undo(flags)
    | RolloutCommand::Status(flags)) = &command;
    let Rollout { object, namespace, cluster } = flags;
    let (client, default) = connect(cluster).await?;
    let namespace = namespace.clone().unwrap_or(default);
    let text = match object {
        ObjectArgument::InferenceModel(name) => {
            run::<InferenceModel>(&command, &client, (&namespace, name)).await?.1
        }
        ObjectArgument::Service(name) => {
            let (service, text) =
                run::<JointInferenceService>(&command, &client, (&namespace, name)).await?;
            if matches!(command, RolloutCommand::Resume(_)) {
                resume_servers(&client, &namespace, &service).await?;
            }
            text
        }
        ObjectArgument::TrainingModel(_)
        | ObjectArgument::Model(_)
        | ObjectArgument::Dataset(_) => {
            unreachable!("the flags refuse other kinds")
        }
    };
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Runs a command on an object. Returns the object as it was before, and what to tell the user.
async fn run<K: RolledOut>(
    command: &RolloutCommand,
    client: &Client,
    (namespace, name): (&str, &str),
) -> Result<(K, String), Error> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let step = format!("get {} {namespace}/{name}", K::kind(&()));
    let object = api.get(name).await.map_err(Error::api(step))?;
    let (patch, text) = match command {
        RolloutCommand::Pause(_) => change(&object, true)?,
        RolloutCommand::Resume(_) => change(&object, false)?,
        RolloutCommand::Undo(_) => undo(client, &object, namespace).await?,
        RolloutCommand::Status(_) => return status(&object).map(|text| (object, text)),
    };
    let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map_err(Error::api(format!("patch {} {namespace}/{name}", K::kind(&()))))?;
    Ok((object, text))
}

/// The change that pauses or resumes a rollout, and what to tell the user.
fn change<K: RolledOut>(object: &K, is_paused: bool) -> Result<(Value, String), Error> {
    let name = format!("{}/{}", K::SHORT, object.name_any());
    if object.spec()["rollout"].is_null() {
        let why = format!("{name} has no rollout: set spec.rollout first");
        return Err(Error::Rollout(why));
    }
    let mut patch = json!({"spec": {"rollout": {"paused": is_paused}}});
    if is_paused {
        return Ok((patch, format!("{name}: rollout paused\n")));
    }
    if let Some(annotation) = resumed(object.rollout()) {
        patch["metadata"]["annotations"] = annotation;
    }
    Ok((patch, format!("{name}: rollout resumed\n")))
}

/// The annotation that resumes a rollout which failures stopped: it names that stop, so that it does
/// not resume a later one.
fn resumed(rollout: Option<&RolloutStatus>) -> Option<Value> {
    let paused = rollout?.paused_time.as_ref()?;
    Some(json!({ RESUMED_ANNOTATION: paused }))
}

/// Resumes the model servers that a service owns: failures stop each rollout by itself.
async fn resume_servers(
    client: &Client,
    namespace: &str,
    service: &JointInferenceService,
) -> Result<(), Error> {
    let api: Api<InferenceModel> = Api::namespaced(client.clone(), namespace);
    let step = format!("list InferenceModels of {namespace}");
    let models = api.list(&ListParams::default()).await.map_err(Error::api(step))?;
    for model in models.into_iter().filter(|model| is_owned(&model.metadata, service)) {
        let Some(annotation) = resumed(model.rollout()) else { continue };
        let patch = json!({"metadata": {"annotations": annotation}});
        let name = model.name_any();
        let done = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        done.map_err(Error::api(format!("annotate InferenceModel {namespace}/{name}")))?;
    }
    Ok(())
}

fn status<K: RolledOut>(object: &K) -> Result<String, Error> {
    let name = format!("{}/{}", K::SHORT, object.name_any());
    let Some(rollout) = object.rollout() else {
        return Err(Error::Rollout(format!("{name} has no rollout: set spec.rollout first")));
    };
    let message = rollout.message.as_deref().unwrap_or_default();
    let RolloutStatus { state, revision, total, updated, ready, failed, .. } = rollout;
    Ok(format!(
        "{name}: {state}, revision {revision}\nnodes: {total}, updated {updated}, ready {ready}, failed {failed}\n{message}\n"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn service(rollout: &Value, status: &Value) -> JointInferenceService {
        let mut spec = json!({
            "edgeWorker": {"name": "e", "model": {"name": "m"}, "hardExampleAlgorithm": {"name": "IBT"}},
            "cloudWorker": {"name": "c"},
        });
        spec["rollout"] = rollout.clone();
        serde_json::from_value(json!({
            "apiVersion": "neptune.io/v1alpha1", "kind": "JointInferenceService",
            "metadata": {"name": "a"}, "spec": spec, "status": {"rollout": status},
        }))
        .unwrap()
    }

    #[test]
    fn resume_names_the_stop_that_the_user_saw() {
        let stopped = json!({"revision": "r", "state": "Paused", "summary": "Paused", "total": 3,
            "updated": 1, "ready": 0, "failed": 1, "pausedTime": "2026-01-01T00:00:05Z",
            "message": "why"});
        let object = service(&json!({}), &stopped);
        let (patch, text) = change(&object, false).unwrap();
        assert_eq!(text, "jis/a: rollout resumed\n");
        assert_eq!(patch["spec"], json!({"rollout": {"paused": false}}));
        let annotations = json!({"neptune.io/rollout-resumed": "2026-01-01T00:00:05Z"});
        assert_eq!(patch["metadata"]["annotations"], annotations);
        let (patch, _) = change(&object, true).unwrap();
        assert_eq!(patch, json!({"spec": {"rollout": {"paused": true}}}));
        let text = status(&object).unwrap();
        let lines = "jis/a: Paused, revision r\nnodes: 3, updated 1, ready 0, failed 1\nwhy\n";
        assert_eq!(text, lines);
    }

    #[test]
    fn object_without_a_rollout_is_an_error_that_names_the_field() {
        let object = service(&Value::Null, &Value::Null);
        for error in [change(&object, true).unwrap_err(), status(&object).unwrap_err()] {
            assert_eq!(error.to_string(), "jis/a has no rollout: set spec.rollout first");
        }
    }
}

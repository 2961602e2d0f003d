//! Creates the aggregator's volume unless it exists, and finds out whether the controller has the
//! rights for trainings in the namespace.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use neptune_cloud_kinds::{
    error_class::Class, finding::Finding, kubernetes::identity::ControllerIdentity, reason::Reason,
};

use crate::error::Error;

/// The volume of a training, if it exists. Without a `RoleBinding` in the namespace the controller
/// may not even get it.
///
/// # Errors
/// The controller has no rights there, or the API server does not answer.
pub async fn volume(
    client: &Client,
    volume: &PersistentVolumeClaim,
    controller: &ControllerIdentity,
) -> Result<Option<PersistentVolumeClaim>, Finding> {
    let existing = api(client, volume).get_opt(&volume.name_any()).await;
    existing.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 403 => unbound(volume, controller),
        _ => failed("get", volume, error),
    })
}

/// Creates the volume unless it exists.
///
/// # Errors
/// As [`volume`]; the API server rejects it, or it has another owner.
pub async fn create_volume(
    client: &Client,
    desired: &PersistentVolumeClaim,
    controller: &ControllerIdentity,
) -> Result<(), Finding> {
    let held = match volume(client, desired, controller).await? {
        Some(held) => Some(held),
        None => match api(client, desired).create(&PostParams::default(), desired).await {
            Ok(_) => {
                tracing::info!(volume = what(desired), "volume created");
                return Ok(());
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                volume(client, desired, controller).await?
            }
            Err(error) => return Err(failed("create", desired, error)),
        },
    };
    let owner = |volume: &PersistentVolumeClaim| {
        let owners = volume.owner_references().iter();
        owners.filter(|it| it.controller == Some(true)).map(|it| it.uid.clone()).next()
    };
    match held {
        Some(held) if owner(&held) == owner(desired) => Ok(()),
        _ => {
            let message = format!("{} exists and has another owner; delete it", what(desired));
            Err(Finding::new(Reason::NameTaken, message))
        }
    }
}

fn api(client: &Client, volume: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
    Api::namespaced(client.clone(), &volume.namespace().unwrap_or_default())
}

fn what(volume: &PersistentVolumeClaim) -> String {
    let namespace = volume.namespace().unwrap_or_default();
    format!("PersistentVolumeClaim {namespace}/{}", volume.name_any())
}

fn unbound(volume: &PersistentVolumeClaim, controller: &ControllerIdentity) -> Finding {
    let namespace = volume.namespace().unwrap_or_default();
    let ControllerIdentity { namespace: own, service_account } = controller;
    let message = format!(
        "the controller has no rights for trainings in namespace {namespace:?}; an administrator of the namespace grants them with: kubectl -n {namespace} create rolebinding neptune-training --clusterrole=neptune-training --serviceaccount={own}:{service_account}"
    );
    Finding::new(Reason::RoleBindingMissing, message)
}

fn failed(verb: &str, volume: &PersistentVolumeClaim, error: kube::Error) -> Finding {
    let what = what(volume);
    let error = Error::api(format!("{verb} {what}"))(error);
    if error.class() == Class::Refused {
        let message = format!("the API server rejected {what}: {}", error.answer());
        return Finding::new(Reason::AggregatorRefused, message);
    }
    Finding::new(Reason::WaitingForAggregator, format!("{error}; retrying"))
}

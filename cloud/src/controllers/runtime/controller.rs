//! What is the same of every kind that this program controls, for the steps that they share.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::NamespaceResourceScope;
use kube::runtime::reflector::Store;
use neptune_wire::{ObjectKey, Resource};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cache::Caches,
    controllers::runtime::context::{Context, ControllerState},
    error::Error,
    reason::Finding,
};

/// A kind of the API with a controller.
pub trait Kind:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Its name on the wire.
    const RESOURCE: Resource;

    /// The copies of its objects.
    fn store(caches: &Caches) -> &Store<Self>;

    /// What is remembered of its objects.
    fn controller_state(context: &Context) -> &ControllerState<Self>;

    /// Whether news of a node, or of its agent, may mean something for this object.
    fn concerns(&self, node: &str) -> bool;

    /// What stands in its way, as a condition would say it.
    fn findings(&self, context: &Context) -> Vec<Finding>;

    /// Looks at an object: observe, validate, plan, apply, status. Returns when to look again though
    /// nothing changes. `cached` is what the watch has brought so far of `object`.
    fn reconcile(
        object: Arc<Self>,
        cached: Arc<Self>,
        key: ObjectKey,
        context: Arc<Context>,
    ) -> impl Future<Output = Result<Option<Duration>, Error>> + Send;
}

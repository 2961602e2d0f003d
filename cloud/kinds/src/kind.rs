//! The registry of the kinds that have a controller, one line per kind. Caches, queues, triggers,
//! the state per kind, metrics and admission are derived from it.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use neptune_wire::Resource;
use serde::{Serialize, de::DeserializeOwned};

/// Calls `callback!` with its arguments in brackets, followed by all registered kinds.
///
/// A line has the kind, its resource on the wire, its field in the caches (also its label in
/// metrics), and the name of the gauge that counts its objects.
#[macro_export]
macro_rules! for_each_kind {
    ($($callback:tt)::+!($($argument:tt)*)) => {
        $($callback)::+! {
            [$($argument)*]
            JointInferenceService(JointInferenceServices, joint_inference_service, "services");
            Dataset(Datasets, dataset, "datasets");
            Model(Models, model, "models");
            InferenceModel(InferenceModels, inference_model, "inference_models");
            TrainingModel(TrainingModels, training_model, "training_models");
        }
    };
}

/// Evaluates an expression once per kind: `each_kind!(K => enqueue_all::<K>(context))`.
#[macro_export]
macro_rules! each_kind {
    ($alias:ident => $body:expr) => {
        $crate::for_each_kind!($crate::each_kind_body!($alias => $body))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! each_kind_body {
    ([$alias:ident => $body:expr] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {{
        $({
            type $alias = neptune_api::$kind;
            $body;
        })*
    }};
}

/// Evaluates an expression for the kind of a resource: `with_kind!(key.resource, K =>
/// enqueue::<K>(key))`. For a resource without a kind the value is the default.
#[macro_export]
macro_rules! with_kind {
    ($value:expr, $alias:ident => $body:expr) => {
        $crate::for_each_kind!($crate::with_kind_body!($value, $alias => $body))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! with_kind_body {
    ([$value:expr, $alias:ident => $body:expr] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        match $value {
            $(neptune_wire::Resource::$resource => {
                type $alias = neptune_api::$kind;
                $body
            })*
            // The API has no objects of it.
            neptune_wire::Resource::Peers => Default::default(),
        }
    };
}

macro_rules! count_kinds {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// How many kinds are registered.
        pub const NUMBER_OF_KINDS: usize = [$(Resource::$resource),*].len();
    };
}

for_each_kind!(count_kinds!());

/// The name of the CRD of a kind.
pub fn crd_name<K: kube_core::Resource<DynamicType = ()>>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

/// A kind of the API that has a controller.
pub trait Kind:
    kube_core::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The name of the kind on the wire.
    const RESOURCE: Resource;

    /// The name of the kind in the labels of metrics.
    const LABEL: &'static str;

    /// The gauge that counts its objects, without the prefix of all metrics.
    const GAUGE: &'static str;
}

macro_rules! implement_kind {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        $(impl Kind for neptune_api::$kind {
            const RESOURCE: Resource = Resource::$resource;
            const LABEL: &'static str = stringify!($field);
            const GAUGE: &'static str = $gauge;
        })*
    };
}

for_each_kind!(implement_kind!());

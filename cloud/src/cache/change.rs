//! What a watch reports, as a value. What follows from it is decided by
//! `controllers::runtime::triggers`.

use neptune_wire::Resource;

macro_rules! define_object {
    ([] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        /// An object of any registered kind.
        #[derive(Debug, Clone)]
        pub enum Object { $(
            #[doc = concat!("A `", stringify!($kind), "`.")]
            $kind(Box<neptune_api::$kind>)
        ),* }

        $(impl From<&neptune_api::$kind> for Object {
            fn from(object: &neptune_api::$kind) -> Self {
                Self::$kind(Box::new(object.clone()))
            }
        })*
    };
}

for_each_kind!(define_object!());

/// Evaluates an expression for an [`Object`] of any kind.
macro_rules! with_object {
    ($of:expr, $object:ident => $body:expr) => { for_each_kind!(with_object_body!($of, $object => $body)) };
}

macro_rules! with_object_body {
    ([$of:expr, $object:ident => $body:expr] $($kind:ident($resource:ident, $field:ident, $gauge:literal);)*) => {
        match $of { $($crate::cache::Object::$kind($object) => $body),* }
    };
}

pub(crate) use {with_object, with_object_body};

/// A change that a watch reports.
#[derive(Debug, Clone)]
pub enum Change {
    /// An object was created or changed.
    Applied(Object),
    /// An object was deleted.
    Deleted(Object),
    /// A node was created, changed or deleted.
    Node(String),
    /// A Deployment, Service or Pod of this controller was created, changed or deleted.
    Workload {
        /// The kind of the owner.
        owner: Resource,
        /// The namespace of the owner.
        namespace: String,
        /// The name of the owner.
        name: String,
        /// Whether it was deleted.
        deleted: bool,
    },
    /// The framework table was created, changed or deleted.
    Frameworks,
    /// The trusted keys of the nodes were created, changed or deleted.
    NodeKeys,
    /// A watch listed its objects, again or for the first time: any change may have been missed.
    Relisted,
    /// The CRD of a kind is missing.
    KindMissing,
}

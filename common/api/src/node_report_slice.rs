//! `NodeReportSlice` of `neptune.io/v1alpha1`: what some of the nodes of one object counted.

use std::borrow::Cow;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
        CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceValidation,
        JSONSchemaProps,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::{
    NamespaceResourceScope,
    schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter},
};
use schemars::{JsonSchema, generate::SchemaSettings, transform::AddNullable};
use serde::{Deserialize, Serialize};

use crate::{
    CounterTotals,
    joint_inference_service::{is_zero, total},
};

const GROUP: &str = "neptune.io";
const VERSION: &str = "v1alpha1";
const KIND: &str = "NodeReportSlice";
const PLURAL: &str = "nodereportslices";

/// NodeReportSlice is what some of the nodes of one JointInferenceService counted. A service with more
/// than 32 nodes has its counters in slices. Only the controller writes them; a slice that a person
/// deletes is written again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReportSlice {
    /// The group and version of the kind.
    #[schemars(skip)]
    pub api_version: String,
    /// The name of the kind.
    #[schemars(skip)]
    pub kind: String,
    /// The metadata. Its label neptune.io/owner and its ownerReferences name the service.
    #[schemars(skip)]
    pub metadata: ObjectMeta,
    /// folded is the sum of the counters of agents that are no longer listed in rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folded: Option<CounterTotals>,
    /// rows are the counters of each agent of the nodes of this slice, and the nodes that have not
    /// counted. A node stays in its slice.
    #[schemars(length(max = NodeReportSlice::MAX_ROWS), extend("x-kubernetes-list-type" = "atomic"))]
    pub rows: Vec<SliceRow>,
}

/// SliceRow is what one agent of a node counted, or a node that has not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SliceRow {
    /// node is the name of the node.
    #[schemars(length(max = crate::schema::MAX_NAME_LENGTH))]
    pub node: String,
    /// instance identifies the data directory of the agent. It is absent on a node that has not
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub instance: Option<String>,
    /// epoch is the number of agent starts on the data directory at the time of the report.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub epoch: u64,
    /// seq is the sequence number of the report within the epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "total")]
    pub seq: u64,
    /// counters are the highest ones that the agent reported.
    #[serde(flatten)]
    pub counters: Option<CounterTotals>,
    /// state is Pending, Running, Completed, Failed or Unknown. It is absent on a node that no longer
    /// has the object, and on the rows of replaced agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// reason is a machine-readable CamelCase reason of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
}

impl NodeReportSlice {
    /// The maximum number of nodes of a slice.
    pub const MAX_NODES: usize = 100;

    /// The maximum number of rows of a slice: of its nodes, and of agents that were replaced.
    pub const MAX_ROWS: usize = 200;

    /// The label with the name of the owner.
    pub const OWNER_LABEL: &str = "neptune.io/owner";
}

impl Default for NodeReportSlice {
    fn default() -> Self {
        Self {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            metadata: ObjectMeta::default(),
            folded: None,
            rows: Vec::new(),
        }
    }
}

impl kube::Resource for NodeReportSlice {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl NodeReportSlice {
    /// The definition of the kind. It has no spec and no status, which kube's derive requires.
    pub(crate) fn crd() -> CustomResourceDefinition {
        let column = |name: &str, type_: &str, path: &str| CustomResourceColumnDefinition {
            name: name.to_owned(),
            type_: type_.to_owned(),
            json_path: path.to_owned(),
            ..CustomResourceColumnDefinition::default()
        };
        let columns = vec![
            column("Owner", "string", r".metadata.labels.neptune\.io/owner"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ];
        let version = CustomResourceDefinitionVersion {
            name: VERSION.to_owned(),
            served: true,
            storage: true,
            additional_printer_columns: Some(columns),
            schema: Some(CustomResourceValidation { open_api_v3_schema: Some(schema()) }),
            ..CustomResourceDefinitionVersion::default()
        };
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(format!("{PLURAL}.{GROUP}")),
                ..ObjectMeta::default()
            },
            spec: CustomResourceDefinitionSpec {
                group: GROUP.to_owned(),
                scope: "Namespaced".to_owned(),
                names: CustomResourceDefinitionNames {
                    kind: KIND.to_owned(),
                    plural: PLURAL.to_owned(),
                    singular: Some(KIND.to_lowercase()),
                    short_names: Some(vec!["nrs".to_owned()]),
                    ..CustomResourceDefinitionNames::default()
                },
                versions: vec![version],
                ..CustomResourceDefinitionSpec::default()
            },
            status: None,
        }
    }
}

/// The schema, as kube's derive generates those of the other kinds.
fn schema() -> JSONSchemaProps {
    let generator = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .with_transform(OptionalIntOrString)
        .into_generator();
    let schema = generator.into_root_schema_for::<NodeReportSlice>();
    let mut schema: JSONSchemaProps = serde_json::to_value(schema)
        .and_then(serde_json::from_value)
        .expect("a schema of schemars is that of a CRD");
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        // Not a value that a client has to send.
        property.default = None;
    }
    schema
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;

    use super::*;

    #[test]
    fn slice_is_a_resource_with_the_names_of_its_crd() {
        let crd = NodeReportSlice::crd();
        assert_eq!(NodeReportSlice::group(&()), crd.spec.group);
        assert_eq!(NodeReportSlice::version(&()), crd.spec.versions[0].name);
        assert_eq!(NodeReportSlice::kind(&()), crd.spec.names.kind);
        assert_eq!(NodeReportSlice::plural(&()), crd.spec.names.plural);
        let mut slice = NodeReportSlice::default();
        assert_eq!(slice.api_version, NodeReportSlice::api_version(&()));
        slice.meta_mut().name = Some("a".to_owned());
        assert_eq!(slice.metadata.name.as_deref(), Some("a"));
        assert_eq!(slice.meta(), &slice.metadata);
    }
}

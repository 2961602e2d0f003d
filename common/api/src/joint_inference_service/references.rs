//! References to other objects in the namespace of the service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// ModelReference refers to a Model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelReference {
    /// name is the name of a Model (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// DatasetReference refers to a Dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DatasetReference {
    /// name is the name of a Dataset (edgeai.io) in the namespace of the service. It may be created
    /// later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// InferenceModelReference refers to an InferenceModel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InferenceModelReference {
    /// name is the name of an InferenceModel (sedna.io) in the namespace of the service. It may
    /// be created later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

/// JointInferenceServiceReference refers to another JointInferenceService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JointInferenceServiceReference {
    /// name is the name of another JointInferenceService in the namespace of the service. It may
    /// be created later.
    #[schemars(length(max = schema::MAX_NAME_LENGTH), regex(pattern = schema::SUBDOMAIN))]
    pub name: String,
}

//! What a model is: its task, its signature, its origin and its licence.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// ModelMetadata describes a model. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelMetadata {
    /// task is what the model is for, in the words of Hugging Face, such as image-classification,
    /// object-detection or text-generation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub task: String,
    /// family is the name that versions of the model share, such as smollm2.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub family: String,
    /// version is the version of the model, as its maker names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub version: String,
    /// framework is the framework with which the model was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<ModelFramework>,
    /// paramSize is the number of parameters, such as 360m or 8b.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(\.[0-9]+)?[kmbtKMBT]?)?$"))]
    pub param_size: String,
    /// precision is the type of the weights, such as float16.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub precision: String,
    /// quantization is how the weights are quantized, such as q4_k_m or int8.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub quantization: String,
    /// licenses are the licences of the model, as SPDX identifiers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = schema::MAX_TOKEN_LENGTH)))]
    pub licenses: Vec<String>,
    /// classes are the names of the classes that the model distinguishes, in the order of its
    /// outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), inner(length(max = schema::MAX_TOKEN_LENGTH)))]
    pub classes: Vec<String>,
    /// inputs are the tensors that the model reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub inputs: Vec<ModelTensor>,
    /// outputs are the tensors that the model returns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub outputs: Vec<ModelTensor>,
    /// datasets are the names of the data that the model was trained with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub datasets: Vec<String>,
    /// baseModel is the model from which this one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<BaseModel>,
    /// sourceURL is a page about the model.
    #[serde(default, rename = "sourceURL", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_URL_LENGTH))]
    pub source_url: String,
    /// properties are other facts; at most 64. Use labels of the object for what selectors match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64), inner(length(max = schema::MAX_ADDRESS_LENGTH)))]
    pub properties: BTreeMap<String, String>,
}

/// ModelFramework is the framework with which a model was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFramework {
    /// name is the name of the framework, such as pytorch.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub name: String,
    /// version is the version of the framework.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub version: String,
}

/// ModelTensor is an input or an output of a model, in the words of the Open Inference Protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelTensor {
    /// name is the name of the tensor.
    #[schemars(length(max = schema::MAX_TOKEN_LENGTH))]
    pub name: String,
    /// datatype is the type of the tensor's elements.
    #[schemars(extend("enum" = [
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
        "FP32", "FP64", "BF16", "BYTES"
    ]))]
    pub datatype: String,
    /// shape is the size of the tensor per dimension; -1 is any size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(range(min = -1)))]
    pub shape: Vec<i64>,
}

/// BaseModel is the model from which another one was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BaseModel {
    /// name is the name of the model: of a Model in the namespace, or of another one.
    #[schemars(length(max = schema::MAX_URL_LENGTH))]
    pub name: String,
    /// sha256sum is the SHA-256 of its file as 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = schema::SHA256))]
    pub sha256sum: Option<String>,
}

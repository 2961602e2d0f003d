//! The flags of `status`.

use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::ClusterFlags;

/// The flags of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Object to show: jis/NAME, im/NAME, tm/NAME, model/NAME, dataset/NAME, or NAME for a
    /// JointInferenceService.
    #[arg(value_name = "[KIND/]NAME")]
    pub object: ObjectArgument,
    /// Namespace of the object. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Output format of the status.
    #[arg(short, long, value_name = "FORMAT", env = "NEPTUNE_OUTPUT", default_value = "text")]
    pub output: Output,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The object that `status` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectArgument {
    /// Name of a JointInferenceService.
    Service(String),
    /// Name of an InferenceModel.
    InferenceModel(String),
    /// Name of a TrainingModel.
    TrainingModel(String),
    /// Name of a Model.
    Model(String),
    /// Name of a Dataset.
    Dataset(String),
}

impl FromStr for ObjectArgument {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("jis", text));
        let made: fn(String) -> Self = match kind.split('.').next().unwrap_or(kind) {
            "jis" | "jointinferenceservice" | "jointinferenceservices" => Self::Service,
            "im" | "inferencemodel" | "inferencemodels" => Self::InferenceModel,
            "tm" | "trainingmodel" | "trainingmodels" => Self::TrainingModel,
            "model" | "models" => Self::Model,
            "dataset" | "datasets" => Self::Dataset,
            _ => {
                return Err("unknown kind; use jis (JointInferenceService), im (InferenceModel), tm (TrainingModel), model or dataset".into());
            }
        };
        if name.is_empty() || name.contains('/') {
            return Err("invalid object name; write NAME, or KIND/NAME such as model/NAME".into());
        }
        Ok(made(name.to_owned()))
    }
}

/// Output format of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Page to read in a terminal.
    Text,
    /// JSON for other programs.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_argument_is_parsed_like_kubectl() {
        let service = |name: &str| Ok(ObjectArgument::Service(name.to_owned()));
        for text in ["a", "jis/a", "jointinferenceservices.neptune.io/a"] {
            assert_eq!(text.parse(), service("a"), "{text}");
        }
        assert_eq!("im/a".parse(), Ok(ObjectArgument::InferenceModel("a".to_owned())));
        assert_eq!("tm/a".parse(), Ok(ObjectArgument::TrainingModel("a".to_owned())));
        assert_eq!("model/a".parse(), Ok(ObjectArgument::Model("a".to_owned())));
        assert_eq!("datasets.edgeai.io/a".parse(), Ok(ObjectArgument::Dataset("a".to_owned())));
        for text in ["pods/a", "jis/", "", "jis/a/b"] {
            assert!(text.parse::<ObjectArgument>().is_err(), "{text}");
        }
    }
}

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
    /// Print one line per node of the object instead of the page; with a state, only the nodes in this
    /// state. The status of a Model or an InferenceModel has at most 32 nodes.
    #[arg(
        long,
        value_name = "STATE",
        env = "NEPTUNE_NODES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "All",
        ignore_case = true,
        conflicts_with = "node"
    )]
    pub nodes: Option<NodeFilter>,
    /// Print what is known about one node of the object instead of the page.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_NODE")]
    pub node: Option<String>,
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

/// The nodes that `status --nodes` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeFilter {
    /// All nodes that have the object.
    #[value(name = "All")]
    All,
    /// Nodes on which it is starting, or waits for something.
    #[value(name = "Pending")]
    Pending,
    /// Nodes on which it runs.
    #[value(name = "Running")]
    Running,
    /// Nodes on which it has ended.
    #[value(name = "Completed")]
    Completed,
    /// Nodes that have the file of the Model.
    #[value(name = "Present")]
    Present,
    /// Nodes that download the file of the Model.
    #[value(name = "Downloading")]
    Downloading,
    /// Nodes that have an earlier file of the Model.
    #[value(name = "Outdated")]
    Outdated,
    /// Nodes on which it failed.
    #[value(name = "Failed")]
    Failed,
    /// Nodes that are offline or have not reported.
    #[value(name = "Unknown")]
    Unknown,
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
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn state_of_nodes_is_optional_and_needs_an_equals_sign() {
        let parse = |arguments: &[&str]| {
            let arguments = [&["neptune-cloud", "status"][..], arguments].concat();
            Cli::try_parse_from(arguments).map(|cli| match cli.command {
                Command::Status(flags) => (flags.nodes, flags.node),
                other => unreachable!("{other:?}"),
            })
        };
        assert_eq!(parse(&["digits"]).unwrap(), (None, None));
        assert_eq!(parse(&["--nodes", "digits"]).unwrap(), (Some(NodeFilter::All), None));
        for text in ["--nodes=Failed", "--nodes=failed"] {
            assert_eq!(parse(&["digits", text]).unwrap(), (Some(NodeFilter::Failed), None));
        }
        assert_eq!(parse(&["digits", "--node", "e"]).unwrap(), (None, Some("e".to_owned())));
        let error = parse(&["digits", "--nodes=Broken"]).unwrap_err();
        assert!(error.to_string().contains("Downloading"), "it names the states: {error}");
        assert!(parse(&["digits", "--nodes", "--node", "e"]).is_err());
    }

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

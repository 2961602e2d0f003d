//! The flags of `record-metrics`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ClusterFlags;

/// The flags of `record-metrics`.
#[derive(Debug, Args)]
pub struct RecordMetrics {
    /// Name of the Model.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Output of `neptune-gateway calibrate --output json`; - for the standard input.
    #[arg(
        long,
        value_name = "FILE",
        env = "NEPTUNE_CALIBRATION",
        required_unless_present = "service",
        conflicts_with = "service"
    )]
    pub calibration: Option<PathBuf>,
    /// Which of the two models of the calibration the Model is.
    #[arg(long, value_name = "SIDE", env = "NEPTUNE_SIDE", default_value = "edge")]
    pub side: Side,
    /// Dataset that has the samples of the calibration. Metrics of equal data are compared.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_DATASET", requires = "calibration")]
    pub dataset: Option<String>,
    /// JointInferenceService whose edge worker is the Model: its agreement with the cloud is
    /// recorded.
    #[arg(long, value_name = "NAME", env = "NEPTUNE_SERVICE")]
    pub service: Option<String>,
    /// Namespace of the objects. Default: the namespace of the kubeconfig context.
    #[arg(short, long, value_name = "NAME", env = "NEPTUNE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Kubeconfig and context of the API server.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// A side of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// The model at the edge.
    Edge,
    /// The model in the cloud.
    Cloud,
}

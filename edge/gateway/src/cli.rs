//! The command line, and the environment that an agent sets for its workers.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use neptune_program::logs::LogFlags;

/// Answers inference requests with the model server of this node, and sends hard samples to the
/// cloud.
#[derive(Debug, Parser)]
#[command(name = "neptune-gateway", version)]
pub struct Cli {
    /// The command that the program runs.
    #[command(subcommand)]
    pub command: Command,
    /// Options of the log, which all commands have.
    #[command(flatten)]
    pub logs: LogFlags,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve inference requests until SIGTERM.
    Run(RunArgs),
    /// Check a configuration file and exit.
    Check(CheckArgs),
    /// Pass each HTTP request to the program whose address is in a file, until SIGTERM.
    ///
    /// Agents run it in front of transformers, so that another one starts beside the present one.
    Proxy(ProxyArgs),
    /// Ask both model servers about labelled samples, and print what each threshold does.
    ///
    /// Each sample is sent to the model server of the node and to the one in the cloud, which
    /// includes the samples that a gateway would not upload.
    Calibrate(Box<CalibrateArgs>),
}

/// Options of the command `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file to check.
    #[arg(long)]
    pub config: PathBuf,
}

/// Options of the command `proxy`.
#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// Address on which clients connect, such as 0.0.0.0:8501.
    #[arg(long)]
    pub listen: SocketAddr,
    /// File with the address of the program, such as 127.0.0.1:13001. It is read with each request.
    #[arg(long)]
    pub target_file: PathBuf,
}

/// Options of the command `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// The gateway's configuration file. It names both model servers, and how the confidence is
    /// computed.
    #[arg(long, env = "NEPTUNE_GATEWAY_CONFIG")]
    pub config: PathBuf,
    /// The labelled samples: a file, or a directory with files of the format.
    #[arg(long)]
    pub data: PathBuf,
    /// How the samples are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Name of the model on the node [default: edge.model of the configuration].
    #[arg(long)]
    pub model: Option<String>,
    /// Samples per request, of tensors.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Tokens of an answer, of language models.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Recommend a threshold that uploads at most this share [default: goal.uploadRatio of the
    /// configuration, else 0.2].
    #[arg(long, value_parser = share)]
    pub upload_ratio: Option<f64>,
    /// Recommend a threshold whose accuracy is at least this share.
    #[arg(long, value_parser = share)]
    pub accuracy: Option<f64>,
    /// Format of the result on the standard output.
    #[arg(long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// Write a plot of accuracy and uploads to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// How labelled samples are read. The names are those of a Dataset.
#[derive(Debug, Clone, Args)]
pub struct ReadingArgs {
    /// Format of the samples [default: by the name of the file].
    #[arg(long, value_enum)]
    pub format: Option<DataFormat>,
    /// csv: the first record is a sample, not a header.
    #[arg(long)]
    pub no_header: bool,
    /// csv: the character that separates fields.
    #[arg(long, default_value_t = ',')]
    pub delimiter: char,
    /// csv: the column of the label: first, last, a position from 0, or a name of the header.
    #[arg(long, default_value = "last")]
    pub label_column: LabelColumn,
    /// csv: the names of the classes in the model's order, if labels are names [default: labels are
    /// the numbers of classes, from 0].
    #[arg(long, value_delimiter = ',')]
    pub classes: Vec<String>,
    /// csv: the shape of one sample, such as 28,28,1 [default: of the model, else a list].
    #[arg(long, value_delimiter = ',')]
    pub shape: Vec<usize>,
    /// Use this number of samples, evenly spread over the data [default: all].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
}

/// A format of labelled samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataFormat {
    /// Records of numbers with a label, for tensors.
    Csv,
    /// One JSON object per line with a question and its answers, for language models.
    Jsonl,
}

/// The format in which `calibrate` prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// A table with sentences, for people.
    #[default]
    Table,
    /// One JSON object, for programs.
    Json,
}

/// Selects the column of the label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelColumn {
    /// The first column of the record.
    First,
    /// The last column of the record.
    Last,
    /// The column at this position, from 0.
    Index(usize),
    /// The column with this name in the header.
    Name(String),
}

impl FromStr for LabelColumn {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match (text, text.parse()) {
            ("first", _) => Self::First,
            ("last", _) => Self::Last,
            (_, Ok(index)) => Self::Index(index),
            (name, Err(_)) => Self::Name(name.to_owned()),
        })
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// Options of the command `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file. It is read again when it changes.
    #[arg(long, env = "NEPTUNE_GATEWAY_CONFIG")]
    pub config: PathBuf,
    /// Where and as which worker the counters are reported.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// The environment that an agent sets for its workers; see the worker contract.
#[derive(Debug, Clone, Default, Args)]
pub struct ReportArgs {
    /// The node's MQTT broker. Without it nothing is reported.
    #[arg(long, env, hide_env_values = true)]
    pub mqtt_url: Option<String>,
    /// Topic of the reports [default: neptune/workers/<worker name>/info].
    #[arg(long, env)]
    pub worker_info_topic: Option<String>,
    /// Name of this worker.
    #[arg(long, env)]
    pub worker_name: Option<String>,
    /// Namespace of the service.
    #[arg(long, env, default_value = "default")]
    pub namespace: String,
    /// Name of the service.
    #[arg(long, env)]
    pub service_name: Option<String>,
}

//! The command line and a worker's environment, parsed once. Empty optional variables count as
//! unset.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Recognises handwritten digits at the edge, and sends the hard ones to the cloud.
///
/// An agent starts this program with the name of a subcommand and sets the environment shown with
/// each option.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Without a network: digits evaluate\n\
    Manually, on one machine with an MQTT broker:\n  \
    digits cloud --service-name demo --model-url examples/digits/models/big.json\n  \
    digits edge --service-name demo --worker-name demo-edge --model-url examples/digits/models/small.json --big-model-url http://127.0.0.1:5000"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the edge worker: infer the held-out samples, send hard ones to the cloud worker, report
    /// over MQTT.
    Edge(Box<EdgeSettings>),
    /// Run the cloud worker: answer `POST /<service>/predict` with the big model.
    Cloud(CloudSettings),
    /// Print edge-only, cloud-only and joint accuracy, without a network.
    Evaluate(EvaluateSettings),
}

#[derive(Debug, Clone, Args)]
pub struct EdgeSettings {
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub rule: RuleSettings,
    /// Path of the small model's file.
    #[arg(long, env)]
    pub model_url: String,
    /// Base URL of the cloud worker. Takes precedence over address and port.
    #[arg(long, env)]
    pub big_model_url: Option<String>,
    /// Address of the cloud worker. Without it and without a URL, only the edge model is used.
    #[arg(long, env)]
    pub big_model_ip: Option<String>,
    #[arg(long, env, default_value_t = 5000)]
    pub big_model_port: u16,
    /// The node's MQTT broker.
    #[arg(long, env, default_value = "mqtt://127.0.0.1:1883", hide_env_values = true)]
    pub mqtt_url: String,
    /// Topic of the reports [default: neptune/workers/<worker name>/info].
    #[arg(long, env)]
    pub worker_info_topic: Option<String>,
    /// Topic on which the agent requests another version of the small model. Without it, the first
    /// version is kept.
    #[arg(long, env)]
    pub worker_reload_topic: Option<String>,
    /// Seconds between two reports of the counters.
    #[arg(long, env = "LC_PERIOD", default_value = "1", value_parser = seconds)]
    pub lc_period: Duration,
    /// Samples a second; 0 means as fast as possible.
    #[arg(long, env, default_value = "50", value_parser = rate)]
    pub rate: f64,
    /// Passes over the held-out samples; 0 means indefinitely.
    #[arg(long, env, default_value_t = 1)]
    pub passes: u64,
    /// Seconds to wait for the cloud worker before the first sample, at most; 0 means not at all. It
    /// may start later than this worker, and there are few samples.
    #[arg(long, env, default_value = "120", value_parser = wait)]
    pub cloud_wait: Duration,
}

#[derive(Debug, Clone, Args)]
pub struct Identity {
    #[arg(long, env, default_value = "default")]
    pub namespace: String,
    #[arg(long, env)]
    pub service_name: String,
    #[arg(long, env)]
    pub worker_name: String,
}

#[derive(Debug, Clone, Args)]
pub struct RuleSettings {
    /// Which samples are hard: IBT, Threshold, `CrossEntropy`, Random, `CloudOnly` or `EdgeOnly`.
    #[arg(long, env, default_value = "CrossEntropy")]
    pub hem_name: String,
    /// JSON list of {"key", "value"}.
    #[arg(long, env, default_value = "")]
    pub hem_parameters: String,
}

#[derive(Debug, Clone, Args)]
pub struct CloudSettings {
    #[arg(long, env)]
    pub service_name: String,
    /// Path of the big model's file.
    #[arg(long, env)]
    pub model_url: String,
    #[arg(long, env, default_value = "0.0.0.0")]
    pub big_model_bind_ip: String,
    #[arg(long, env, default_value_t = 5000)]
    pub big_model_bind_port: u16,
}

#[derive(Debug, Clone, Args)]
pub struct EvaluateSettings {
    #[command(flatten)]
    pub rule: RuleSettings,
    #[arg(long, default_value = "examples/digits/models/small.json")]
    pub small_model: String,
    #[arg(long, default_value = "examples/digits/models/big.json")]
    pub big_model: String,
    /// The samples: choose thresholds on `train`; `test` is held out.
    #[arg(long, value_enum, default_value_t = Split::Test)]
    pub split: Split,
    /// Print a table of thresholds of Threshold and `CrossEntropy` instead of one rule.
    #[arg(long)]
    pub sweep: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Split {
    Train,
    Test,
}

impl EdgeSettings {
    /// Base URL of the cloud worker, if it is set.
    pub fn cloud_url(&self) -> Option<String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        given(&self.big_model_url).or_else(|| {
            Some(format!("http://{}:{}", given(&self.big_model_ip)?, self.big_model_port))
        })
    }

    /// The topic for reports.
    pub fn info_topic(&self) -> String {
        let given = self.worker_info_topic.clone().filter(|topic| !topic.is_empty());
        given.unwrap_or_else(|| format!("neptune/workers/{}/info", self.identity.worker_name))
    }

    /// The topic on which the agent requests another version, if it is set.
    pub fn reload_topic(&self) -> Option<String> {
        self.worker_reload_topic.clone().filter(|topic| !topic.is_empty())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|period| *period >= Duration::from_millis(10))
        .ok_or_else(|| "must be at least 0.01".to_owned())
}

fn wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "must be 0 or more".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == 0.0 || (0.001..=1e6).contains(&rate) => Ok(rate),
        _ => Err("must be 0 or a number from 0.001 to 1000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn edge(arguments: &[&str]) -> Result<EdgeSettings, clap::Error> {
        let start =
            ["digits", "edge", "--service-name", "s", "--worker-name", "w", "--model-url", "m"];
        Cli::try_parse_from(start.iter().chain(arguments)).map(|cli| match cli.command {
            Command::Edge(settings) => *settings,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn url_takes_precedence_over_address_and_empty_means_unset() {
        for (arguments, url) in [
            (&[][..], None),
            (&["--big-model-ip", "10.0.0.1"], Some("http://10.0.0.1:5000")),
            (
                &["--big-model-ip", "10.0.0.1", "--big-model-port", "80", "--big-model-url", ""],
                Some("http://10.0.0.1:80"),
            ),
            (
                &["--big-model-ip", "10.0.0.1", "--big-model-url", "http://cloud"],
                Some("http://cloud"),
            ),
            (&["--big-model-ip", "", "--big-model-url", ""], None),
        ] {
            assert_eq!(edge(arguments).unwrap().cloud_url().as_deref(), url, "{arguments:?}");
        }
    }

    #[test]
    fn topic_is_derived_from_the_worker_unless_given() {
        assert_eq!(edge(&[]).unwrap().info_topic(), "neptune/workers/w/info");
        assert_eq!(edge(&["--worker-info-topic", "x/y"]).unwrap().info_topic(), "x/y");
    }

    #[test]
    fn invalid_rates_and_periods_are_refused() {
        for bad in [
            ["--rate", "-1"],
            ["--rate", "NaN"],
            ["--rate", "inf"],
            ["--lc-period", "0"],
            ["--lc-period", "1e300"],
            ["--lc-period", "-1"],
            ["--cloud-wait", "-1"],
            ["--cloud-wait", "soon"],
        ] {
            assert!(edge(&[&format!("{}={}", bad[0], bad[1])]).is_err(), "{bad:?}");
        }
        assert!(edge(&["--rate=0", "--lc-period=0.1"]).is_ok());
    }
}

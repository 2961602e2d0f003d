//! Defines the flags of `neptune-aggregator`.

#![allow(
    clippy::doc_markdown,
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use neptune_program::logs::LogFlags;
use neptune_wire::KeyPin;

/// Runs the rounds of one TrainingModel: names the tasks of workers, receives and checks their
/// updates, and computes the new weights.
///
/// The controller starts one aggregator for each TrainingModel. All state is in the data directory:
/// after a stop at any moment, the run continues where it was, with the same result.
#[derive(Debug, Parser)]
#[command(name = "neptune-aggregator", version)]
pub struct Cli {
    /// Directory of the run's database and weights. One aggregator at a time can use it.
    #[arg(long, env = "NEPTUNE_DATA_DIR", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Address for nodes and the controller (TLS), and for downloads of published weights, probes
    /// and metrics (HTTP).
    #[arg(long, env = "NEPTUNE_LISTEN", default_value = "0.0.0.0:8418", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Private key in PEM (PKCS #8), which clients pin. It has to exist [default: tls.key in the data
    /// directory, created if absent].
    #[arg(long, env = "NEPTUNE_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Pin of the controller's key: sha256: and 64 hex digits. No other client can send a run
    /// [default: the pin of the own key].
    #[arg(long, env = "NEPTUNE_CONTROLLER_PIN", value_name = "PIN", value_parser = pin)]
    pub controller_pin: Option<KeyPin>,
    /// Create tls.key in the data directory if it is absent, write its pin to this file, and exit.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_file", "controller_pin"])]
    pub report_pin: Option<PathBuf>,
    /// Level and format of the log.
    #[command(flatten)]
    pub logs: LogFlags,
}

fn pin(text: &str) -> Result<KeyPin, &'static str> {
    let pin = KeyPin(text.to_owned());
    if pin.is_valid() { Ok(pin) } else { Err("must be sha256: and 64 lower-case hex digits") }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn pin_of_the_controller_is_parsed() {
        let parse = |given: &str| {
            let args = ["neptune-aggregator", "--data-dir", "/d", "--controller-pin", given];
            Cli::try_parse_from(args).ok().and_then(|cli| cli.controller_pin)
        };
        let given = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(parse(&given), Some(KeyPin(given)));
        assert_eq!(parse("sha256:0F"), None);
    }
}

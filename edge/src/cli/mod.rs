//! The command line of `neptune-edge`. `config.rs` validates it.

#![allow(
    clippy::doc_markdown,
    rustdoc::broken_intra_doc_links,
    reason = "the texts are shown to users as they are"
)]

mod bundle;
mod containers;
mod devices;
mod doctor;
mod downloads;
mod fetch;
mod join;
mod models;
mod peers;
mod run;
mod sidecar;

use clap::{Parser, Subcommand, ValueEnum};
use neptune_program::logs::LogFlags;

pub use self::{
    bundle::BundleArgs,
    containers::{ContainerArgs, ImageGcArgs},
    devices::DeviceArgs,
    doctor::DoctorArgs,
    downloads::DownloadArgs,
    fetch::FetchArgs,
    join::{JoinArgs, LeaveArgs, PlaceArgs},
    models::{ModelArgs, ModelSharing},
    peers::PeerArgs,
    run::RunArgs,
    sidecar::SidecarArgs,
};

/// The node agent of Neptune: runs the node's workers and model servers, counts inferences, and
/// reports to the cloud.
#[derive(Debug, Parser)]
#[command(name = "neptune-edge", version, after_help = EXAMPLE)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub logs: LogFlags,
}

/// Transport between agent and controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// An MQTT broker that the controller and this node connect to.
    Mqtt,
    /// KubeEdge's EventBus on the node's own broker.
    #[value(name = "eventbus")]
    EventBus,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent until SIGTERM or SIGINT. Workers keep running without it.
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Check everything that the agent needs and report problems: container engine, brokers, disk,
    /// clock, name resolution, certificates. Accepts the options of `run`. The agent may run at the
    /// same time.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Box<DoctorArgs>),
    /// Collect in one file what helps to find a fault: the findings of doctor, the settings, the
    /// containers. Accepts the options of `run`. The agent may run at the same time.
    #[command(after_help = bundle::HELP)]
    Bundle(Box<BundleArgs>),
    /// Join a fleet with a token of `neptune-cloud enroll`: get a certificate, write the settings,
    /// check the node, and start the agent.
    #[command(after_help = join::JOIN_HELP)]
    Join(JoinArgs),
    /// Leave the fleet: stop the agent, and remove the certificate and the settings of the join.
    #[command(after_help = join::LEAVE_HELP)]
    Leave(LeaveArgs),
    /// Download one model, verify and unpack it, and move it to its output path when it is
    /// complete.
    #[command(after_help = FETCH_HELP)]
    Fetch(FetchArgs),
    /// Run the sidecar of a cloud worker in a Pod: an MQTT broker on the Pod's loopback address, for
    /// the worker's reports, and an HTTP client that posts them to the controller. The controller
    /// adds it to the Pod.
    #[command(after_help = sidecar::HELP)]
    Sidecar(SidecarArgs),
}

const EXAMPLE: &str = "\
Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtts://broker.example.org --mqtt-ca-file ca.crt";

const RUN_HELP: &str = "\
Exit status: 0 after a signal, 1 for a temporary error (restart the agent), 2 for an invalid
configuration (a restart does not help).

Example:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://broker.example.org:1883

Example with an existing broker on the node:
  neptune-edge run --node-name edge0 --mqtt-url mqtt://127.0.0.1:1883 --local-broker mqtt://127.0.0.1:1883

Example on a KubeEdge node without a broker in the cloud:
  neptune-edge run --node-name edge0 --transport eventbus --local-broker mqtt://127.0.0.1:1883";

const DOCTOR_HELP: &str = "\
Exit status: 0 without problems or with warnings only, 1 with problems, 2 for invalid arguments. A broker
that uses the user name as client ID (build/acl) disconnects a running agent while doctor is connected;
the agent reconnects within seconds.

Example with the user and the settings of the agent:
  systemd-run --pipe --wait -p User=neptune -p EnvironmentFile=/etc/neptune/edge.env neptune-edge doctor

Example:
  neptune-edge doctor --node-name edge0 --mqtt-url mqtt://broker.example.org:1883 --json";

const FETCH_HELP: &str = "\
Retries temporary errors. Exit status: 0 when the output is complete, 1 when the download failed, 2 for
invalid arguments. Trusts the system's certificate authorities, or those in SSL_CERT_FILE.

Example:
  neptune-edge fetch --url https://models.example.org/big.bin --sha256 9f86d0818...0f00a08 --output /models/big.bin";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable() {
        let mut command = Cli::command();
        command.build();
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            for argument in command.get_arguments() {
                let Some(flag) =
                    argument.get_long().filter(|flag| !matches!(*flag, "help" | "version"))
                else {
                    continue;
                };
                let expected = format!("NEPTUNE_{}", flag.replace('-', "_").to_uppercase());
                assert_eq!(
                    argument.get_env().and_then(|name| name.to_str()),
                    Some(expected.as_str())
                );
            }
            assert!(
                command.get_after_help().is_some_and(|help| help.to_string().contains("Example"))
            );
        }
    }
}

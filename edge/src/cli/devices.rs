//! The options of devices for workers.

use std::path::PathBuf;

use clap::Args;

/// Devices of the node that workers, model servers and trainings may request in resources.limits.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Device that containers may request, as RESOURCE=SOURCE[+SOURCE...] with RESOURCE such as
    /// neptune.io/camera. SOURCE: a path below /dev, optionally with :/path/in/container, or a pattern
    /// below /dev whose matches are a device each; a CDI name such as nvidia.com/gpu=0; nvidia:ID for
    /// engines without CDI; or runtime:NAME[=ID]. `+` joins several to one device. None by default.
    /// May be repeated; the variable is a comma-separated list.
    #[arg(
        long,
        env = "NEPTUNE_ALLOW_DEVICE",
        value_name = "RESOURCE=SOURCE",
        value_delimiter = ','
    )]
    pub allow_device: Vec<String>,
    /// The node's /dev as the agent sees it. An agent in a container has it mounted elsewhere.
    #[arg(long, env = "NEPTUNE_DEV_ROOT", value_name = "DIR", default_value = "/dev")]
    pub dev_root: PathBuf,
}

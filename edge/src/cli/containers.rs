//! The options of containers and of their images.

use std::time::Duration;

use clap::{ArgAction, Args};
use neptune_program::duration::parse;

/// When images are removed that this agent pulled and that nothing on the node uses any more. Images
/// of versions for rollback are used.
#[derive(Debug, Clone, Args)]
pub struct ImageGcArgs {
    /// Disk space in bytes that unused images may occupy, as `docker images` shows it. Above it, the
    /// longest unused ones are removed. 0: no limit.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MAX_BYTES",
        value_name = "BYTES",
        default_value_t = 10 << 30
    )]
    pub image_gc_max_bytes: u64,
    /// Age below which no unused image is removed, so that a service that comes back needs no
    /// registry. An image ages while nothing uses it and the agent is connected to the cloud.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MIN_AGE",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = duration
    )]
    pub image_gc_min_age: Duration,
    /// Age at which unused images are removed. 0: never because of their age. With 0 for both limits
    /// the agent removes no image.
    #[arg(
        long,
        env = "NEPTUNE_IMAGE_GC_MAX_AGE",
        value_name = "DURATION",
        default_value = "720h",
        value_parser = duration
    )]
    pub image_gc_max_age: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse(text).ok_or_else(|| "use a duration such as 720h, 30m or 0".to_owned())
}

/// Rights and limits of the containers of workers and model servers. A resource can change the user,
/// the root file system and the limits of its own containers.
#[derive(Debug, Clone, Args)]
pub struct ContainerArgs {
    /// Network of containers: `host`, or the name of a Docker network such as `bridge`. On a Docker
    /// network, containers do not reach the node's loopback addresses, and the ports of cloud
    /// workers and model servers are published on the node. The workers' broker must be reachable
    /// from the network: set --local-listen to its gateway address (docker network inspect).
    #[arg(long, env = "NEPTUNE_WORKER_NETWORK", value_name = "NAME", default_value = "host")]
    pub worker_network: String,
    /// User and group ID of containers. Default: the user of the image.
    #[arg(long, env = "NEPTUNE_WORKER_USER", value_name = "UID")]
    pub worker_user: Option<u32>,
    /// Whether the root file system of containers is read-only. /tmp is always writable, 64 MiB in
    /// memory.
    #[arg(
        long,
        env = "NEPTUNE_WORKER_READ_ONLY_ROOT",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub worker_read_only_root: bool,
    /// Whether messages of the status have the last lines that a container wrote before it failed.
    /// They leave the node, and may contain what the container read.
    #[arg(
        long,
        env = "NEPTUNE_REPORT_LOGS",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub report_logs: bool,
    /// Kinds of containers whose logs people with the right to create LogRequests can read: worker,
    /// server, gateway, training (may contain training data), or none. Default: worker,server, and
    /// none with --report-logs=false. A comma-separated list.
    #[arg(long, env = "NEPTUNE_REMOTE_LOGS", value_name = "KIND", value_delimiter = ',')]
    pub remote_logs: Vec<String>,
    /// CPU limit of containers without one, in thousandths of a CPU. Default: no limit.
    #[arg(long, env = "NEPTUNE_WORKER_CPU_MILLIS", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub worker_cpu_millis: Option<u64>,
    /// Memory limit of containers without one, in bytes. Default: no limit.
    #[arg(long, env = "NEPTUNE_WORKER_MEMORY_BYTES", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(6_291_456..))]
    pub worker_memory_bytes: Option<u64>,
    /// Whether the container engine's init is process 1 of containers. It forwards signals and
    /// reaps processes. The engine needs its init program (docker-init, catatonit).
    #[arg(
        long,
        env = "NEPTUNE_WORKER_INIT",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub worker_init: bool,
    /// Number of training containers that run at a time. Further ones wait in the order in which
    /// their tasks arrived.
    #[arg(
        long,
        env = "NEPTUNE_MAX_TRAINING_CONTAINERS",
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub max_training_containers: u32,
}

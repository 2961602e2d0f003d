//! Reads the capacity of the node.

use neptune_wire::Capacity;

/// The CPUs and memory of the node, with the version of its container runtime.
pub fn capacity(container_runtime: Option<String>) -> Capacity {
    Capacity { cpus: cpus(), memory_bytes: memory_bytes(), container_runtime }
}

fn cpus() -> u32 {
    std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX))
}

fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok()
    });
    kilobytes.unwrap_or_default().saturating_mul(1024)
}

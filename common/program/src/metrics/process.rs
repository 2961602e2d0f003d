//! The version of a program and the figures of its process, read from `/proc/self` when the metrics
//! are read.

use std::{fmt, fs, io};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

/// The commit that was built, if the build names it.
const REVISION: &str = match option_env!("NEPTUNE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
/// The unit of times in `/proc`, in seconds. It is the same on all architectures of Linux that
/// Rust supports.
const TICK: f64 = 0.01;

/// Registers the metrics of the build and of the process. They have no prefix of the program.
pub fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector));
}

#[derive(Debug)]
struct ProcessCollector;

/// The figures of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Figures {
    cpu_seconds: f64,
    /// Since the boot of the machine.
    started_seconds: f64,
    threads: f64,
    resident_bytes: f64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Version of this program and its commit; the value is 1";
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", REVISION)];
        let mut family =
            encoder.encode_descriptor("neptune_build_info", help, None, MetricType::Gauge)?;
        ConstGauge::new(1_u64).encode(family.encode_family(&labels)?)?;
        // Without /proc these figures are absent.
        let Ok(figures) = read() else { return Ok(()) };
        let help = "CPU time of this process, in seconds";
        let cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter);
        ConstCounter::new(figures.cpu_seconds).encode(cpu?)?;
        let mut gauge = |name, help, value: io::Result<f64>| match value {
            Ok(value) => {
                let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(gauge)
            }
            Err(_) => Ok(()),
        };
        let help = "Resident memory of this process, in bytes";
        gauge("process_resident_memory_bytes", help, Ok(figures.resident_bytes))?;
        gauge("process_open_fds", "Open file descriptors of this process", open_files())?;
        gauge("process_threads", "Threads of this process", Ok(figures.threads))?;
        let help = "Start of this process, in seconds since 1970";
        let start = boot_time().map(|boot| boot + figures.started_seconds);
        gauge("process_start_time_seconds", help, start)
    }
}

fn read() -> io::Result<Figures> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let status = fs::read_to_string("/proc/self/status")?;
    parse(&stat, &status).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn open_files() -> io::Result<f64> {
    // One of them is the directory itself.
    let count = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1);
    Ok(f64::from(u32::try_from(count).unwrap_or(u32::MAX)))
}

/// The boot of the machine, in seconds since 1970.
fn boot_time() -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    field(&stat, "btime").ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(stat: &str, status: &str) -> Option<Figures> {
    // The name of the program may contain spaces and parentheses.
    let (_, stat) = stat.rsplit_once(") ")?;
    let stat: Vec<_> = stat.split(' ').collect();
    // Numbers as in proc(5), of which the first two are the process ID and the name.
    let ticks = |number: usize| stat.get(number - 3)?.parse::<f64>().ok();
    Some(Figures {
        cpu_seconds: (ticks(14)? + ticks(15)?) * TICK,
        started_seconds: ticks(22)? * TICK,
        threads: ticks(20)?,
        resident_bytes: field(status, "VmRSS:")? * 1024.0,
    })
}

/// The number of the line that begins with this word.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::metrics::encode;

    const STAT: &str = "7 (a) b) S 1 7 7 0 -1 4194560 900 0 2 0 150 50 0 0 20 0 9 0 12345 1 300 \
        18446744073709551615 1 1 0 0 0 0 0 4096 16963 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const STATUS: &str = "Name:\ta) b\nVmPeak:\t  5000 kB\nVmRSS:\t     1200 kB\nThreads:\t9\n";

    #[test]
    fn figures_are_those_of_proc() {
        let expected = Figures {
            cpu_seconds: 2.0,
            started_seconds: 123.45,
            threads: 9.0,
            resident_bytes: 1_228_800.0,
        };
        assert_eq!(parse(STAT, STATUS), Some(expected));
        assert_eq!(parse("", STATUS), None);
        assert_eq!(parse(STAT, ""), None);
    }

    #[test]
    fn process_is_on_the_page() {
        let mut registry = Registry::default();
        register(&mut registry);
        let page = encode(&registry);
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.trim().parse::<f64>().unwrap()
        };
        let build = format!(
            "neptune_build_info{{version=\"{}\",revision=\"{REVISION}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        );
        assert!(page.contains(&build), "{page}");
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        assert!(value("process_resident_memory_bytes ") > 100_000.0);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_threads ") >= 1.0);
        assert!(value("process_start_time_seconds ") > 1e9);
    }
}

//! Keeps the last report of each gateway, for the time in which its container runs. The counters
//! beside the report are kept by `counts.rs`.

use std::collections::BTreeMap;

use neptune_wire::{GatewayReport, WorkerName};

/// The reports by object UID and worker. Not stored: a gateway reports every second.
#[derive(Debug, Default)]
pub struct GatewayReports(BTreeMap<(String, WorkerName), RunReport>);

#[derive(Debug)]
struct RunReport {
    /// The run of the container that reported, by its start time.
    run: String,
    report: GatewayReport,
}

impl GatewayReports {
    /// Keeps a report of a run.
    pub fn set(&mut self, uid: &str, worker: &WorkerName, run: String, report: GatewayReport) {
        self.0.insert((uid.to_owned(), worker.clone()), RunReport { run, report });
    }

    /// Returns the last report of a worker; `None` before the first one.
    pub fn get(&self, uid: &str, worker: &WorkerName) -> Option<&GatewayReport> {
        let last = self.0.get(&(uid.to_owned(), worker.clone()));
        last.map(|last| &last.report)
    }

    /// Keeps the reports whose object, worker and run are current.
    pub fn retain(&mut self, is_current: impl Fn(&str, &WorkerName, &str) -> bool) {
        self.0.retain(|(uid, worker), last| is_current(uid, worker, &last.run));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::GatewayCloud;

    use super::*;

    #[test]
    fn last_report_is_kept_until_its_run_ends() {
        let (mut reports, worker) = (GatewayReports::default(), "w".parse().unwrap());
        let report = |cloud| GatewayReport { cloud, ..GatewayReport::default() };
        reports.set("uid", &worker, "c@1".to_owned(), report(GatewayCloud::LeftAlone));
        reports.set("uid", &worker, "c@1".to_owned(), report(GatewayCloud::Reachable));
        assert_eq!(reports.get("uid", &worker), Some(&report(GatewayCloud::Reachable)));
        assert_eq!(reports.get("another", &worker), None);
        reports.retain(|uid, name, run| (uid, name, run) == ("uid", &worker, "c@1"));
        assert!(reports.get("uid", &worker).is_some());
        reports.retain(|_, _, run| run == "c@2");
        assert_eq!(reports.get("uid", &worker), None);
    }
}

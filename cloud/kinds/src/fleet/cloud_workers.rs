//! The newest status of each cloud worker that runs in a Pod and reports by itself.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The time between two reports of a worker that are processed. Workers report once per second; a
/// connection may be faster than the one before.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_millis(500);

/// What a cloud worker reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudWorkerReport {
    /// The uid of its Pod: the status of an earlier Pod does not count.
    pub pod: String,
    /// The status that the worker reports: `running`, `completed` or `failed`.
    pub status: String,
}

/// The newest report per service, by its uid.
#[derive(Debug, Clone, Default)]
pub struct CloudWorkerReports(BTreeMap<String, (CloudWorkerReport, Timestamp)>);

impl CloudWorkerReports {
    /// Processes a report. Returns whether it changed something; `None` if it came too soon after
    /// the last one and is not processed.
    pub fn add(&mut self, uid: &str, report: CloudWorkerReport, now: Timestamp) -> Option<bool> {
        let held = self.0.get(uid);
        if held.is_some_and(|(held, at)| {
            held.pod == report.pod && now.duration_since(*at) < MIN_INTERVAL
        }) {
            return None;
        }
        let is_new = held.is_none_or(|(held, _)| *held != report);
        self.0.insert(uid.to_owned(), (report, now));
        Some(is_new)
    }

    /// The newest report of the service with this uid.
    pub fn get(&self, uid: &str) -> Option<&CloudWorkerReport> {
        self.0.get(uid).map(|(report, _)| report)
    }

    /// Forgets a deleted service.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reports_are_limited_per_worker_and_only_changes_are_new() {
        let mut reports = CloudWorkerReports::default();
        let mut add = |uid: &str, pod: &str, status: &str, ms| {
            let report = CloudWorkerReport { pod: pod.to_owned(), status: status.to_owned() };
            reports.add(uid, report, Timestamp::from_millisecond(ms).unwrap())
        };
        assert_eq!(add("a", "p1", "running", 0), Some(true));
        assert_eq!(add("a", "p1", "failed", 400), None, "too soon");
        assert_eq!(add("b", "p2", "running", 400), Some(true), "another service");
        assert_eq!(add("a", "p1", "running", 900), Some(false));
        assert_eq!(add("a", "p3", "running", 901), Some(true), "another Pod");
        reports.forget("a");
        assert_eq!(reports.get("a"), None);
        assert_eq!(reports.get("b").unwrap().pod, "p2");
    }
}

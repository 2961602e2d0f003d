//! Decides which reports of a worker wait to be posted: the newest wins. Pure.
//!
//! Reports are state, so an older one may be skipped. A report with models, which a worker may make
//! only once, is kept until it is posted or until a newer one with models replaces it. At most two
//! reports are kept.

use bytes::Bytes;
use neptune_wire::WorkerInfo;
use serde_json::json;

/// A report that is to be posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub payload: Bytes,
    has_models: bool,
}

/// The reports that wait, and the last status.
#[derive(Debug, Default)]
pub struct Pending {
    with_models: Option<Bytes>,
    /// The newest report, if it is newer than `with_models`.
    newest: Option<Bytes>,
    last_status: String,
}

impl Pending {
    /// Adds a worker's message in place of the older ones.
    ///
    /// # Errors
    /// Why the controller would reject the message, which is dropped.
    pub fn add(&mut self, payload: &[u8]) -> Result<(), String> {
        let info = WorkerInfo::decode(payload).map_err(|error| error.to_string())?;
        let models = info.models().map_err(|error| error.to_string())?;
        self.last_status = info.status;
        // Copied, because it may be a part of the broker's larger buffer.
        let payload = Bytes::copy_from_slice(payload);
        if models.is_empty() {
            self.newest = Some(payload);
        } else {
            self.with_models = Some(payload);
            self.newest = None;
        }
        Ok(())
    }

    /// Removes the next report, oldest first.
    pub fn take(&mut self) -> Option<Report> {
        let with_models = self.with_models.take().map(|payload| (payload, true));
        let (payload, has_models) =
            with_models.or_else(|| self.newest.take().map(|payload| (payload, false)))?;
        Some(Report { payload, has_models })
    }

    /// Puts a report back that could not be posted, unless a newer one replaces it.
    pub fn put_back(&mut self, report: Report) {
        if report.has_models {
            self.with_models.get_or_insert(report.payload);
        } else if self.with_models.is_none() {
            self.newest.get_or_insert(report.payload);
        }
    }

    /// Adds the last status, without models: a controller that restarted does not know it.
    pub fn repeat(&mut self) {
        if !self.last_status.is_empty() && self.with_models.is_none() && self.newest.is_none() {
            self.newest = Some(json!({"status": self.last_status}).to_string().into());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MODELS: &str = r#"{"status":"running","output":{"models":[{"metrics":{"a":1}}]}}"#;

    fn status(status: &str) -> String {
        json!({ "status": status }).to_string()
    }

    fn pending(payloads: &[&str]) -> Pending {
        let mut pending = Pending::default();
        for payload in payloads {
            pending.add(payload.as_bytes()).unwrap();
        }
        pending
    }

    fn taken(pending: &mut Pending) -> Vec<String> {
        let all = std::iter::from_fn(|| pending.take());
        all.map(|report| String::from_utf8(report.payload.to_vec()).unwrap()).collect()
    }

    #[test]
    fn newest_report_wins() {
        let mut pending = pending(&[&status("running"), &status("failed"), &status("completed")]);
        assert_eq!(taken(&mut pending), [status("completed")]);
        assert_eq!(pending.take(), None);
    }

    #[test]
    fn report_with_models_is_posted_before_a_newer_status() {
        let waiting = &mut pending(&[&status("running"), MODELS, &status("x"), &status("failed")]);
        assert_eq!(taken(waiting), [MODELS.to_owned(), status("failed")]);
        let newer = MODELS.replace("running", "completed");
        assert_eq!(taken(&mut pending(&[MODELS, &status("failed"), &newer])), [newer]);
    }

    #[test]
    fn report_that_failed_is_posted_again_unless_a_newer_one_waits() {
        let mut waiting = pending(&[MODELS, &status("running")]);
        let first = waiting.take().unwrap();
        waiting.put_back(first);
        assert_eq!(taken(&mut waiting), [MODELS.to_owned(), status("running")]);
        for newer in [status("failed"), MODELS.to_owned()] {
            let mut waiting = pending(&[&status("running")]);
            let first = waiting.take().unwrap();
            waiting.add(newer.as_bytes()).unwrap();
            waiting.put_back(first);
            assert_eq!(taken(&mut waiting), [newer]);
        }
    }

    #[test]
    fn last_status_is_repeated_without_models() {
        let mut pending = pending(&[MODELS]);
        pending.repeat();
        assert_eq!(taken(&mut pending), [MODELS], "what waits has the status");
        pending.repeat();
        assert_eq!(taken(&mut pending), [status("running")]);
        let mut silent = Pending::default();
        silent.repeat();
        assert_eq!(silent.take(), None);
    }

    #[test]
    fn invalid_report_replaces_nothing() {
        let mut pending = pending(&[&status("running")]);
        for invalid in ["no JSON", r#"{"output": 1}"#] {
            assert!(pending.add(invalid.as_bytes()).is_err(), "{invalid}");
        }
        assert_eq!(taken(&mut pending), [status("running")]);
    }
}

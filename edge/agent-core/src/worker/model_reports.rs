//! Decides which reports of a worker on models are kept: the newest one per model, with the file
//! that it is about and the time of the first such report. `counts.rs` keeps them.

use jiff::{SignedDuration, Timestamp};
use neptune_wire::{MAX_MODELS, ModelOutput, ObjectName, WorkerModel, redact};

use crate::domain::worker_count::ReportedModel;

/// The Model object that a report is about, as received by this node.
pub struct KnownModel<'a> {
    pub name: &'a ObjectName,
    pub uid: &'a str,
    pub format: &'a str,
    pub url: &'a str,
    pub sha256: Option<&'a str>,
    /// Path of the current file in the container, if it is the worker's own model.
    pub path: Option<&'a str>,
}

/// Resolves a worker's report on a model to the file that it is about. `known` are its earlier
/// reports.
pub fn resolve(
    model: WorkerModel,
    subject: &KnownModel<'_>,
    container: &str,
    known: &[ReportedModel],
) -> ReportedModel {
    let is_of_model = |known: &&ReportedModel| known.output.uid == subject.uid;
    // Within one container a path is one file, also if the Model has changed since.
    let same_file = known.iter().find(is_of_model).filter(|known| {
        known.path == model.url && (known.container == container || container.is_empty())
    });
    let is_current = model.url.is_empty() || subject.path == Some(model.url.as_str());
    let (url, sha256) = match same_file {
        Some(known) => (known.output.url.clone(), known.output.sha256.clone()),
        None if is_current => (subject.url.to_owned(), subject.sha256.map(str::to_owned)),
        None => (model.url.clone(), None),
    };
    // An earlier release stored complete addresses.
    let url = redact(&url);
    let format = if model.format.is_empty() { subject.format.to_owned() } else { model.format };
    let output = ModelOutput {
        model: subject.name.clone(),
        uid: subject.uid.to_owned(),
        format,
        url,
        sha256,
        metrics: model.metrics,
        time: String::new(),
    };
    let known_container = same_file.map_or("", |known| known.container.as_str());
    let container = if container.is_empty() { known_container } else { container };
    ReportedModel { output, path: model.url, container: container.to_owned() }
}

/// Records a report. The times of a worker's reports increase, also if the node's clock is set
/// back.
pub fn record(known: &mut Vec<ReportedModel>, mut report: ReportedModel, wall: Timestamp) {
    let newest = known.iter().filter_map(|known| known.output.time.parse::<Timestamp>().ok()).max();
    let position = known.iter().position(|known| known.output.model == report.output.model);
    if let Some(position) = position {
        report.output.time.clone_from(&known[position].output.time);
        if known[position].output == report.output {
            known[position] = report;
            return;
        }
        known.remove(position);
    }
    let next = newest.and_then(|time| time.checked_add(SignedDuration::from_millis(1)).ok());
    report.output.time = format!("{:.3}", next.map_or(wall, |next| next.max(wall)));
    known.push(report);
    // The oldest report is the first.
    if known.len() > MAX_MODELS {
        known.remove(0);
    }
}

/// The newest of these reports per model, sorted by model.
pub fn newest<'a>(reports: impl Iterator<Item = &'a ReportedModel>) -> Vec<ModelOutput> {
    let mut outputs: Vec<ModelOutput> = Vec::new();
    for ReportedModel { output, .. } in reports {
        match outputs.iter_mut().find(|newest| newest.model == output.model) {
            Some(newest) if newest.time < output.time => newest.clone_from(output),
            Some(_) => {}
            None => outputs.push(output.clone()),
        }
    }
    outputs.sort_by(|a, b| a.model.cmp(&b.model));
    outputs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::Metric;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn worker_model(url: &str, accuracy: &str) -> WorkerModel {
        let metrics = vec![Metric { key: "accuracy".into(), value: accuracy.into() }];
        WorkerModel { url: url.into(), metrics, ..WorkerModel::default() }
    }

    fn resolved(
        known: &[ReportedModel],
        model_url: &str,
        container: &str,
        model: WorkerModel,
    ) -> ReportedModel {
        let name = "small".parse().unwrap();
        let subject = KnownModel {
            name: &name,
            uid: "uid",
            format: "pb",
            url: model_url,
            sha256: Some("ab"),
            path: Some("/models/small/m.pb"),
        };
        resolve(model, &subject, container, known)
    }

    #[test]
    fn report_is_about_the_file_in_the_container() {
        let url =
            |report: &ReportedModel| (report.output.url.clone(), report.output.sha256.clone());
        let present = ("http://h/1".to_owned(), Some("ab".to_owned()));
        let first = resolved(&[], "http://h/1", "c1", worker_model("/models/small/m.pb", "0.9"));
        assert_eq!((url(&first), &*first.output.format), (present.clone(), "pb"));
        assert_eq!(url(&resolved(&[], "http://h/1", "c1", worker_model("", "0.9"))), present);
        let known = [first];
        let old = resolved(&known, "http://h/2", "c1", worker_model("/models/small/m.pb", "0.8"));
        assert_eq!(url(&old), present, "the Model changed before the container");
        assert_eq!(
            url(&resolved(&known, "http://h/2", "", worker_model("/models/small/m.pb", "0.8"))),
            present
        );
        let new = resolved(&known, "http://h/2", "c2", worker_model("/models/small/m.pb", "0.8"));
        assert_eq!(url(&new).0, "http://h/2");
        let other = resolved(&known, "http://h/2", "c2", worker_model("/out/trained.pb", "0.8"));
        assert_eq!(url(&other), ("/out/trained.pb".to_owned(), None));
    }

    #[test]
    fn report_keeps_time_of_first_occurrence_and_times_increase() {
        let mut known = Vec::new();
        let mut recorded_time = |accuracy: &str, second| {
            let report = resolved(&known, "http://h/1", "c1", worker_model("", accuracy));
            record(&mut known, report, at(second));
            known[0].output.time.clone()
        };
        assert_eq!(recorded_time("0.9", 10), "1970-01-01T00:00:10.000Z");
        assert_eq!(recorded_time("0.9", 20), "1970-01-01T00:00:10.000Z", "nothing new");
        assert_eq!(recorded_time("0.8", 30), "1970-01-01T00:00:30.000Z");
        assert_eq!(recorded_time("0.7", 5), "1970-01-01T00:00:30.001Z", "the clock was set back");
    }

    #[test]
    fn oldest_reports_beyond_the_limit_are_removed() {
        let mut known = Vec::new();
        for n in 0..12 {
            let mut report = resolved(&[], "http://h/1", "c1", worker_model("", "0.9"));
            report.output.model = format!("m{n}").parse().unwrap();
            record(&mut known, report, at(n));
        }
        assert_eq!(known.len(), MAX_MODELS);
        assert_eq!(known[0].output.model.as_str(), "m4");
    }

    #[test]
    fn newer_report_of_two_workers_is_used() {
        let mut by_worker = [Vec::new(), Vec::new()];
        for (n, (known, accuracy)) in by_worker.iter_mut().zip(["0.9", "0.8"]).enumerate() {
            let report = resolved(&[], "http://h/1", "c1", worker_model("", accuracy));
            record(known, report, at(i64::try_from(n).unwrap()));
        }
        let outputs = newest(by_worker.iter().flatten());
        assert_eq!((outputs.len(), &*outputs[0].metrics[0].value), (1, "0.8"));
    }
}

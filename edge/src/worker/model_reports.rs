//! Decides what is kept of a worker's reports on models: the newest one per model, with the file
//! that it describes and the time at which it first appeared. Pure.

use jiff::{SignedDuration, Timestamp};
use neptune_wire::{MAX_MODELS, ModelOutput, ObjectName, WorkerModel};

use crate::domain::worker_count::ReportedModel;

/// The Model object of which a worker speaks, as this node knows it.
pub struct KnownModel<'a> {
    pub name: &'a ObjectName,
    pub uid: &'a str,
    pub format: &'a str,
    pub url: &'a str,
    pub sha256: Option<&'a str>,
    /// From where the worker has the present file, if it is the worker's own model.
    pub path: Option<&'a str>,
}

/// What a worker says now of a model. `known` is what it said before.
pub fn resolve(
    model: WorkerModel,
    known_model: &KnownModel<'_>,
    container: &str,
    known: &[ReportedModel],
) -> ReportedModel {
    let is_of_model = |known: &&ReportedModel| known.output.uid == known_model.uid;
    // In one container a path is one file, also when the Model has another one by now.
    let same_file = known.iter().find(is_of_model).filter(|known| {
        known.path == model.url && (known.container == container || container.is_empty())
    });
    let is_present = model.url.is_empty() || known_model.path == Some(model.url.as_str());
    let (url, sha256) = match same_file {
        Some(known) => (known.output.url.clone(), known.output.sha256.clone()),
        None if is_present => (known_model.url.to_owned(), known_model.sha256.map(str::to_owned)),
        None => (model.url.clone(), None),
    };
    let format = if model.format.is_empty() { known_model.format.to_owned() } else { model.format };
    let output = ModelOutput {
        model: known_model.name.clone(),
        uid: known_model.uid.to_owned(),
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

/// Takes note of it. Of one worker the times only grow, whatever the node's clock does.
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
    // The oldest stands first.
    if known.len() > MAX_MODELS {
        known.remove(0);
    }
}

/// What to tell of an object whose workers said this: the newest word on each model.
pub fn newest<'a>(reported: impl Iterator<Item = &'a ReportedModel>) -> Vec<ModelOutput> {
    let mut outputs: Vec<ModelOutput> = Vec::new();
    for ReportedModel { output, .. } in reported {
        match outputs.iter_mut().find(|existing| existing.model == output.model) {
            Some(existing) if existing.time < output.time => existing.clone_from(output),
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

    fn reported(url: &str, accuracy: &str) -> WorkerModel {
        let metrics = vec![Metric { key: "accuracy".into(), value: accuracy.into() }];
        WorkerModel { url: url.into(), metrics, ..WorkerModel::default() }
    }

    fn report_of(
        known: &[ReportedModel],
        model_url: &str,
        container: &str,
        reported: WorkerModel,
    ) -> ReportedModel {
        let name = "small".parse().unwrap();
        let known_model = KnownModel {
            name: &name,
            uid: "uid",
            format: "pb",
            url: model_url,
            sha256: Some("ab"),
            path: Some("/models/small/m.pb"),
        };
        resolve(reported, &known_model, container, known)
    }

    #[test]
    fn model_report_describes_the_file_in_the_container() {
        let url =
            |report: &ReportedModel| (report.output.url.clone(), report.output.sha256.clone());
        let present = ("http://h/1".to_owned(), Some("ab".to_owned()));
        let first = report_of(&[], "http://h/1", "c1", reported("/models/small/m.pb", "0.9"));
        assert_eq!((url(&first), &*first.output.format), (present.clone(), "pb"));
        assert_eq!(url(&report_of(&[], "http://h/1", "c1", reported("", "0.9"))), present);
        let known = [first];
        let old = report_of(&known, "http://h/2", "c1", reported("/models/small/m.pb", "0.8"));
        assert_eq!(url(&old), present, "the Model changed, the container did not yet");
        assert_eq!(
            url(&report_of(&known, "http://h/2", "", reported("/models/small/m.pb", "0.8"))),
            present
        );
        let new = report_of(&known, "http://h/2", "c2", reported("/models/small/m.pb", "0.8"));
        assert_eq!(url(&new).0, "http://h/2");
        let other = report_of(&known, "http://h/2", "c2", reported("/out/trained.pb", "0.8"));
        assert_eq!(url(&other), ("/out/trained.pb".to_owned(), None));
    }

    #[test]
    fn model_report_keeps_its_first_time_and_times_only_grow() {
        let mut known = Vec::new();
        let mut record_at = |accuracy: &str, second| {
            let report = report_of(&known, "http://h/1", "c1", reported("", accuracy));
            record(&mut known, report, at(second));
            known[0].output.time.clone()
        };
        assert_eq!(record_at("0.9", 10), "1970-01-01T00:00:10.000Z");
        assert_eq!(record_at("0.9", 20), "1970-01-01T00:00:10.000Z", "nothing new");
        assert_eq!(record_at("0.8", 30), "1970-01-01T00:00:30.000Z");
        assert_eq!(record_at("0.7", 5), "1970-01-01T00:00:30.001Z", "the clock was set back");
    }

    #[test]
    fn oldest_model_reports_are_dropped_beyond_the_maximum() {
        let mut known = Vec::new();
        for n in 0..12 {
            let mut report = report_of(&[], "http://h/1", "c1", reported("", "0.9"));
            report.output.model = format!("m{n}").parse().unwrap();
            record(&mut known, report, at(n));
        }
        assert_eq!(known.len(), MAX_MODELS);
        assert_eq!(known[0].output.model.as_str(), "m4");
    }

    #[test]
    fn newest_model_report_of_two_workers_is_published() {
        let mut reports = [Vec::new(), Vec::new()];
        for (n, (known, accuracy)) in reports.iter_mut().zip(["0.9", "0.8"]).enumerate() {
            let report = report_of(&[], "http://h/1", "c1", reported("", accuracy));
            record(known, report, at(i64::try_from(n).unwrap()));
        }
        let published = newest(reports.iter().flatten());
        assert_eq!((published.len(), &*published[0].metrics[0].value), (1, "0.8"));
    }
}

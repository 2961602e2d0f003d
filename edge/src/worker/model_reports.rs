//! Decides what is kept of what a worker says of models: the newest word on each, with the file that
//! it was about and when it was first said. Keeping it is counts.rs's.

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
    subject: &KnownModel<'_>,
    container: &str,
    known: &[ReportedModel],
) -> ReportedModel {
    let is_of_model = |known: &&ReportedModel| known.output.uid == subject.uid;
    // In one container a path is one file, also when the Model has another one by now.
    let same_file = known.iter().find(is_of_model).filter(|known| {
        known.path == model.url && (known.container == container || container.is_empty())
    });
    let is_present = model.url.is_empty() || subject.path == Some(model.url.as_str());
    let (url, sha256) = match same_file {
        Some(known) => (known.output.url.clone(), known.output.sha256.clone()),
        None if is_present => (subject.url.to_owned(), subject.sha256.map(str::to_owned)),
        None => (model.url.clone(), None),
    };
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

/// Takes note of it. Of one worker the times only grow, whatever the node's clock does.
pub fn record(known: &mut Vec<ReportedModel>, mut heard: ReportedModel, wall: Timestamp) {
    let newest = known.iter().filter_map(|known| known.output.time.parse::<Timestamp>().ok()).max();
    let position = known.iter().position(|known| known.output.model == heard.output.model);
    if let Some(position) = position {
        heard.output.time.clone_from(&known[position].output.time);
        if known[position].output == heard.output {
            known[position] = heard;
            return;
        }
        known.remove(position);
    }
    let next = newest.and_then(|time| time.checked_add(SignedDuration::from_millis(1)).ok());
    heard.output.time = format!("{:.3}", next.map_or(wall, |next| next.max(wall)));
    known.push(heard);
    // The oldest stands first.
    if known.len() > MAX_MODELS {
        known.remove(0);
    }
}

/// What to tell of an object whose workers said this: the newest word on each model.
pub fn newest<'a>(said: impl Iterator<Item = &'a ReportedModel>) -> Vec<ModelOutput> {
    let mut outputs: Vec<ModelOutput> = Vec::new();
    for ReportedModel { output, .. } in said {
        match outputs.iter_mut().find(|held| held.model == output.model) {
            Some(held) if held.time < output.time => held.clone_from(output),
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

    fn said(url: &str, accuracy: &str) -> WorkerModel {
        let metrics = vec![Metric { key: "accuracy".into(), value: accuracy.into() }];
        WorkerModel { url: url.into(), metrics, ..WorkerModel::default() }
    }

    fn hear(
        known: &[ReportedModel],
        model_url: &str,
        container: &str,
        said: WorkerModel,
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
        resolve(said, &subject, container, known)
    }

    #[test]
    fn what_is_said_is_of_the_file_that_the_container_has() {
        let url =
            |spoken: &ReportedModel| (spoken.output.url.clone(), spoken.output.sha256.clone());
        let present = ("http://h/1".to_owned(), Some("ab".to_owned()));
        let first = hear(&[], "http://h/1", "c1", said("/models/small/m.pb", "0.9"));
        assert_eq!((url(&first), &*first.output.format), (present.clone(), "pb"));
        assert_eq!(url(&hear(&[], "http://h/1", "c1", said("", "0.9"))), present);
        let known = [first];
        let old = hear(&known, "http://h/2", "c1", said("/models/small/m.pb", "0.8"));
        assert_eq!(url(&old), present, "the Model changed, the container did not yet");
        assert_eq!(
            url(&hear(&known, "http://h/2", "", said("/models/small/m.pb", "0.8"))),
            present
        );
        let new = hear(&known, "http://h/2", "c2", said("/models/small/m.pb", "0.8"));
        assert_eq!(url(&new).0, "http://h/2");
        let other = hear(&known, "http://h/2", "c2", said("/out/trained.pb", "0.8"));
        assert_eq!(url(&other), ("/out/trained.pb".to_owned(), None));
    }

    #[test]
    fn a_word_has_the_time_at_which_it_was_first_said_and_times_only_grow() {
        let mut known = Vec::new();
        let mut say = |accuracy: &str, second| {
            let heard = hear(&known, "http://h/1", "c1", said("", accuracy));
            record(&mut known, heard, at(second));
            known[0].output.time.clone()
        };
        assert_eq!(say("0.9", 10), "1970-01-01T00:00:10.000Z");
        assert_eq!(say("0.9", 20), "1970-01-01T00:00:10.000Z", "nothing new");
        assert_eq!(say("0.8", 30), "1970-01-01T00:00:30.000Z");
        assert_eq!(say("0.7", 5), "1970-01-01T00:00:30.001Z", "the clock was set back");
    }

    #[test]
    fn of_more_models_than_a_message_may_have_the_oldest_words_go() {
        let mut known = Vec::new();
        for n in 0..12 {
            let mut heard = hear(&[], "http://h/1", "c1", said("", "0.9"));
            heard.output.model = format!("m{n}").parse().unwrap();
            record(&mut known, heard, at(n));
        }
        assert_eq!(known.len(), MAX_MODELS);
        assert_eq!(known[0].output.model.as_str(), "m4");
    }

    #[test]
    fn of_two_workers_the_newer_word_on_a_model_is_told() {
        let mut words = [Vec::new(), Vec::new()];
        for (n, (known, accuracy)) in words.iter_mut().zip(["0.9", "0.8"]).enumerate() {
            let heard = hear(&[], "http://h/1", "c1", said("", accuracy));
            record(known, heard, at(i64::try_from(n).unwrap()));
        }
        let told = newest(words.iter().flatten());
        assert_eq!((told.len(), &*told[0].metrics[0].value), (1, "0.8"));
    }
}

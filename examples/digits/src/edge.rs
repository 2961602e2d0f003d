//! The edge worker's loop: infer, ask the rule, ask the cloud, count. The calls themselves are made in `call`, reports in `report`.

use std::time::{Duration, Instant};

use hard_example::Rule;
use jiff::Timestamp;
use serde::Serialize;

use crate::breaker::Breaker;
use crate::call::CloudClient;
use crate::error::Error;
use crate::evaluate::{images, is_hard, quality, share};
use crate::model::{Model, label};
use crate::model_file;
use crate::report::{Reloads, Reporter};
use crate::samples::{Pixels, Sample, held_out};
use crate::settings::EdgeSettings;
use crate::stop::Stop;
use crate::tally::{Outcome, Status};

/// Samples in one call of the cloud-only measurement.
const BATCH: usize = 100;

/// What the passes gave, printed as one line of JSON. Accuracies are shares, 0 to 1.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    service: &'a str,
    worker: &'a str,
    passes: u64,
    edge_only: f64,
    /// Nothing when the cloud did not answer for every sample.
    cloud_only: Option<f64>,
    joint: f64,
    inference_number: u64,
    hard_example_number: u64,
    upload_cloud_ratio: f64,
}

/// Works until SIGTERM or SIGINT; idle, but reporting, after the last pass.
///
/// # Errors
/// When the settings or the model cannot be used; the agent is told `failed` first.
pub async fn run(settings: &EdgeSettings) -> Result<(), Error> {
    let mut stop = Stop::listen()?;
    let (reporter, reloads) = Reporter::start(settings, Timestamp::now())?;
    let ended = tokio::select! {
        ended = work(settings, &reporter, reloads) => ended,
        () = stop.requested() => Ok(()),
    };
    if ended.is_err() {
        reporter.become_status(Status::Failed);
    }
    reporter.finish().await;
    ended
}

async fn work(
    settings: &EdgeSettings,
    reporter: &Reporter,
    mut reloads: Reloads,
) -> Result<(), Error> {
    let samples = held_out();
    let mut worker = Worker::new(settings, reloads.clone())?;
    reporter.loaded(&worker.path, quality(&samples, &worker.model));
    let scores = worker.passes(settings, &samples, reporter).await;
    reporter.become_status(Status::Completed);
    let counters = reporter.tally().counters();
    let summary = Summary {
        service: &settings.identity.service_name,
        worker: &settings.identity.worker_name,
        passes: settings.passes,
        edge_only: share(scores.edge, scores.samples),
        cloud_only: worker.cloud_only(&samples).await,
        joint: share(scores.joint, scores.samples),
        inference_number: counters.inference,
        hard_example_number: counters.hard,
        upload_cloud_ratio: counters.upload_cloud_ratio(),
    };
    println!("{}", serde_json::to_string(&summary).expect("texts and finite numbers serialise"));
    loop {
        worker.reload(&samples, reporter);
        if reloads.changed().await.is_err() {
            // Nothing can be told any more; what was counted is still reported.
            std::future::pending::<()>().await;
        }
    }
}

/// Right answers among `samples`.
#[derive(Debug, Default)]
struct Scores {
    samples: usize,
    edge: usize,
    joint: usize,
}

struct Worker {
    model: Model,
    /// Where it was loaded from.
    path: String,
    reloads: Reloads,
    rule: Rule,
    cloud: Option<CloudClient>,
    breaker: Breaker,
}

impl Worker {
    fn new(settings: &EdgeSettings, reloads: Reloads) -> Result<Self, Error> {
        let service = &settings.identity.service_name;
        let cloud = settings.cloud_url().map(|url| CloudClient::new(&url, service)).transpose()?;
        if cloud.is_none() {
            eprintln!("neither BIG_MODEL_URL nor BIG_MODEL_IP is set: every answer is the edge's");
        }
        Ok(Self {
            model: model_file::read(&settings.model_url)?,
            path: settings.model_url.clone(),
            reloads,
            rule: Rule::new(&settings.rule.hem_name, &settings.rule.hem_parameters)?,
            cloud,
            breaker: Breaker::default(),
        })
    }

    /// Loads what the agent last said, if that is another file. One that cannot be used is left: the
    /// agent starts a worker anew that does not load what it should.
    fn reload(&mut self, samples: &[Sample], reporter: &Reporter) {
        let wanted = self.reloads.borrow_and_update().as_ref().map(|wanted| wanted.path.clone());
        let Some(path) = wanted.filter(|path| *path != self.path) else { return };
        match model_file::read(&path) {
            Ok(model) => {
                eprintln!("another version of the model is loaded: {path}");
                reporter.loaded(&path, quality(samples, &model));
                (self.model, self.path) = (model, path);
            }
            Err(error) => eprintln!("the version before goes on: {error}"),
        }
    }

    async fn passes(
        &mut self,
        settings: &EdgeSettings,
        samples: &[Sample],
        reporter: &Reporter,
    ) -> Scores {
        // Late samples are caught up with, as a camera's frames would be that waited.
        let mut pace = (settings.rate > 0.0)
            .then(|| tokio::time::interval(Duration::from_secs_f64(1.0 / settings.rate)));
        let mut scores = Scores::default();
        let mut pass = 0;
        while settings.passes == 0 || pass < settings.passes {
            for sample in samples {
                match &mut pace {
                    Some(pace) => drop(pace.tick().await),
                    // Reports and signals are served by the same thread.
                    None => tokio::task::yield_now().await,
                }
                if self.reloads.has_changed().unwrap_or(false) {
                    self.reload(samples, reporter);
                }
                let (edge, joint, outcome) = self.infer(&sample.pixels).await;
                reporter.count(outcome);
                scores.samples += 1;
                scores.edge += usize::from(edge == sample.label);
                scores.joint += usize::from(joint == sample.label);
            }
            pass += 1;
        }
        scores
    }

    /// The edge's label, the one that is used, and how the sample counts.
    async fn infer(&mut self, image: &Pixels) -> (usize, usize, Outcome) {
        let probabilities = self.model.infer(image);
        let edge = label(&probabilities);
        if !is_hard(&mut self.rule, &probabilities) {
            return (edge, edge, Outcome::Easy);
        }
        match self.ask_cloud(image).await {
            Some(cloud) => (edge, cloud, Outcome::Answered),
            None => (edge, edge, Outcome::Unanswered),
        }
    }

    async fn ask_cloud(&mut self, image: &Pixels) -> Option<usize> {
        let cloud = self.cloud.as_mut().filter(|_| self.breaker.allows(Instant::now()))?;
        match cloud.predict(std::slice::from_ref(image)).await {
            Ok(labels) => {
                self.breaker.succeeded();
                labels.first().copied()
            }
            Err(error) => {
                eprintln!("the edge's answer is used: {error}");
                self.breaker.failed(Instant::now());
                None
            }
        }
    }

    /// The cloud's accuracy alone. Measured apart from the passes and not counted.
    async fn cloud_only(&mut self, samples: &[Sample]) -> Option<f64> {
        let cloud = self.cloud.as_mut()?;
        let mut right = 0;
        for batch in samples.chunks(BATCH) {
            let labels = match cloud.predict(&images(batch)).await {
                Ok(labels) => labels,
                Err(error) => {
                    eprintln!("cloud-only accuracy is not known: {error}");
                    return None;
                }
            };
            let both = batch.iter().zip(labels);
            right += both.filter(|(sample, label)| sample.label == *label).count();
        }
        Some(share(right, samples.len()))
    }
}

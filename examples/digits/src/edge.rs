//! The edge worker's loop: infer, apply the rule, call the cloud worker, count. `call` makes the
//! calls, `report` the reports.

use std::time::{Duration, Instant};

use hard_example::Rule;
use jiff::Timestamp;
use neptune_cascade::breaker::{Breaker, Failure};
use serde::Serialize;

use crate::call::{BREAKER, CloudClient};
use crate::counters::{Outcome, Status};
use crate::error::Error;
use crate::evaluate::{images, is_hard, quality, share};
use crate::model::{Model, label};
use crate::model_file;
use crate::report::{Reloads, Reporter};
use crate::samples::{Pixels, Sample, held_out};
use crate::settings::EdgeSettings;
use crate::stop::Stop;

/// Samples per call of the cloud-only measurement.
const BATCH: usize = 100;

/// Between two calls of a cloud worker that does not answer yet.
const WAIT_PAUSE: Duration = Duration::from_millis(500);

/// The result of all passes, printed as one line of JSON. Accuracies are 0 to 1.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    service: &'a str,
    worker: &'a str,
    passes: u64,
    edge_only: f64,
    /// `None` when the cloud worker did not answer for every sample.
    cloud_only: Option<f64>,
    joint: f64,
    inference_number: u64,
    hard_example_number: u64,
    upload_cloud_ratio: f64,
}

/// Runs until SIGTERM or SIGINT. After the last pass it is idle and keeps reporting.
///
/// # Errors
/// When the settings or the model cannot be used. The status `failed` is reported before.
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
    worker.await_cloud(settings.cloud_wait, &samples).await;
    let scores = worker.passes(settings, &samples, reporter).await;
    reporter.become_status(Status::Completed);
    let counters = reporter.counters().counters();
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
    println!(
        "{}",
        serde_json::to_string(&summary).expect("strings and finite numbers can be serialised")
    );
    loop {
        worker.reload(&samples, reporter);
        if reloads.changed().await.is_err() {
            // No more reloads can arrive; the counters are still reported.
            std::future::pending::<()>().await;
        }
    }
}

/// Numbers of correct answers.
#[derive(Debug, Default)]
struct Scores {
    samples: usize,
    edge: usize,
    joint: usize,
}

struct Worker {
    model: Model,
    /// The path of the model.
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
            eprintln!(
                "neither BIG_MODEL_URL nor BIG_MODEL_IP is set: using the edge model for all samples"
            );
        }
        Ok(Self {
            model: model_file::read(&settings.model_url)?,
            path: settings.model_url.clone(),
            reloads,
            rule: Rule::new(&settings.rule.hem_name, &settings.rule.hem_parameters)?,
            cloud,
            breaker: Breaker::new(BREAKER),
        })
    }

    /// Loads the model that the agent requested last, if it is another file. An unusable file is
    /// ignored: the agent restarts a worker that does not load the requested model.
    fn reload(&mut self, samples: &[Sample], reporter: &Reporter) {
        let wanted = self.reloads.borrow_and_update().as_ref().map(|wanted| wanted.path.clone());
        let Some(path) = wanted.filter(|path| *path != self.path) else { return };
        match model_file::read(&path) {
            Ok(model) => {
                eprintln!("loaded another version of the model: {path}");
                reporter.loaded(&path, quality(samples, &model));
                (self.model, self.path) = (model, path);
            }
            Err(error) => eprintln!("keeping the previous version of the model: {error}"),
        }
    }

    /// Waits until the cloud worker answers. Its Pod may become ready after this worker: without the
    /// wait, a single pass could be over by then. The calls are not counted.
    async fn await_cloud(&mut self, at_most: Duration, samples: &[Sample]) {
        let (Some(cloud), Some(first)) = (self.cloud.as_mut(), samples.first()) else { return };
        let start = Instant::now();
        let mut is_logged = false;
        while start.elapsed() < at_most {
            let Err(error) = cloud.predict(std::slice::from_ref(&first.pixels)).await else {
                return;
            };
            if !is_logged {
                eprintln!("waiting {} s at most for the cloud worker: {error}", at_most.as_secs());
                is_logged = true;
            }
            tokio::time::sleep(WAIT_PAUSE).await;
        }
    }

    async fn passes(
        &mut self,
        settings: &EdgeSettings,
        samples: &[Sample],
        reporter: &Reporter,
    ) -> Scores {
        // Delayed samples are processed without pause, like queued frames of a camera.
        let mut pace = (settings.rate > 0.0)
            .then(|| tokio::time::interval(Duration::from_secs_f64(1.0 / settings.rate)));
        let mut scores = Scores::default();
        let mut pass = 0;
        while settings.passes == 0 || pass < settings.passes {
            for sample in samples {
                match &mut pace {
                    Some(pace) => drop(pace.tick().await),
                    // The same thread handles reports and signals.
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

    /// The label of the edge model, the final label, and how the sample is counted.
    async fn infer(&mut self, image: &Pixels) -> (usize, usize, Outcome) {
        let probabilities = self.model.infer(image);
        let edge = label(&probabilities);
        if !is_hard(&mut self.rule, &probabilities) {
            return (edge, edge, Outcome::Easy);
        }
        match self.call_cloud(image).await {
            Some(cloud) => (edge, cloud, Outcome::Answered),
            None => (edge, edge, Outcome::Unanswered),
        }
    }

    async fn call_cloud(&mut self, image: &Pixels) -> Option<usize> {
        let cloud = self.cloud.as_mut()?;
        let permit = self.breaker.permit(Instant::now()).ok()?;
        match cloud.predict(std::slice::from_ref(image)).await {
            Ok(labels) => {
                self.breaker.succeeded(permit);
                labels.first().copied()
            }
            Err(error) => {
                eprintln!("using the edge model's answer: {error}");
                self.breaker.failed(permit, Failure::NoAnswer, Instant::now(), 0.0);
                None
            }
        }
    }

    /// The accuracy of the big model alone. These samples are not counted.
    async fn cloud_only(&mut self, samples: &[Sample]) -> Option<f64> {
        let cloud = self.cloud.as_mut()?;
        let mut right = 0;
        for batch in samples.chunks(BATCH) {
            let labels = match cloud.predict(&images(batch)).await {
                Ok(labels) => labels,
                Err(error) => {
                    eprintln!("cannot measure the cloud-only accuracy: {error}");
                    return None;
                }
            };
            let both = batch.iter().zip(labels);
            right += both.filter(|(sample, label)| sample.label == *label).count();
        }
        Some(share(right, samples.len()))
    }
}

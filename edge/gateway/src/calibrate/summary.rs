//! What a calibration found, as a table and as JSON. Pure.

use std::fmt::Write as _;

use neptune_cascade::calibration::{Calibration, Certain, Point, Proportion};
use serde::Serialize;

use crate::{config::Rule, gateway::Service};

/// The rows of the table: shares of uploads in steps of 0.05.
const ROWS: u32 = 20;
/// The probability with which a recommended accuracy is not reached.
const ERROR: f64 = 0.05;

/// What a calibration found, for the table and for JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The name of the service, from the configuration.
    pub service: String,
    /// Describes the rule that gave the confidence.
    pub signal: String,
    /// The number of samples.
    pub samples: u64,
    /// Number of samples without a confidence, which stay at the edge.
    pub unjudged: u64,
    /// The accuracy if the edge answers every sample.
    pub edge: Accuracy,
    /// The accuracy if the cloud answers every sample.
    pub cloud: Accuracy,
    /// What thresholds do, with rising uploads.
    pub table: Vec<Row>,
    /// The threshold for the demanded share of uploads.
    pub for_upload_ratio: ForUploadRatio,
    /// The threshold for the demanded accuracy; `None` if none is demanded.
    pub for_accuracy: Option<ForAccuracy>,
    /// All thresholds that differ, for the plot.
    #[serde(skip)]
    pub curve: Vec<Row>,
}

/// A share of right answers, with its interval of 95 %.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Accuracy {
    /// Share of right answers, from 0 to 1.
    pub value: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
}

/// What a threshold does.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Samples with a lower confidence are uploaded.
    pub threshold: f64,
    /// Share of the samples that are uploaded, from 0 to 1.
    pub upload_ratio: f64,
    /// The share of right answers.
    pub joint: Accuracy,
    /// The expected share of right answers if as many samples are uploaded at random.
    pub random: f64,
}

/// The threshold that keeps to a share of uploads.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ForUploadRatio {
    /// The share of uploads that is demanded, from 0 to 1.
    pub demanded: f64,
    /// What its threshold does.
    pub row: Row,
}

/// The thresholds that reach an accuracy.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForAccuracy {
    /// The accuracy that is demanded, from 0 to 1.
    pub demanded: f64,
    /// The fewest uploads that reach it with a certainty of 95 %; none if no threshold does.
    pub certain: Option<Row>,
    /// The lower bound of its accuracy.
    pub lower_bound: Option<f64>,
    /// The fewest uploads that reach it on these samples.
    pub on_these_samples: Option<Row>,
}

impl From<Proportion> for Accuracy {
    fn from(proportion: Proportion) -> Self {
        let interval = proportion.interval();
        Self { value: proportion.share(), low: interval.low, high: interval.high }
    }
}

impl From<Point> for Row {
    fn from(point: Point) -> Self {
        Self {
            threshold: point.threshold,
            upload_ratio: point.uploads.share(),
            joint: point.joint.into(),
            random: point.random,
        }
    }
}

impl Summary {
    /// Summarises a calibration of a service.
    pub fn new(
        service: &Service,
        calibration: &Calibration,
        ratio: f64,
        accuracy: Option<f64>,
    ) -> Self {
        let points = calibration.points();
        let mut rows: Vec<Point> =
            (0..=ROWS).map(|row| calibration.at_ratio(f64::from(row) / f64::from(ROWS))).collect();
        rows.dedup_by_key(|point| point.uploads);
        Self {
            service: service.config.service.clone(),
            signal: signal(&service.rule),
            samples: calibration.samples(),
            unjudged: calibration.unjudged(),
            edge: calibration.edge().into(),
            cloud: calibration.cloud().into(),
            table: rows.into_iter().map(Row::from).collect(),
            for_upload_ratio: ForUploadRatio {
                demanded: ratio,
                row: calibration.at_ratio(ratio).into(),
            },
            for_accuracy: accuracy.map(|accuracy| for_accuracy(calibration, accuracy)),
            curve: points.into_iter().map(Row::from).collect(),
        }
    }

    /// Returns the summary as indented JSON, for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and numbers can be serialised")
    }

    /// Returns the summary as a table with sentences, for people.
    pub fn table(&self) -> String {
        let mut text = format!("{}: {} samples, {}", self.service, self.samples, self.signal);
        if self.unjudged > 0 {
            // Writing to a text does not fail.
            let _ = write!(text, "; {} without a confidence stay at the edge", self.unjudged);
        }
        text += "\nIntervals: 95 %. Random: expected, with as many samples uploaded at random.\n\n";
        text += "THRESHOLD   UPLOADED  CORRECT  INTERVAL       RANDOM\n";
        let mut line = |name: &str, uploaded: f64, correct: Accuracy, random: Option<f64>| {
            let Accuracy { value, low, high } = correct;
            let random = random.map_or_else(String::new, |random| format!("  {random:.4}"));
            let interval = format!("{low:.3} - {high:.3}");
            let _ = writeln!(text, "{name:<11} {uploaded:<8.4}  {value:.4}   {interval}{random}");
        };
        line("edge only", 0.0, self.edge, None);
        for row in &self.table {
            line(&row.threshold.to_string(), row.upload_ratio, row.joint, Some(row.random));
        }
        line("cloud only", 1.0, self.cloud, None);
        text += &self.recommended_ratio();
        if let Some(target) = &self.for_accuracy {
            text += &self.recommended_accuracy(target);
        }
        text
    }

    fn recommended_ratio(&self) -> String {
        let ForUploadRatio { demanded, row } = &self.for_upload_ratio;
        format!(
            "\nAt most {} uploaded: {} correct ({} with random uploads).\n\
             \x20 Set goal.uploadRatio to {demanded}, and threshold to {} for the first samples.\n",
            percent(*demanded),
            percent(row.joint.value),
            percent(row.random),
            row.threshold,
        )
    }

    fn recommended_accuracy(&self, target: &ForAccuracy) -> String {
        let demanded = percent(target.demanded);
        let mut text = match (target.certain, target.lower_bound) {
            (Some(row), Some(bound)) => format!(
                "\nAt least {demanded} correct, with a certainty of 95 %: {} uploaded, {} correct, at least {}.\n\
                 \x20 Set threshold to {}, or goal.uploadRatio to {:.2}.\n",
                percent(row.upload_ratio),
                percent(row.joint.value),
                percent(bound),
                row.threshold,
                (row.upload_ratio * 100.0).ceil() / 100.0,
            ),
            _ => format!(
                "\nAt least {demanded} correct: {} samples do not show it with a certainty of 95 % for any threshold.\n\
                 \x20 The cloud alone has {}. Use more samples, a better cloud model, or a lower --accuracy.\n",
                self.samples,
                percent(self.cloud.value),
            ),
        };
        let on_these = target.on_these_samples.map_or_else(
            || "no threshold reaches it".to_owned(),
            |row| {
                format!(
                    "{} uploaded (threshold {}) would do",
                    percent(row.upload_ratio),
                    row.threshold
                )
            },
        );
        let _ = writeln!(text, "  On these samples alone, {on_these}.");
        text
    }
}

fn for_accuracy(calibration: &Calibration, accuracy: f64) -> ForAccuracy {
    let certain = calibration.certain(accuracy, ERROR);
    ForAccuracy {
        demanded: accuracy,
        certain: certain.map(|Certain { point, .. }| point.into()),
        lower_bound: certain.map(|certain| certain.lower_bound),
        on_these_samples: calibration.reaching(accuracy).map(Row::from),
    }
}

fn signal(rule: &Rule) -> String {
    match rule {
        Rule::Tokens(signal) => format!("LogProb {signal:?}"),
        Rule::Classes(signal, scores) => format!("{signal:?} of {scores:?}"),
        Rule::Boxes(signal) => format!("{signal:?}"),
        Rule::Random => "Random".to_owned(),
        Rule::Constant => "none".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

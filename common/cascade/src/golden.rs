//! The golden vectors of the rules: outputs of edge models, and what this crate decides about them.
//! The Python library (`edge/python`) reads the same file, so that both decide alike.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    boxes::{BoxSignal, scores},
    confidence::{ClassScores, ClassSignal},
    signal::Signal,
    tokens::{Token, TokenSignal},
};

/// Writes the file instead of comparing it.
const UPDATE: &str = "UPDATE_GOLDEN_RULES";

/// Numbers of the vectors: a linear congruential generator (Knuth, MMIX).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn length(&mut self, from: u64, to: u64) -> usize {
        usize::try_from(from + self.next(to - from + 1)).unwrap()
    }

    /// A multiple of 1/`steps` from 0 to 1.
    fn share(&mut self, steps: u32) -> f64 {
        let step = u32::try_from(self.next(u64::from(steps) + 1)).unwrap();
        f64::from(step) / f64::from(steps)
    }

    /// One value in ten vectors is none that a model should yield.
    fn spoil(&mut self, values: &mut [f64]) {
        const BAD: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5, -0.25];
        if self.next(10) == 0 && !values.is_empty() {
            let at = self.length(0, values.len() as u64 - 1);
            values[at] = BAD[self.length(0, 4)];
        }
    }
}

/// A number as in JSON; others as texts.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

fn numbers(values: &[f64]) -> Value {
    values.iter().copied().map(number).collect()
}

fn vector(rule: &str, parameters: &Value, input: &Value, signal: Signal, threshold: f64) -> Value {
    json!({
        "rule": rule, "parameters": parameters, "input": input,
        "confidence": signal.ok(),
        "unjudged": signal.err().map(crate::signal::Unjudged::as_str),
        "hard": signal.is_ok_and(|confidence| confidence < threshold),
    })
}

fn boxes_vector(random: &mut Numbers, rule: &str) -> Value {
    let mut values: Vec<f64> = (0..random.length(0, 9)).map(|_| random.share(20)).collect();
    random.spoil(&mut values);
    let mut rows: Vec<Vec<f64>> =
        values.iter().map(|score| vec![1.0, 2.0, 8.0, 9.0, *score, 1.0]).collect();
    for row in &mut rows {
        row.truncate(if random.next(40) == 0 { 4 } else { 6 - random.length(0, 1) });
    }
    let (threshold, threshold_box) = (random.share(20), random.share(20));
    let (signal, parameters) = if rule == "IBT" {
        let parameters = json!({"threshold_img": threshold, "threshold_box": threshold_box});
        (BoxSignal::Ibt { threshold_box }, parameters)
    } else {
        (BoxSignal::MeanScore, json!({"threshold": threshold}))
    };
    let confidence = scores(&rows).and_then(|scores| signal.confidence(&scores));
    let input: Value = rows.iter().map(|row| numbers(row)).collect();
    vector(rule, &parameters, &input, confidence, threshold)
}

fn classes_vector(random: &mut Numbers, rule: &str) -> Value {
    // Some are distributions with equal parts, of which confidences are exact.
    let classes = random.length(0, 8);
    let mut values: Vec<f64> = if classes.is_power_of_two() && random.next(2) == 0 {
        let part = 1.0 / f64::from(u32::try_from(classes).unwrap());
        vec![part; classes]
    } else {
        let parts: Vec<f64> = (0..classes).map(|_| random.share(1000)).collect();
        let total: f64 = parts.iter().sum();
        parts.iter().map(|part| if total > 0.0 { part / total } else { 0.0 }).collect()
    };
    random.spoil(&mut values);
    let (signal, key) = match rule {
        "CrossEntropy" => (ClassSignal::CrossEntropy, "threshold_cross_entropy"),
        "MaxProbability" => (ClassSignal::MaxProbability, "threshold"),
        _ => (ClassSignal::Margin, "threshold"),
    };
    let threshold = random.share(16);
    let confidence = signal.confidence(&values, ClassScores::Probabilities);
    vector(rule, &json!({ key: threshold }), &numbers(&values), confidence, threshold)
}

/// A log-probability of 0 to -6; one in thirty is above 0.
fn logprob(random: &mut Numbers) -> f64 {
    let value = -6.0 * random.share(600);
    if random.next(30) == 0 { 0.5 } else { value }
}

fn tokens_vector(random: &mut Numbers) -> Value {
    const TEXTS: [&str; 8] = ["yes", " Yes", "no", "NO", "n", "maybe", "", "ye"];
    let name = ["mean", "min", "quantile", "margin", "choice"][random.length(0, 4)];
    let (quantile, threshold) = (random.share(10), random.share(20));
    let labels: Vec<String> =
        ["yes", "no", "none"][..random.length(0, 3)].iter().map(ToString::to_string).collect();
    let mut parameters = json!({"threshold": threshold, "signal": name});
    let signal = match name {
        "mean" => TokenSignal::Mean,
        "min" => TokenSignal::Min,
        "quantile" => {
            parameters["quantile"] = json!(quantile);
            TokenSignal::Quantile(quantile)
        }
        "margin" => TokenSignal::Margin,
        _ => {
            parameters["labels"] = json!(labels.join(","));
            TokenSignal::Choice(labels)
        }
    };
    let mut values: Vec<f64> = (0..random.length(0, 6)).map(|_| logprob(random)).collect();
    random.spoil(&mut values);
    let tops: Vec<Vec<(&str, f64)>> = values
        .iter()
        .map(|_| {
            let texts = (0..random.length(0, 4)).map(|_| TEXTS[random.length(0, 7)]);
            let texts: Vec<&str> = texts.collect();
            texts.into_iter().map(|text| (text, logprob(random))).collect()
        })
        .collect();
    let tokens: Vec<Token<'_>> =
        values.iter().zip(&tops).map(|(logprob, top)| Token { logprob: *logprob, top }).collect();
    let alternatives = |top: &[(&str, f64)]| -> Value {
        top.iter().map(|(text, value)| json!({"token": text, "logprob": value})).collect()
    };
    let input: Value = tokens
        .iter()
        .map(|token| {
            json!({"logprob": number(token.logprob), "top_logprobs": alternatives(token.top)})
        })
        .collect();
    vector("LogProb", &parameters, &input, signal.confidence(&tokens), threshold)
}

/// A uniform number is the confidence.
fn random_vector(random: &mut Numbers) -> Value {
    let (uniform, ratio) = (random.share(1000), random.share(20));
    vector("Random", &json!({"random_ratio": ratio}), &json!(uniform), Ok(uniform), ratio)
}

fn vectors() -> Vec<Value> {
    let mut random = Numbers(28);
    let mut vectors = Vec::new();
    for _ in 0..70 {
        for rule in ["IBT", "Threshold"] {
            vectors.push(boxes_vector(&mut random, rule));
        }
        for rule in ["CrossEntropy", "MaxProbability", "Margin"] {
            vectors.push(classes_vector(&mut random, rule));
        }
        vectors.push(tokens_vector(&mut random));
    }
    vectors.extend((0..40).map(|_| tokens_vector(&mut random)));
    vectors.extend((0..36).map(|_| random_vector(&mut random)));
    for (rule, hard) in [("EdgeOnly", false), ("CloudOnly", true)] {
        for input in [json!(null), json!([0.5, 0.5])] {
            let none = Value::Null;
            vectors.push(json!({
                "rule": rule, "parameters": {}, "input": input,
                "confidence": none, "unjudged": none, "hard": hard,
            }));
        }
    }
    vectors
}

#[test]
fn rules_decide_as_the_golden_vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rules.json");
    let vectors = vectors();
    assert_eq!(vectors.len(), 500);
    let lines: Vec<String> = vectors.iter().map(Value::to_string).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    if std::env::var_os(UPDATE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    for (number, (line, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "line {}", number + 1);
    }
    assert_eq!(
        text,
        expected,
        "{} differs; write it with {UPDATE}=1 cargo test -p neptune-cascade golden",
        path.display()
    );
}

//! Averages updates of equal weight: `aggregate BASE UPDATE... OUTPUT`. Prints the norms, and how
//! fast files were read.

#![allow(clippy::disallowed_methods, reason = "a program that measures")]

use std::{env, fs::File, time::Instant};

use neptune_aggregate::{
    aggregate::{Inputs, aggregate},
    close::{AggregationStrategy, Participant, Rule, WeightBy, close},
    update,
    weights::Weights,
};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let paths: Vec<_> = env::args().skip(1).collect();
    let [base, updates @ .., output] = &paths[..] else {
        return Err("usage: aggregate BASE UPDATE... OUTPUT".into());
    };
    let open = |path: &String| -> Result<_, Error> {
        let weights = File::open(path).map_err(Into::into).and_then(Weights::open);
        weights.map_err(|error| format!("{path}: {error}").into())
    };
    let base = open(base)?;
    let opened = updates.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut participants = Vec::new();
    let started = Instant::now();
    for (path, update) in updates.iter().zip(&opened) {
        let summary =
            update::check(&base, update)?.map_err(|refusal| format!("{path}: {refusal}"))?;
        println!("{path}: norm {:.6}", summary.norm);
        participants.push(Participant {
            worker: path.clone(),
            sha256: String::new(),
            reported_samples: 1,
            counted_samples: None,
            norm: summary.norm,
            steps: None,
        });
    }
    println!("checked in {:.2} s", started.elapsed().as_secs_f64());
    let rule = Rule {
        strategy: AggregationStrategy::FedAvg,
        weights: WeightBy::Equal,
        max_weight: 1.0,
        clip: None,
        refuse: None,
        server_learning_rate: 1.0,
        server_momentum: 0.0,
    };
    let record = close(rule, participants);
    let entry = |worker: &String| updates.iter().position(|it| it == worker);
    let order = record.entries.iter().filter_map(|it| entry(&it.worker));
    let order: Vec<_> = order.map(|at| &opened[at]).collect();
    let inputs = Inputs { base: &base, updates: &order, velocity: None };
    let output = File::options().read(true).write(true).create(true).truncate(true).open(output)?;
    let started = Instant::now();
    aggregate(&record, inputs, output, None)?;
    println!("aggregated in {:.2} s", started.elapsed().as_secs_f64());
    Ok(())
}

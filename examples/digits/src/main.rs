//! Runs one of the two workers, or evaluates both models without a network.

use anyhow::Context;
use clap::Parser;
use digits::evaluate::{Evaluation, SampleOutputs, evaluate_outputs};
use digits::settings::{Cli, Command, EvaluateSettings, Split};
use digits::{cloud, edge, model_file, samples};
use hard_example::Rule;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Edge(settings) => edge::run(&settings).await.context("edge worker"),
        Command::Cloud(settings) => cloud::run(&settings).await.context("cloud worker"),
        Command::Evaluate(settings) => evaluate(&settings),
    }
}

fn evaluate(settings: &EvaluateSettings) -> anyhow::Result<()> {
    let (small, big) =
        (model_file::read(&settings.small_model)?, model_file::read(&settings.big_model)?);
    let (name, samples) = match settings.split {
        Split::Train => ("training", samples::training()),
        Split::Test => ("held-out", samples::held_out()),
    };
    let outputs: Vec<_> =
        samples.iter().map(|sample| SampleOutputs::compute(sample, &small, &big)).collect();
    println!("{} {name} samples", samples.len());
    if settings.sweep {
        return sweep(&outputs);
    }
    let mut rule = Rule::new(&settings.rule.hem_name, &settings.rule.hem_parameters)?;
    let Evaluation { edge_only, cloud_only, joint, upload_ratio } =
        evaluate_outputs(&outputs, &mut rule);
    println!("rule          {} {}", settings.rule.hem_name, settings.rule.hem_parameters);
    println!(
        "edge only     {edge_only:.4}\ncloud only    {cloud_only:.4}\njoint         {joint:.4}\nupload ratio  {upload_ratio:.4}"
    );
    Ok(())
}

fn sweep(outputs: &[SampleOutputs]) -> anyhow::Result<()> {
    println!("{:<14}{:>10}{:>10}{:>14}", "rule", "threshold", "joint", "upload ratio");
    for (name, key) in [("CrossEntropy", "threshold_cross_entropy"), ("Threshold", "threshold")] {
        for step in 0..=20 {
            let threshold = f64::from(step) / 20.0;
            let parameters = serde_json::json!([{ "key": key, "value": threshold }]).to_string();
            let Evaluation { joint, upload_ratio, .. } =
                evaluate_outputs(outputs, &mut Rule::new(name, &parameters)?);
            println!("{name:<14}{threshold:>10.2}{joint:>10.4}{upload_ratio:>14.4}");
        }
    }
    Ok(())
}

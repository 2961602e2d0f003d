//! Runs the app, or evaluates both models once.

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use digits::settings::RuleSettings;
use hard_example::Rule;
use three_resources::{
    app, client::Client, error::Error, evaluate::evaluate, joint::Joint, listen,
};

/// Recognises handwritten digits with the edge's model, and sends the hard ones to the cloud's.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve `POST /predict`.
    Serve {
        #[command(flatten)]
        models: Models,
        #[arg(long, env, default_value = "0.0.0.0:8080")]
        listen: String,
    },
    /// Print edge-only, cloud-only and joint accuracy on the held-out samples.
    Evaluate {
        #[command(flatten)]
        models: Models,
    },
}

#[derive(Debug, Args)]
struct Models {
    /// URL of the edge's model: `status.url` of its `InferenceModel`.
    #[arg(long, env)]
    edge_url: String,
    /// `modelName` of the edge's `InferenceModel`.
    #[arg(long, env, default_value = "digits")]
    edge_model: String,
    /// URL of the cloud's model. If empty or missing, only the edge's model is used.
    #[arg(long, env)]
    cloud_url: Option<String>,
    /// `modelName` of the cloud's `InferenceModel`.
    #[arg(long, env, default_value = "digits")]
    cloud_model: String,
    #[command(flatten)]
    rule: RuleSettings,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Serve { models, listen: address } => {
            listen::serve(&address, app::routes(joint(&models)?)).await.context("app")
        }
        Command::Evaluate { models } => {
            println!("{}", serde_json::to_string(&evaluate(&joint(&models)?).await?)?);
            Ok(())
        }
    }
}

fn joint(models: &Models) -> Result<Joint, Error> {
    let edge = Client::new(&models.edge_url, &models.edge_model)?;
    let cloud = models.cloud_url.as_deref().filter(|url| !url.is_empty());
    let cloud = cloud.map(|url| Client::new(url, &models.cloud_model)).transpose()?;
    Ok(Joint::new(edge, cloud, Rule::new(&models.rule.hem_name, &models.rule.hem_parameters)?))
}

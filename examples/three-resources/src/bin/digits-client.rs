//! Runs the client that measures joint inference.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use clap::Parser;
use three_resources::{
    client::Client,
    evaluate::{Targets, evaluate},
};

/// Sends the 600 held-out digits through a gateway, one per request, and prints how many answers
/// are right and how many are the cloud's.
#[derive(Debug, Parser)]
#[command(version)]
struct Settings {
    /// URL of the gateway: the column URL of kubectl get jis -o wide.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    gateway_url: String,
    /// Name of the edge's model, which clients of the gateway use.
    #[arg(long, default_value = "digits")]
    model: String,
    /// URL of the edge's model server, to measure it alone: `status.url` of its `InferenceModel`.
    #[arg(long)]
    edge_url: Option<String>,
    /// URL of the cloud's model server, to measure it alone.
    #[arg(long)]
    cloud_url: Option<String>,
    /// Name of the cloud's model [default: that of the edge].
    #[arg(long)]
    cloud_model: Option<String>,
    /// Passes over the samples.
    #[arg(long, default_value_t = 1)]
    passes: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    let model = &settings.model;
    let cloud_model = settings.cloud_model.as_ref().unwrap_or(model);
    let client =
        |url: &Option<String>, model| url.as_deref().map(|url| Client::new(url, model)).transpose();
    let targets = Targets {
        gateway: Client::new(&settings.gateway_url, model)?,
        edge: client(&settings.edge_url, model)?,
        cloud: client(&settings.cloud_url, cloud_model)?,
    };
    println!("{}", serde_json::to_string(&evaluate(&targets, settings.passes).await?)?);
    Ok(())
}

//! Runs the model server.

#![allow(
    rustdoc::invalid_html_tags,
    reason = "the comments are help texts for a terminal, not Markdown"
)]

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use three_resources::{folder, listen, server, versions::Versions};
use tokio::sync::watch;

/// Serves a digits model with the Open Inference Protocol v2, from a directory of versions that it
/// watches.
///
/// The highest loaded version answers. New versions in the directory are loaded, removed ones are
/// unloaded.
#[derive(Debug, Parser)]
#[command(version)]
struct Settings {
    /// The name under which the model is served.
    #[arg(long, env = "MODEL_NAME")]
    model_name: String,
    /// The directory with one subdirectory per version, each with one *.json [default:
    /// /models/<model name>].
    #[arg(long)]
    directory: Option<PathBuf>,
    #[arg(long, default_value = "0.0.0.0")]
    ip: String,
    #[arg(long, env = "SERVING_PORT")]
    port: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Settings { model_name, directory, ip, port } = Settings::parse();
    let directory = directory.unwrap_or_else(|| PathBuf::from("/models").join(&model_name));
    let (sender, versions) = watch::channel(Versions::default());
    tokio::spawn(folder::watch(directory, sender));
    let routes = server::routes(&model_name, versions);
    listen::serve(&format!("{ip}:{port}"), routes).await.context("model server")
}

//! `llm-example oracle` serves the stand-in for a large model; `llm-example ask` asks all questions.
#![allow(clippy::doc_markdown, reason = "clap shows the doc comments to users")]

use std::{fs, net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use clap::Parser;
use llm_example::{client::Client, oracle::Oracle, questions::questions};
use tokio::net::TcpListener;

/// Questions with known answers for a language model, and a stand-in for a large one.
#[derive(Debug, Parser)]
enum Command {
    /// Serve a stand-in for a large model: it looks the answers up, and knows 195 of 200.
    Oracle {
        /// Address and port to listen on.
        #[arg(long, default_value = "127.0.0.1:8090")]
        listen: SocketAddr,
        /// Name of the model.
        #[arg(long, default_value = "big")]
        model: String,
        /// File with the bearer token that requests need; without it, none is needed.
        #[arg(long)]
        token_file: Option<PathBuf>,
    },
    /// Ask all questions and print one line with the result.
    Ask {
        /// Base of the endpoint, such as http://127.0.0.1:8080/v1.
        #[arg(long)]
        url: String,
        /// Name of the model. NAME@edge keeps every question at the edge.
        #[arg(long, default_value = "smollm2")]
        model: String,
        /// Questions at a time.
        #[arg(long, default_value_t = 4)]
        at_once: usize,
        /// Ask only the first questions.
        #[arg(long)]
        limit: Option<usize>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut questions = questions();
    match Command::parse() {
        Command::Oracle { listen, model, token_file } => {
            let token = token_file
                .map(|file| fs::read_to_string(&file).with_context(|| file.display().to_string()))
                .transpose()?;
            let oracle = Oracle::new(&questions, &model, token.as_deref().map(str::trim));
            let listener = TcpListener::bind(listen)
                .await
                .with_context(|| format!("listening on {listen}"))?;
            println!("listening on http://{}/v1", listener.local_addr()?);
            axum::serve(listener, oracle.router()).await?;
        }
        Command::Ask { url, model, at_once, limit } => {
            questions.truncate(limit.unwrap_or(usize::MAX));
            let client = Client::new(&url, None)?;
            let answers = client.ask_all(&model, &questions, at_once.max(1), |_| {}).await?;
            let right = questions.iter().zip(&answers);
            let right = right.filter(|(question, answer)| question.is_answered_by(&answer.text));
            let by_cloud = answers.iter().filter(|it| it.answered_by.as_deref() == Some("cloud"));
            let result = serde_json::json!({
                "questions": questions.len(), "right": right.count(), "byCloud": by_cloud.count(),
            });
            println!("{result}");
        }
    }
    Ok(())
}

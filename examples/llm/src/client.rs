//! Asks questions over the `OpenAI` protocol, as any client does.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode, Uri, header};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use crate::questions::Question;

/// A language model on a small machine needs seconds for an answer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum length of an answer in tokens.
const MAX_TOKENS: u32 = 16;

/// A client of a chat endpoint.
#[derive(Debug, Clone)]
pub struct Client {
    url: Uri,
    token: Option<String>,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// The answer to one question.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text of the model.
    pub text: String,
    /// `edge` or `cloud`, as the gateway reports it; `None` without a gateway.
    pub answered_by: Option<String>,
    /// The gateway's decision, such as `easy`.
    pub decision: Option<String>,
    /// Time from the request to the whole answer.
    pub took: Duration,
}

#[derive(Debug, Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    message: Message,
}

#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    content: String,
}

impl Client {
    /// A client of `<base>/chat/completions`; `base` ends with `/v1`.
    ///
    /// # Errors
    /// The base is not a URL.
    pub fn new(base: &str, token: Option<&str>) -> anyhow::Result<Self> {
        let url = format!("{}/chat/completions", base.trim_end_matches('/'));
        let url = url.parse().with_context(|| format!("{url} is not a URL"))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Ok(Self { url, token: token.map(str::to_owned), pool })
    }

    /// Asks one question of this model.
    ///
    /// # Errors
    /// No answer within two minutes, another status than 200, or an answer of another form.
    pub async fn ask(&self, model: &str, question: &Question) -> anyhow::Result<Answer> {
        let began = Instant::now();
        let exchange = timeout(TIMEOUT, self.exchange(model, question)).await;
        let (text, headers) = exchange
            .with_context(|| format!("{} did not answer within two minutes", self.url))?
            .with_context(|| format!("{} with the question {:?}", self.url, question.question))?;
        let header =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer {
            text,
            answered_by: header("x-neptune-answered-by"),
            decision: header("x-neptune-decision"),
            took: began.elapsed(),
        })
    }

    /// Asks all questions, `at_once` of them at a time. The answers are in the order of the
    /// questions.
    ///
    /// # Errors
    /// Those of the first question that has none.
    pub async fn ask_all(
        &self,
        model: &str,
        questions: &[Question],
        at_once: usize,
        progress: impl Fn(usize),
    ) -> anyhow::Result<Vec<Answer>> {
        let asked = stream::iter(questions).map(|question| self.ask(model, question));
        let mut asked = std::pin::pin!(asked.buffered(at_once));
        let mut answers = Vec::with_capacity(questions.len());
        while let Some(answer) = asked.next().await {
            answers.push(answer?);
            progress(answers.len());
        }
        Ok(answers)
    }

    async fn exchange(
        &self,
        model: &str,
        question: &Question,
    ) -> anyhow::Result<(String, HeaderMap)> {
        let body = json!({
            "model": model,
            "messages": [
                {"role": "system", "content": "Answer with one word."},
                {"role": "user", "content": question.question},
            ],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
        });
        let mut request =
            Request::post(self.url.clone()).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::from(body.to_string()))?;
        let (head, body) = self.pool.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        if head.status != StatusCode::OK {
            bail!("answered {}: {}", head.status, String::from_utf8_lossy(&body));
        }
        let completion: Completion = serde_json::from_slice(&body)?;
        let choice = completion.choices.into_iter().next().context("an answer without a choice")?;
        Ok((choice.message.content, head.headers))
    }
}

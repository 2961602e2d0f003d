//! A server of the `OpenAI` protocol that looks answers up. It stands in for a large model in the
//! cloud, which needs a machine or an account that an example cannot take for granted.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::{get, post},
};
use futures::stream;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::questions::Question;

/// Of this many questions it does not know one: 195 of 200 answers are right.
const UNKNOWN_ONE_OF: usize = 40;

/// The answers that the server knows, and its model.
#[derive(Debug, Clone)]
pub struct Oracle {
    answers: Arc<BTreeMap<String, String>>,
    model: Arc<str>,
    token: Option<Arc<str>>,
}

impl Oracle {
    /// Serves these questions under the name of a model. With a token, requests need it.
    pub fn new(questions: &[Question], model: &str, token: Option<&str>) -> Self {
        let known = questions.iter().enumerate().filter(|(at, _)| at % UNKNOWN_ONE_OF != 7);
        let known = known.filter_map(|(_, question)| {
            Some((question.question.clone(), question.answers.first()?.clone()))
        });
        Self {
            answers: Arc::new(known.collect()),
            model: model.into(),
            token: token.map(Into::into),
        }
    }

    /// The routes below `/v1`.
    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions", post(complete))
            .with_state(self)
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        given.and_then(|value| value.strip_prefix("Bearer ")) == Some(token)
    }

    fn answer(&self, request: &ChatRequest) -> String {
        let asked = request.messages.iter().rev().find(|message| message.role == "user");
        let answer = asked.and_then(|message| self.answers.get(message.content.trim()));
        answer.cloned().unwrap_or_else(|| "I do not know.".to_owned())
    }
}

#[derive(Debug, Deserialize)]
struct ChatRequest {
    model: String,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    stream: bool,
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: String,
    content: String,
}

async fn models(State(oracle): State<Oracle>) -> Json<Value> {
    let model = json!({"id": &*oracle.model, "object": "model", "owned_by": "neptune-example"});
    Json(json!({"object": "list", "data": [model]}))
}

async fn complete(
    State(oracle): State<Oracle>,
    headers: HeaderMap,
    Json(request): Json<ChatRequest>,
) -> Response {
    if !oracle.is_authorized(&headers) {
        return failure(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong");
    }
    if request.model != *oracle.model {
        let message = format!("model {:?} not found; {:?} is served", request.model, oracle.model);
        return failure(StatusCode::NOT_FOUND, &message);
    }
    let answer = oracle.answer(&request);
    if request.stream { streamed(&oracle.model, &answer) } else { whole(&oracle.model, &answer) }
}

fn whole(model: &str, answer: &str) -> Response {
    let message = json!({"role": "assistant", "content": answer});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    Json(json!({
        "id": "chatcmpl-oracle", "object": "chat.completion", "created": 0, "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": answer.split(' ').count(), "total_tokens": 0},
    }))
    .into_response()
}

fn streamed(model: &str, answer: &str) -> Response {
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        json!({
            "id": "chatcmpl-oracle", "object": "chat.completion.chunk", "created": 0,
            "model": model, "choices": [choice],
        })
    };
    let words = answer.split_inclusive(' ').map(|word| chunk(json!({"content": word}), None));
    let head = chunk(json!({"role": "assistant", "content": ""}), None);
    let events: Vec<_> = [head]
        .into_iter()
        .chain(words)
        .chain([chunk(json!({}), Some("stop"))])
        .map(|chunk| chunk.to_string())
        .chain(["[DONE]".to_owned()])
        .map(|data| Ok::<_, std::convert::Infallible>(Event::default().data(data)))
        .collect();
    Sse::new(stream::iter(events)).into_response()
}

fn failure(status: StatusCode, message: &str) -> Response {
    let error = json!({"message": message, "type": "invalid_request_error"});
    (status, Json(json!({ "error": error }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::questions;

    #[test]
    fn oracle_knows_195_of_200_answers() {
        let questions = questions();
        let oracle = Oracle::new(&questions, "big", None);
        let right = questions.iter().filter(|question| {
            let content = question.question.clone();
            let messages = vec![ChatMessage { role: "user".to_owned(), content }];
            let request = ChatRequest { model: "big".to_owned(), messages, stream: false };
            question.is_answered_by(&oracle.answer(&request))
        });
        assert_eq!(right.count(), 195);
    }

    #[test]
    fn only_the_token_is_accepted() {
        let oracle = Oracle::new(&[], "big", Some("secret"));
        let with = |value: &str| {
            let value = value.parse().expect("a header");
            [(header::AUTHORIZATION, value)].into_iter().collect::<HeaderMap>()
        };
        assert!(oracle.is_authorized(&with("Bearer secret")));
        for other in ["Bearer other", "secret", "Basic secret", "Bearer "] {
            assert!(!oracle.is_authorized(&with(other)), "{other}");
        }
        assert!(!oracle.is_authorized(&HeaderMap::new()));
    }
}

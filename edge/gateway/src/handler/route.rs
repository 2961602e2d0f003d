//! Decides whether a request is answered by the cascade, or passes to the edge.

use bytes::Bytes;
use hyper::{Method, Request, StatusCode, body::Incoming, http::request::Parts};

use super::{Exchange, chat, completion::Completion, pass, stream, tensors};
use crate::{
    clock,
    protocol::{
        Payload,
        completion::{Kind, Request as CompletionRequest},
        path::{Task, is_shared_memory, unpinned},
    },
    server::{Answer, Paced, boxed, collect},
    upstream::CloudClient,
};

/// Answers a request over REST.
pub async fn route(exchange: &mut Exchange, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let limits = exchange.service.config.limits;
    let body =
        match Paced::new(body, limits.max_body_bytes, exchange.service.config.timeouts.client) {
            Ok(body) => body.with_min_speed(),
            Err(problem) => return exchange.body_error(&problem),
        };
    let path = head.uri.path().to_owned();
    if is_shared_memory(exchange.service.protocol(), &path) {
        let text = "shared memory of Triton is not supported";
        return exchange.error(StatusCode::NOT_IMPLEMENTED, text);
    }
    let task = Task::from_request(exchange.service.protocol(), &head.method, &path);
    let is_decided = match &task {
        Some(Task::Tensors { model, .. }) => {
            exchange.service.decides(unpinned(model).unwrap_or(model))
        }
        Some(_) => true,
        None => false,
    };
    let is_raw = Payload::is_raw(&head.headers);
    let task = match task {
        Some(task) if is_decided && !is_raw => task,
        passed => {
            let is_sample = head.method == Method::POST;
            if let Some(refused) = exchange.refuse_passed(&head, passed.as_ref()) {
                return refused;
            }
            if is_sample {
                exchange.note_passed(passed.as_ref(), is_decided, &path);
            }
            let limit = exchange.edge_limit(&head);
            if let Some(answer) = exchange.take_place() {
                return answer;
            }
            return pass::pass(exchange, head, boxed(body), limit, is_sample).await;
        }
    };
    if let Some(answer) = exchange.coded(&head) {
        return answer;
    }
    if let Task::Tensors { model, .. } = &task
        && let Some(refused) = exchange.refuse_model(Some(unpinned(model).unwrap_or(model)))
    {
        return refused;
    }
    let body = match collect(body.holding(exchange.held.clone())).await {
        Ok(body) => body,
        Err(problem) => return exchange.body_error(&problem),
    };
    if let Some(answer) = exchange.take_place() {
        return answer;
    }
    // The time to receive the request is the client's.
    exchange.started = clock::now();
    match task {
        Task::Tensors { model, is_versioned, .. } => {
            let request = tensors::Tensors {
                edge_path: edge_path(exchange, &task, model, &head),
                cloud_path: cloud_path(exchange, &task, model),
                model: unpinned(model).unwrap_or(model),
                is_pinned: unpinned(model).is_some() || exchange.is_pinned(&head),
                is_versioned,
                head: &head,
            };
            match Payload::new(&head.headers, body) {
                Ok(payload) => {
                    exchange.note_decided();
                    tensors::answer(exchange, &request, payload).await
                }
                Err(problem) => exchange.error(StatusCode::BAD_REQUEST, &problem.to_string()),
            }
        }
        Task::Chat | Task::Completion => complete(exchange, &task, &head, body).await,
    }
}

/// Returns the path at the edge, without the suffix of the model's name that is the route pin.
fn edge_path(exchange: &Exchange, task: &Task<'_>, model: &str, head: &Parts) -> String {
    let path = match unpinned(model) {
        Some(model) => task.path(exchange.service.protocol(), model),
        None => head.uri.path().to_owned(),
    };
    match head.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

fn cloud_path(exchange: &Exchange, task: &Task<'_>, model: &str) -> String {
    let name = exchange.service.cloud.as_ref().and_then(CloudClient::model_name);
    task.cloud_path(exchange.service.protocol(), name.unwrap_or(model))
}

/// Answers a completion, as a whole or streamed.
async fn complete(exchange: &mut Exchange, task: &Task<'_>, head: &Parts, body: Bytes) -> Answer {
    let kind = if *task == Task::Chat { Kind::Chat } else { Kind::Text };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let Some(request) = CompletionRequest::parse(kind, &body) else {
        if let Some(refused) = exchange.refuse_model(None) {
            return refused;
        }
        return exchange.pass_whole(head, &path, body).await;
    };
    let model = request.model.as_deref();
    if let Some(refused) =
        exchange.refuse_model(model.map(|model| unpinned(model).unwrap_or(model)))
    {
        return refused;
    }
    let is_decided =
        model.is_none_or(|model| exchange.service.decides(unpinned(model).unwrap_or(model)));
    if !is_decided {
        exchange.note_other_model(model.unwrap_or_default());
        return exchange.pass_whole(head, &path, body).await;
    }
    exchange.note_decided();
    let is_pinned =
        model.is_some_and(|model| unpinned(model).is_some()) || exchange.is_pinned(head);
    let completion = Completion { head, request: &request, body: body.clone(), path, is_pinned };
    if request.is_stream {
        stream::answer(exchange, &completion).await
    } else {
        chat::answer(exchange, &completion).await
    }
}

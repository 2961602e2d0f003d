//! Which client a request is from, and what this client may do.

use hyper::{
    Method, StatusCode,
    header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
    http::request::Parts,
};

use super::Exchange;
use crate::{
    config::{Client, Uploads},
    protocol::{
        grpc,
        path::{Task, is_health, unpinned},
    },
    server::{Answer, Wire},
    upstream::excerpt_line,
};

impl Exchange {
    /// Recognizes the client by its key, which is removed: only this gateway may have it. Returns the
    /// answer if the request is refused.
    pub(super) fn identify(&mut self, head: &mut Parts) -> Option<Answer> {
        if self.service.keys.is_empty() {
            return None;
        }
        let shown = self.service.keys.client(&head.headers);
        head.headers.remove(AUTHORIZATION);
        let path = head.uri.path();
        let is_open = match self.wire {
            Wire::Rest => is_health(self.service.protocol(), &head.method, path),
            Wire::Grpc => grpc::is_health(path),
        };
        if is_open {
            return None;
        }
        let position = match shown {
            Ok(position) => position,
            Err(problem) => {
                let mut answer = self.error(StatusCode::UNAUTHORIZED, &problem.to_string());
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return Some(answer);
            }
        };
        self.client = Some(position);
        let client = self.client()?;
        let entered = self.gateway.clients.enter(client, self.started);
        let metrics = &self.gateway.metrics;
        let Err(wait) = entered else {
            metrics.client_request(&client.name, "accepted");
            return None;
        };
        metrics.client_request(&client.name, "rate_limited");
        let limit = client.requests_per_minute.unwrap_or_default();
        let text = format!(
            "client {} has sent {limit} requests in a minute, as many as it may; try again in {} s",
            client.name,
            wait.as_secs()
        );
        let mut answer = self.error(StatusCode::TOO_MANY_REQUESTS, &text);
        answer.headers_mut().insert(RETRY_AFTER, wait.as_secs().into());
        Some(answer)
    }

    /// The client of the request, if there are clients.
    pub(super) fn client(&self) -> Option<&Client> {
        self.service.config.clients.get(self.client?)
    }

    /// Whether the cloud may answer no sample of the client.
    pub(super) fn never_uploads(&self) -> bool {
        self.client().is_some_and(|client| client.uploads == Uploads::Never)
    }

    /// The answer to a request for a model that its client may not use; `None` as the model is one
    /// that cannot be read from the request.
    pub(super) fn refuse_model(&self, model: Option<&str>) -> Option<Answer> {
        let client = self.client().filter(|client| !client.models.is_empty())?;
        if model.is_some_and(|model| client.may_use(model)) {
            return None;
        }
        self.gateway.clients.refused(client);
        self.gateway.metrics.client_request(&client.name, "model_refused");
        let named = match model {
            Some(model) => format!("the model {:?}", excerpt_line(model, None)),
            None => "a request whose model cannot be read".to_owned(),
        };
        let text = format!(
            "client {} may not use {named}; it may use {}",
            client.name,
            client.models.join(", ")
        );
        Some(self.error(StatusCode::FORBIDDEN, &text))
    }

    /// The answer to a request that would pass to the edge, if its client may only use some models:
    /// only what changes and computes nothing passes without a model.
    pub(super) fn refuse_passed(&self, head: &Parts, task: Option<&Task<'_>>) -> Option<Answer> {
        match task {
            Some(Task::Tensors { model, .. }) => {
                self.refuse_model(Some(unpinned(model).unwrap_or(model)))
            }
            None if [Method::GET, Method::HEAD, Method::OPTIONS].contains(&head.method) => None,
            _ => self.refuse_model(None),
        }
    }

    /// Records what was counted for the client, before it gets its answer.
    pub(super) fn record_client(&self) {
        if let Some(client) = self.client() {
            self.gateway.clients.record(client);
        }
    }
}

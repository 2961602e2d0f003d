//! Finds out which log-probabilities the edge's model server gives, and whether the outputs of the
//! two models can be mixed.

use std::{sync::PoisonError, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use tracing::{info, warn};

use crate::{
    config::{Protocol, Rule},
    gateway::Service,
    protocol::{
        completion::{Kind, Probed, Reply, probe},
        json::Object,
        oip,
    },
    server::{Paced, collect, whole},
};

/// Two tries, with alternatives and without.
const BODIES: [(Kind, &str, bool); 4] = [
    (Kind::Chat, "/v1/chat/completions", true),
    (Kind::Chat, "/v1/chat/completions", false),
    (Kind::Text, "/v1/completions", true),
    (Kind::Text, "/v1/completions", false),
];
/// The largest answer to a probe.
const MAX_ANSWER: usize = 1 << 20;
const STALL: Duration = Duration::from_secs(10);

/// Asks the edge, if the configuration needs to know. Returns whether it is known now.
pub async fn run(service: &Service) -> bool {
    match (service.protocol(), &service.rule) {
        (Protocol::Oip, _) => metadata(service).await,
        (_, Rule::Tokens(_)) => logprobs(service).await,
        _ => true,
    }
}

/// Compares the outputs of the two models. The cloud is asked once; without its answer, the first
/// merge shows a difference.
async fn metadata(service: &Service) -> bool {
    let (Some(model), Some(cloud)) = (&service.config.edge.model, &service.cloud) else {
        return true;
    };
    let path = |model: &str| format!("/v2/models/{model}");
    let limit = service.config.edge_timeout();
    let (headers, body) = (HeaderMap::new(), whole(Bytes::new()));
    let edge = service.edge.pass(Method::GET, &path(model), headers, body, limit).await;
    let Ok(edge) = edge else { return false };
    if edge.status().is_server_error() {
        return false;
    }
    let Ok(edge) = Paced::new(edge.into_body(), MAX_ANSWER, STALL) else { return true };
    let Ok(edge) = collect(edge).await else { return false };
    let page = path(cloud.model_name().unwrap_or(model));
    let Ok(other) = cloud.get(&page, service.config.cloud_total()).await else { return true };
    if let (Ok(edge), Ok(other)) = (Object::parse(&edge), Object::parse(&other))
        && let Some(difference) = oip::difference(&edge, &other)
    {
        service.answer_as_a_whole(&difference.to_string());
    }
    true
}

/// Asks which log-probabilities the edge gives.
async fn logprobs(service: &Service) -> bool {
    let mut found = None;
    for (kind, path, with_alternatives) in BODIES {
        match ask(service, kind, path, with_alternatives).await {
            Some(Probed::None) => found = Some(Probed::None),
            Some(probed) => {
                found = Some(probed);
                break;
            }
            None => return false,
        }
    }
    let Some(found) = found else { return false };
    let mut known = service.probed.write().unwrap_or_else(PoisonError::into_inner);
    if *known != found {
        *known = found;
        if found == Probed::None {
            warn!(
                "the edge's server gives no logprobs: every sample stays at the edge; \
                 use a server that does, or name Random"
            );
        } else {
            info!("the edge's server gives log-probabilities: {}", found.as_str());
        }
    }
    true
}

/// `None` if the server does not work yet.
async fn ask(service: &Service, kind: Kind, path: &str, with_alternatives: bool) -> Option<Probed> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let model = service.config.edge.model.as_deref();
    let body = Bytes::from(probe(kind, model, with_alternatives));
    let limit = service.config.edge_timeout();
    let answer = service.edge.post(path, &headers, body, limit).await.ok()?;
    let status = answer.status();
    // Loading, or too many requests.
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
        || status == StatusCode::TOO_MANY_REQUESTS
    {
        return None;
    }
    if !status.is_success() {
        return Some(Probed::None);
    }
    let body = collect(Paced::new(answer.into_body(), MAX_ANSWER, STALL).ok()?).await.ok()?;
    let reply = Reply::of(&body);
    Some(if reply.tokens() == 0 {
        Probed::None
    } else if reply.has_alternatives() {
        Probed::Top2
    } else {
        Probed::Chosen
    })
}

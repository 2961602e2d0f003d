//! Finds out which log-probabilities the edge's model server gives, and whether the outputs of the
//! two models can be mixed.

use std::time::Duration;

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
/// Most bytes that are read of an answer to a probe.
const MAX_ANSWER: usize = 1 << 20;
const STALL: Duration = Duration::from_secs(10);
/// Pause until a server that does not work yet is asked again.
const SOON: Duration = Duration::from_secs(1);
/// Pause until a server without the model is asked again.
const LATER: Duration = Duration::from_secs(3);
/// Pause until a server that gives no log-probabilities is asked again: another model may.
const AGAIN: Duration = Duration::from_mins(1);

/// What an answer to a probe shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The server gives these.
    Gives(Probed),
    /// It does not have the model, or this path: perhaps not yet.
    NotYet,
    /// It does not work yet.
    Nothing,
}

/// Asks the edge, if the configuration needs to know. Returns after which time to ask again; `None`
/// if enough is known.
pub async fn run(service: &Service) -> Option<Duration> {
    match (service.protocol(), &service.rule) {
        (Protocol::Oip, _) => metadata(service).await,
        (_, Rule::Tokens(_)) => logprobs(service).await,
        _ => None,
    }
}

/// Compares the outputs of the two models. The cloud is asked once; without its answer, the first
/// merge shows a difference.
async fn metadata(service: &Service) -> Option<Duration> {
    let (Some(model), Some(cloud)) = (&service.config.edge.model, &service.cloud) else {
        return None;
    };
    let path = |model: &str| format!("/v2/models/{model}");
    let limit = service.config.edge_timeout();
    let (headers, body) = (HeaderMap::new(), whole(Bytes::new()));
    let edge = service.edge.pass(Method::GET, &path(model), headers, body, limit).await;
    let Ok(edge) = edge else { return Some(SOON) };
    match evidence(edge.status()) {
        Some(Evidence::Nothing) => return Some(SOON),
        Some(Evidence::NotYet) => return Some(LATER),
        Some(Evidence::Gives(_)) | None => {}
    }
    let edge = Paced::new(edge.into_body(), MAX_ANSWER, STALL).ok()?;
    let Ok(edge) = collect(edge).await else { return Some(SOON) };
    let page = path(cloud.model_name().unwrap_or(model));
    let other = cloud.get(&page, MAX_ANSWER, service.config.cloud_total()).await.ok()?;
    if let (Ok(edge), Ok(other)) = (Object::parse(&edge), Object::parse(&other))
        && let Some(difference) = oip::difference(&edge, &other)
    {
        service.answer_as_a_whole(&difference.to_string());
    }
    None
}

/// Asks which log-probabilities the edge gives.
async fn logprobs(service: &Service) -> Option<Duration> {
    let mut all = Vec::with_capacity(BODIES.len());
    for (kind, path, with_alternatives) in BODIES {
        let evidence = ask(service, kind, path, with_alternatives).await;
        all.push(evidence);
        if !matches!(evidence, Evidence::Gives(Probed::None) | Evidence::NotYet) {
            break;
        }
    }
    let (probed, pause) = concluded(&all);
    if let Some(probed) = probed {
        learn(service, probed);
    }
    pause
}

/// What the answers say together, if they say something, and after which time to ask again.
fn concluded(all: &[Evidence]) -> (Option<Probed>, Option<Duration>) {
    let gives =
        |probed: &Evidence| matches!(probed, Evidence::Gives(probed) if *probed != Probed::None);
    match all.iter().find(|evidence| gives(evidence)) {
        Some(Evidence::Gives(probed)) => (Some(*probed), None),
        _ if all.contains(&Evidence::Nothing) => (None, Some(SOON)),
        // It has another path only.
        _ if all.contains(&Evidence::Gives(Probed::None)) => (Some(Probed::None), Some(AGAIN)),
        _ => (None, Some(LATER)),
    }
}

/// Uses what was found from now on, and logs a change.
fn learn(service: &Service, probed: Probed) {
    let mut known = service.probed.write();
    if *known == probed {
        return;
    }
    *known = probed;
    if probed == Probed::None {
        warn!(
            "the edge's server gives no logprobs: every sample stays at the edge; use a server that \
             does, or name Random; it is asked again every {} s",
            AGAIN.as_secs()
        );
    } else {
        info!("the edge's server gives log-probabilities: {}", probed.as_str());
    }
}

async fn ask(service: &Service, kind: Kind, path: &str, with_alternatives: bool) -> Evidence {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let model = service.config.edge.model.as_deref();
    let body = Bytes::from(probe(kind, model, with_alternatives));
    let limit = service.config.edge_timeout();
    let Ok(answer) = service.edge.post(path, &headers, body, limit).await else {
        return Evidence::Nothing;
    };
    if let Some(evidence) = evidence(answer.status()) {
        return evidence;
    }
    let Ok(body) = Paced::new(answer.into_body(), MAX_ANSWER, STALL) else {
        return Evidence::Nothing;
    };
    let Ok(body) = collect(body).await else { return Evidence::Nothing };
    let reply = Reply::from_body(&body);
    Evidence::Gives(if reply.tokens() == 0 {
        Probed::None
    } else if reply.has_alternatives() {
        Probed::Top2
    } else {
        Probed::Chosen
    })
}

/// What a status shows; `None` if the body does.
fn evidence(status: StatusCode) -> Option<Evidence> {
    match status.as_u16() {
        200..=299 => None,
        // Servers have no model while they import or load it.
        404 | 408 | 409 | 425 => Some(Evidence::NotYet),
        501 => Some(Evidence::Gives(Probed::None)),
        429 | 500.. => Some(Evidence::Nothing),
        _ => Some(Evidence::Gives(Probed::None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Evidence = Evidence::Gives(Probed::None);
    const TOP: Evidence = Evidence::Gives(Probed::Top2);

    #[test]
    fn status_means_not_yet_nothing_or_no() {
        for (status, expected) in [
            (200, None),
            (400, Some(NONE)),
            (404, Some(Evidence::NotYet)),
            (408, Some(Evidence::NotYet)),
            (409, Some(Evidence::NotYet)),
            (425, Some(Evidence::NotYet)),
            (429, Some(Evidence::Nothing)),
            (501, Some(NONE)),
            (503, Some(Evidence::Nothing)),
        ] {
            assert_eq!(
                evidence(StatusCode::from_u16(status).unwrap_or_default()),
                expected,
                "{status}"
            );
        }
    }

    #[test]
    fn only_logprobs_end_the_probe() {
        for (all, expected) in [
            (&[TOP][..], (Some(Probed::Top2), None)),
            (&[Evidence::NotYet, NONE, TOP], (Some(Probed::Top2), None)),
            (&[NONE, Evidence::Nothing], (None, Some(SOON))),
            (&[Evidence::NotYet, Evidence::NotYet], (None, Some(LATER))),
            (&[Evidence::NotYet, NONE], (Some(Probed::None), Some(AGAIN))),
            (&[NONE, NONE], (Some(Probed::None), Some(AGAIN))),
        ] {
            assert_eq!(concluded(all), expected, "{all:?}");
        }
    }
}

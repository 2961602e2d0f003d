//! The answer to one request.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, RETRY_AFTER},
};
use http_body_util::{Either, Full, StreamBody};
use hyper::body::Incoming;
use neptune_transfer::{Digest, range::Selection};
use neptune_wire::{KeyPin, NodeName};

use super::{
    Shared,
    upload::{self, Upload, UploadMeter},
};
use crate::peers::{
    content::{ContentSource, ContentState, FileRange},
    fetch_state::Availability,
    protocol::{CONTENT_STATE, Route, etag, format_state, select},
};

type Answer = Response<Either<StreamBody<Upload>, Full<Bytes>>>;

/// Answers a request of the member with this key.
pub async fn answer(
    shared: &Arc<Shared>,
    pin: &KeyPin,
    meter: &Arc<UploadMeter>,
    request: Request<Incoming>,
) -> Answer {
    let node = shared.roster.borrow().by_pin(pin).map(|peer| peer.node.clone());
    let Some(node) = node else { return empty(StatusCode::FORBIDDEN) };
    let route = Route::parse(request.method(), request.uri().path());
    let status = match route {
        None => StatusCode::NOT_FOUND,
        Some(Route::Want(digest)) => {
            let is_accepted = shared.sources.iter().any(|it| it.request(&digest, &node));
            if is_accepted { StatusCode::ACCEPTED } else { StatusCode::FORBIDDEN }
        }
        Some(Route::Scrub(digest)) => {
            shared.sources.iter().for_each(|source| source.scrub(&digest, &node));
            StatusCode::ACCEPTED
        }
        Some(Route::Dataset(name)) => {
            let mut described = shared.sources.iter().filter_map(|it| it.describe(&name, &node));
            return match described.next() {
                Some(description) => Response::new(Either::Right(Full::from(description))),
                None => empty(StatusCode::NOT_FOUND),
            };
        }
        Some(Route::Head(digest)) => {
            return match find(shared, &digest, &node) {
                Ok((range, _)) => described(empty(StatusCode::OK), &digest, range.length),
                Err(availability) => absent(availability),
            };
        }
        Some(Route::Get(digest)) => {
            return match find(shared, &digest, &node) {
                Ok(stored) => content(shared, (pin, &node, meter), &request, &digest, stored).await,
                Err(availability) => absent(availability),
            };
        }
    };
    empty(status)
}

/// The file range of a content, and the source that has it.
type FoundContent = (FileRange, Arc<dyn ContentSource>);

/// Returns where the content is, or what is here instead.
fn find(shared: &Shared, digest: &Digest, node: &NodeName) -> Result<FoundContent, Availability> {
    let mut states = shared.sources.iter().map(|source| (source.find(digest, node), source));
    match states.find(|(state, _)| *state != ContentState::Absent) {
        Some((ContentState::Held(range), source)) => Ok((range, Arc::clone(source))),
        Some((ContentState::Fetching(received), _)) => Err(Availability::Fetching(received)),
        Some((ContentState::Wanted, _)) => Err(Availability::Wanted),
        Some((ContentState::Absent, _)) | None => Err(Availability::Absent),
    }
}

fn absent(availability: Availability) -> Answer {
    let mut answer = empty(StatusCode::NOT_FOUND);
    let state = format_state(availability);
    answer.headers_mut().extend(state.map(|state| (CONTENT_STATE, state)));
    answer
}

async fn content(
    shared: &Arc<Shared>,
    (pin, node, meter): (&KeyPin, &NodeName, &Arc<UploadMeter>),
    request: &Request<Incoming>,
    digest: &Digest,
    (range, source): FoundContent,
) -> Answer {
    let total = range.length;
    let selection = select(request.headers(), digest, total);
    let (status, first, length) = selection.response(total);
    let status = StatusCode::from_u16(status).expect("it is a status");
    let content_range = selection
        .content_range(total)
        .map(|range| (CONTENT_RANGE, HeaderValue::try_from(range).expect("it is visible ASCII")));
    if selection == Selection::Unsatisfiable {
        let mut answer = empty(status);
        answer.headers_mut().extend(content_range);
        return answer;
    }
    let Some(place) = shared.uploads.try_acquire(pin.clone()) else {
        let mut answer = empty(StatusCode::SERVICE_UNAVAILABLE);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    };
    let part = FileRange { path: range.path, offset: range.offset + first, length };
    match upload::open(shared, meter, (&part, Arc::clone(&source)), place).await {
        Ok(body) => {
            let mut answer = Response::new(Either::Left(body));
            *answer.status_mut() = status;
            answer.headers_mut().extend(content_range);
            described(answer, digest, length)
        }
        Err(error) => {
            let path = part.path.display();
            tracing::warn!(%digest, %path, %error, "content cannot be served");
            // It was complete when it was stored.
            source.scrub(digest, node);
            empty(StatusCode::NOT_FOUND)
        }
    }
}

fn described(mut answer: Answer, digest: &Digest, length: u64) -> Answer {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(ETAG, etag(digest));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Either::Right(Full::default()));
    *answer.status_mut() = status;
    answer
}

//! `GET` and `HEAD /v1/content/SHA256`, also with a name behind it: a content or a part of it.

use std::io::SeekFrom;

use axum::{
    body::Body,
    extract::{Extension, Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header},
};
use neptune_transfer::{Digest, range::Selection};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
};
use tokio_util::io::ReaderStream;

use super::{access::Peer, response, shared::Shared};
use crate::{error::Error, run::Run};

/// Bytes that are read from the disk at a time.
const CHUNK: usize = 256 * 1024;

/// Handles `GET` and `HEAD` of a content, whole or a range of its bytes.
pub async fn get(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    method: Method,
    Path(sha256): Path<Digest>,
    headers: HeaderMap,
) -> Response<Body> {
    let sha256 = sha256.to_string();
    let run = shared.aggregator.run();
    if matches!(peer, Peer::Key(_)) && !run.as_ref().is_some_and(|it| peer.is_node(it)) {
        return response::not_trusted();
    }
    let missing = || {
        let text = format!("content {sha256} is not here, or not for you");
        response::problem(StatusCode::NOT_FOUND, "DownloadFailed", text)
    };
    if !run.is_some_and(|it| is_readable(&peer, &it, &sha256)) {
        return missing();
    }
    let Some(path) = shared.aggregator.content(&sha256) else { return missing() };
    let opened = async {
        let file = File::open(&path).await?;
        let length = file.metadata().await?.len();
        Ok((file, length))
    };
    match opened.await {
        Ok((file, length)) => respond(&method, &headers, &sha256, file, length).await,
        Err(error) => response::error(&Error::file(path)(error)),
    }
}

/// Handles the request of a content by any name.
pub async fn get_named(
    state: State<Shared>,
    peer: Extension<Peer>,
    method: Method,
    Path((sha256, _)): Path<(Digest, String)>,
    headers: HeaderMap,
) -> Response<Body> {
    get(state, peer, method, Path(sha256), headers).await
}

fn is_readable(peer: &Peer, run: &Run, sha256: &str) -> bool {
    match peer {
        Peer::Anonymous => run.is_published(sha256),
        Peer::Controller => true,
        Peer::Key(_) => run.is_readable_by_nodes(sha256),
    }
}

async fn respond(
    method: &Method,
    headers: &HeaderMap,
    sha256: &str,
    mut file: File,
    length: u64,
) -> Response<Body> {
    let text = |name: HeaderName| headers.get(name).and_then(|it| it.to_str().ok());
    let tag = format!("\"{sha256}\"");
    let range = text(header::RANGE).filter(|_| method == Method::GET);
    let selection = Selection::new(range, text(header::IF_RANGE), &tag, length);
    let (status, first, count) = selection.response(length);
    let mut response = response::empty(StatusCode::from_u16(status).expect("it is a status"));
    let ascii = |text: String| HeaderValue::try_from(text).expect("it is visible ASCII");
    let set = response.headers_mut();
    if let Some(range) = selection.content_range(length) {
        set.insert(header::CONTENT_RANGE, ascii(range));
    }
    set.insert(header::ETAG, ascii(tag));
    set.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set.insert(header::CONTENT_LENGTH, HeaderValue::from(count));
    let media_type = HeaderValue::from_static("application/octet-stream");
    set.insert(header::CONTENT_TYPE, media_type);
    if method == Method::HEAD || count == 0 {
        return response;
    }
    if let Err(error) = file.seek(SeekFrom::Start(first)).await {
        return response::error(&Error::file(sha256)(error));
    }
    *response.body_mut() = Body::from_stream(ReaderStream::with_capacity(file.take(count), CHUNK));
    response
}

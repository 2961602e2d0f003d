//! Downloads the missing bytes of a partial download over http(s), including S3, and reports the
//! progress.

use std::time::Instant;

use neptune_hub::{registry_error, response_error};
use neptune_program::causes;
use neptune_transfer::range::from_offset;
use reqwest::{
    Response, Url,
    header::{
        CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_RANGE,
        LAST_MODIFIED, RANGE, TRANSFER_ENCODING,
    },
};
use tokio::sync::watch;

use super::{access::Access, connector::Connector};
use crate::{
    FetchProgress, ModelError,
    origin_meter::OriginMeter,
    progress::TransferRate,
    resume::{ResponseAction, ResponseHead, decide},
    storage::partial::PartialDownload,
};

/// Maximum number of bytes to read from the body of an error response.
const MAX_ERROR_BODY_BYTES: usize = 4 << 10;

/// The object to download over http(s).
pub struct HttpObject {
    pub url: Url,
    /// URL without its secrets, for errors.
    pub redacted_url: String,
    pub access: Access,
}

/// Sends one request, and appends the response until the download is complete. Counts the bytes in
/// `meter`, and keeps its rate.
pub async fn download(
    connector: &Connector,
    object: &HttpObject,
    partial: &mut PartialDownload,
    (progress, meter): (&watch::Sender<FetchProgress>, &OriginMeter),
) -> Result<(), ModelError> {
    let range = partial.range_request();
    let mut headers = HeaderMap::new();
    if let Some(range) = &range {
        let validator = range.validator.value();
        // S3 does not support If-Range. It answers 412 if If-Match fails.
        let condition = if object.access.is_signed() { IF_MATCH } else { IF_RANGE };
        headers.insert(RANGE, header_value(&from_offset(range.from)));
        headers.insert(condition, header_value(validator));
    }
    let response = connector.get(&object.url, &headers, &object.access).await?;
    let url = || object.redacted_url.clone();
    // A chunked body has an explicit end. Without it and without a length, the body ends when the
    // connection does, for any reason.
    let is_delimited = response.headers().contains_key(TRANSFER_ENCODING);
    match decide(range.as_ref(), &response_head(&response)) {
        ResponseAction::Complete => return Ok(()),
        ResponseAction::Append { total } => {
            partial.set_resumed();
            if let Some(total) = total.filter(|total| partial.total() != Some(*total)) {
                partial.set_total(total)?;
            }
        }
        ResponseAction::Replace { total: None, .. }
            if !is_delimited && !partial.has_expected_digest() =>
        {
            return Err(ModelError::UnknownLength { url: url() });
        }
        ResponseAction::Replace { total, validator } => partial.restart(total, validator).await?,
        ResponseAction::Restart(reason) => {
            partial.restart(None, None).await?;
            return Err(ModelError::ContentChanged { url: url(), reason: reason.to_owned() });
        }
        ResponseAction::Fail => return Err(status_error(connector, object, response).await),
    }
    partial.check_disk_space()?;
    receive_body(connector, object, response, partial, (progress, meter)).await
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn receive_body(
    connector: &Connector,
    object: &HttpObject,
    mut response: Response,
    partial: &mut PartialDownload,
    (progress, meter): (&watch::Sender<FetchProgress>, &OriginMeter),
) -> Result<(), ModelError> {
    let mut rate = TransferRate::new(Instant::now());
    report(progress, partial, 0);
    let mut stalled_at = Instant::now() + connector.stall_timeout;
    loop {
        let deadline = rate.report_at().map_or(stalled_at, |at| at.min(stalled_at));
        let next = tokio::time::timeout_at(deadline.into(), response.chunk()).await;
        let Ok(next) = next else {
            let now = Instant::now();
            if now >= stalled_at {
                return Err(connector.stalled(&object.redacted_url));
            }
            if let Some(per_second) = rate.add(0, now) {
                report(progress, partial, per_second);
            }
            continue;
        };
        let next =
            next.map_err(|error| interrupted(object, partial, causes(&error.without_url())))?;
        let Some(chunk) = next else { break };
        let more = chunk.len() as u64;
        let wait = meter.count(more);
        if partial.total().is_some_and(|total| partial.received() + more > total) {
            partial.restart(None, None).await?;
            let reason = "server sent more bytes than announced".to_owned();
            return Err(ModelError::ContentChanged { url: object.redacted_url.clone(), reason });
        }
        partial.append(chunk).await?;
        if let Some(per_second) = rate.add(more, Instant::now()) {
            report(progress, partial, per_second);
        }
        // What arrives meanwhile stays in the buffer of the connection, which slows the server.
        tokio::time::sleep(wait).await;
        stalled_at = Instant::now() + connector.stall_timeout;
    }
    match partial.total() {
        Some(total) if partial.received() < total => {
            let reason = "server sent fewer bytes than announced".to_owned();
            Err(interrupted(object, partial, reason))
        }
        Some(_) => Ok(()),
        None => partial.set_total(partial.received()),
    }
}

fn report(
    progress: &watch::Sender<FetchProgress>,
    partial: &PartialDownload,
    bytes_per_second: u64,
) {
    let (received, total) = (partial.received(), partial.total());
    progress.send_replace(FetchProgress::downloading(received, total, bytes_per_second));
}

fn interrupted(object: &HttpObject, partial: &PartialDownload, reason: String) -> ModelError {
    let total =
        partial.total().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
    let (url, received) = (object.redacted_url.clone(), partial.received());
    ModelError::Interrupted { url, received, total, reason }
}

async fn status_error(
    connector: &Connector,
    object: &HttpObject,
    mut response: Response,
) -> ModelError {
    if let Access::Hub(hub) = &object.access
        && hub.0.is_own(response.url())
    {
        return response_error(&response, &hub.1).into();
    }
    if let Access::Registry(access) = &object.access
        && access.registry.is_own(response.url())
    {
        return registry_error(&response, &access.address).into();
    }
    let status = response.status().as_u16();
    let mut body = Vec::new();
    if object.access.is_signed() {
        while let Ok(Ok(Some(chunk))) =
            tokio::time::timeout(connector.stall_timeout, response.chunk()).await
        {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ERROR_BODY_BYTES {
                break;
            }
        }
    }
    let detail = s3_error_code(&String::from_utf8_lossy(&body));
    ModelError::HttpStatus { url: object.redacted_url.clone(), status, detail }
}

/// The error code in the body of an S3 response, such as ` (NoSuchKey)`. Empty if there is none.
fn s3_error_code(body: &str) -> String {
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    match code {
        Some((code, _)) if code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric()) => {
            format!(" ({code})")
        }
        _ => String::new(),
    }
}

fn response_head(response: &Response) -> ResponseHead<'_> {
    let header =
        |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
    ResponseHead {
        status: response.status().as_u16(),
        content_length: response.content_length(),
        content_range: header(CONTENT_RANGE),
        etag: header(ETAG),
        last_modified: header(LAST_MODIFIED),
        date: header(DATE),
    }
}

fn header_value(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("the value is a number or came from a header")
}

//! Brings what a part lacks over http(s), S3 included, and says how far it is.

use std::time::Instant;

use reqwest::{
    Response, Url,
    header::{
        CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_RANGE,
        LAST_MODIFIED, RANGE, TRANSFER_ENCODING,
    },
};
use tokio::sync::watch;

use crate::{
    ModelError, Phase, Progress,
    dial::{Dialer, reasons},
    part::Part,
    progress::Rate,
    resume::{Answer, Verdict, judge},
};

/// Of a refusal's body so much is looked at.
const EXPLANATION: usize = 4 << 10;

/// Where the bytes are.
pub struct Place {
    pub url: Url,
    /// For errors.
    pub shown: String,
    /// Headers of a signed request, which goes to one host only.
    pub signed: Option<HeaderMap>,
}

/// Asks once, and appends what comes, until the part is whole.
pub async fn pull(
    dialer: &Dialer,
    place: &Place,
    part: &mut Part,
    progress: &watch::Sender<Progress>,
) -> Result<(), ModelError> {
    let asked = part.asked();
    let mut headers = place.signed.clone().unwrap_or_default();
    if let Some(asked) = &asked {
        let validator = asked.validator.value();
        // S3 knows no If-Range, and answers 412 to this.
        let condition = if place.signed.is_some() { IF_MATCH } else { IF_RANGE };
        headers.insert(RANGE, text(&format!("bytes={}-", asked.from)));
        headers.insert(condition, text(validator));
    }
    let response = dialer.get(&place.url, &headers, place.signed.is_some()).await?;
    // The end of a chunked body is told; else it is where the connection ends, for whatever reason.
    let is_measured = response.headers().contains_key(TRANSFER_ENCODING);
    match judge(asked.as_ref(), &answer(&response)) {
        Verdict::Whole => return Ok(()),
        Verdict::Append { total } => {
            part.continues();
            if let Some(total) = total.filter(|total| part.total() != Some(*total)) {
                part.learn(total)?;
            }
        }
        Verdict::Fresh { total: None, .. } if !is_measured && !part.is_verified_later() => {
            return Err(ModelError::Unmeasured { url: place.shown.clone() });
        }
        Verdict::Fresh { total, validator } => part.start_over(total, validator).await?,
        Verdict::StartOver(why) => {
            part.start_over(None, None).await?;
            return Err(ModelError::Changed { url: place.shown.clone(), why: why.to_owned() });
        }
        Verdict::Refused => return Err(refusal(dialer, place, response).await),
    }
    part.admit()?;
    take(dialer, place, response, part, progress).await
}

async fn take(
    dialer: &Dialer,
    place: &Place,
    mut response: Response,
    part: &mut Part,
    progress: &watch::Sender<Progress>,
) -> Result<(), ModelError> {
    let mut rate = Rate::new(Instant::now());
    tell(progress, part, 0);
    let mut stalled_at = Instant::now() + dialer.stalled_after;
    loop {
        let wake_at = rate.tell_at().map_or(stalled_at, |at| at.min(stalled_at));
        let next = tokio::time::timeout_at(wake_at.into(), response.chunk()).await;
        let Ok(next) = next else {
            let now = Instant::now();
            if now >= stalled_at {
                return Err(dialer.stalled(&place.shown));
            }
            if let Some(per_second) = rate.add(0, now) {
                tell(progress, part, per_second);
            }
            continue;
        };
        let Some(chunk) = next.map_err(|error| cut(place, part, reasons(&error)))? else { break };
        stalled_at = Instant::now() + dialer.stalled_after;
        let more = chunk.len() as u64;
        if part.total().is_some_and(|total| part.received() + more > total) {
            part.start_over(None, None).await?;
            let why = "the server sent more than it had said".to_owned();
            return Err(ModelError::Changed { url: place.shown.clone(), why });
        }
        part.push(chunk).await?;
        if let Some(per_second) = rate.add(more, Instant::now()) {
            tell(progress, part, per_second);
        }
    }
    match part.total() {
        Some(total) if part.received() < total => {
            Err(cut(place, part, "the server sent a part only".to_owned()))
        }
        Some(_) => Ok(()),
        None => part.learn(part.received()),
    }
}

fn tell(progress: &watch::Sender<Progress>, part: &Part, bytes_per_second: u64) {
    progress.send_modify(|progress| {
        *progress = Progress {
            received: part.received(),
            total: part.total(),
            bytes_per_second,
            phase: Phase::Downloading,
            trouble: None,
        };
    });
}

fn cut(place: &Place, part: &Part, why: String) -> ModelError {
    let total = part.total().map_or_else(|| "an unknown number of".to_owned(), |n| n.to_string());
    ModelError::Cut { url: place.shown.clone(), got: part.received(), total, why }
}

async fn refusal(dialer: &Dialer, place: &Place, mut response: Response) -> ModelError {
    let status = response.status().as_u16();
    let mut body = Vec::new();
    if place.signed.is_some() {
        while let Ok(Ok(Some(chunk))) =
            tokio::time::timeout(dialer.stalled_after, response.chunk()).await
        {
            body.extend_from_slice(&chunk);
            if body.len() > EXPLANATION {
                break;
            }
        }
    }
    let detail = s3_code(&String::from_utf8_lossy(&body));
    ModelError::Refused { url: place.shown.clone(), status, detail }
}

/// S3 says more than its status: `NoSuchKey`, `RequestTimeTooSkewed`.
fn s3_code(body: &str) -> String {
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    match code {
        Some((code, _)) if code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric()) => {
            format!(" ({code})")
        }
        _ => String::new(),
    }
}

fn answer(response: &Response) -> Answer<'_> {
    let header =
        |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
    Answer {
        status: response.status().as_u16(),
        content_length: response.content_length(),
        content_range: header(CONTENT_RANGE),
        etag: header(ETAG),
        last_modified: header(LAST_MODIFIED),
        date: header(DATE),
    }
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("it is a number, or came in a header")
}

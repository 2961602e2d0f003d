//! The HTTP client of the cloud worker: HTTP/1.1 over one keep-alive connection, with a timeout per
//! step. `edge` decides when to call.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use neptune_backoff::Backoff;
use neptune_cascade::breaker::BreakerSettings;
use tokio::{net::TcpStream, time::timeout};

use crate::error::Error;
use crate::predict::{PredictRequest, PredictResponse};
use crate::samples::Pixels;

/// Timeout of a whole call. `EdgeMesh` accepts every connection, so that the timeouts of single
/// steps do not limit it.
const TOTAL: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(1);
const REQUEST: Duration = Duration::from_secs(2);

/// When calls pause. While they fail, one call at a time is made, because `EdgeMesh` queues failing
/// calls. There is one caller, whose pauses need no jitter.
pub const BREAKER: BreakerSettings = BreakerSettings {
    single_calls_at: 1,
    pause: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
    jitter: 0.0,
    single_call_timeout: Duration::from_secs(10),
    ..BreakerSettings::DEFAULT
};

type Connection = SendRequest<Full<Bytes>>;

pub struct CloudClient {
    /// Host and port, as in the URL.
    authority: String,
    address: (String, u16),
    path: String,
    connection: Option<Connection>,
}

/// A failed exchange. Only a request on a stale connection is repeated.
enum Failure {
    Stale(String),
    Final(String),
}

impl CloudClient {
    /// A client for `POST <base_url>/<service>/predict`.
    ///
    /// # Errors
    /// [`Error::CloudUrl`] when `base_url` is not an `http://` URL with a host.
    pub fn new(base_url: &str, service: &str) -> Result<Self, Error> {
        let error =
            |reason: &str| Error::CloudUrl { url: base_url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = base_url.parse().map_err(|_| error("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(error("must begin with http://"));
        }
        let authority = uri.authority().ok_or_else(|| error("no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            authority: authority.to_string(),
            address: (host.to_owned(), authority.port_u16().unwrap_or(80)),
            path: format!("{}/{service}/predict", uri.path().trim_end_matches('/')),
            connection: None,
        })
    }

    /// The cloud worker's label for each image. Takes at most 5 s.
    ///
    /// # Errors
    /// [`Error::Call`] when the cloud worker cannot be reached, times out, or does not answer with
    /// one label per sample.
    pub async fn predict(&mut self, images: &[Pixels]) -> Result<Vec<usize>, Error> {
        let body = Bytes::from(
            serde_json::to_vec(&PredictRequest::new(images)).expect("numbers can be serialised"),
        );
        timeout(TOTAL, self.answer(body))
            .await
            .unwrap_or_else(|_| Err("no answer within 5 s".to_owned()))
            .and_then(|answer| answer.labels(images.len()))
            .map_err(|reason| Error::Call { address: self.authority.clone(), reason })
    }

    async fn answer(&mut self, body: Bytes) -> Result<PredictResponse, String> {
        if let Some(kept) = self.connection.take().filter(|kept| !kept.is_closed()) {
            match self.exchange(kept, body.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(reason)) => return Err(reason),
                Err(Failure::Stale(_)) => {}
            }
        }
        let fresh = timeout(CONNECT, self.connect())
            .await
            .map_err(|_| "no connection within 1 s".to_owned())??;
        self.exchange(fresh, body)
            .await
            .map_err(|(Failure::Stale(reason) | Failure::Final(reason))| reason)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let (host, port) = &self.address;
        let stream =
            TcpStream::connect((host.as_str(), *port)).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The task ends with the connection; its error is also the request's.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn exchange(
        &mut self,
        mut connection: Connection,
        body: Bytes,
    ) -> Result<PredictResponse, Failure> {
        let request = Request::post(&self.path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::Final(error.to_string()))?;
        let reply = timeout(REQUEST, read(&mut connection, request));
        let answer =
            reply.await.map_err(|_| Failure::Final("no answer within 2 s".to_owned()))??;
        self.connection = Some(connection);
        Ok(answer)
    }
}

async fn read(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
) -> Result<PredictResponse, Failure> {
    let stale_or_not = |error: hyper::Error| {
        if error.is_canceled() || error.is_closed() || error.is_incomplete_message() {
            Failure::Stale(error.to_string())
        } else {
            Failure::Final(error.to_string())
        }
    };
    connection.ready().await.map_err(stale_or_not)?;
    let response = connection.send_request(request).await.map_err(stale_or_not)?;
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| Failure::Final(error.to_string()))?
        .to_bytes();
    if !status.is_success() {
        let text: String = String::from_utf8_lossy(&body).chars().take(200).collect();
        return Err(Failure::Final(format!("{status}: {text}")));
    }
    serde_json::from_slice(&body)
        .map_err(|error| Failure::Final(format!("unreadable answer: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn path_is_the_base_url_with_the_service() {
        for (url, address, path) in [
            ("http://127.0.0.1:5000", ("127.0.0.1", 5000), "/demo/predict"),
            ("http://127.0.0.1:5000/", ("127.0.0.1", 5000), "/demo/predict"),
            ("http://cloud.default/big", ("cloud.default", 80), "/big/demo/predict"),
            ("http://[::1]:81", ("::1", 81), "/demo/predict"),
        ] {
            let client = CloudClient::new(url, "demo").unwrap();
            assert_eq!(
                (client.address.0.as_str(), client.address.1, client.path.as_str()),
                (address.0, address.1, path)
            );
        }
    }

    #[test]
    fn abandoned_call_does_not_block_the_next_before_its_timeout() {
        assert!(BREAKER.single_call_timeout > TOTAL);
    }

    #[test]
    fn invalid_urls_are_refused() {
        for url in ["", "127.0.0.1:5000", "https://cloud", "/big", "http://"] {
            assert!(matches!(CloudClient::new(url, "demo"), Err(Error::CloudUrl { .. })), "{url}");
        }
    }
}

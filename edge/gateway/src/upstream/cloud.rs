//! The client of the model server in the cloud: one call with its deadlines and its token. Whether
//! it is called, and again, is decided elsewhere.

use std::{fs, io, path::Path, time::Duration};

use bytes::{Bytes, BytesMut};
use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};
use neptune_cascade::sse::Parser;
use neptune_program::causes;
use parking_lot::RwLock;
use reqwest::{Certificate, Client, RequestBuilder, Response, redirect};
use tokio::time::{Instant, timeout_at};

use super::{
    call::{CloudAnswer, CloudRequest, bearer},
    cloud_grpc::GrpcClient,
    excerpt::{MAX_BYTES, excerpt},
    failure::{CloudError, classified_with, failed, out_of_time},
    path::Upper,
};
use crate::{
    config::Config,
    error::Error,
    protocol::{Payload, path::join},
    server::Wire,
};

/// The time that a client gives for the answer, in milliseconds.
pub const CLIENT_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// The time for the body of an error: the client waits for the edge's answer meanwhile.
const ERROR_BODY: Duration = Duration::from_millis(500);

/// The client of the model server in the cloud, or of a gateway in its place.
#[derive(Debug)]
pub struct CloudClient {
    client: Client,
    url: String,
    model_name: Option<String>,
    first_byte: Duration,
    max_answer: usize,
    token: RwLock<Option<HeaderValue>>,
    grpc: Option<GrpcClient>,
}

/// An answer of the cloud that is streamed.
#[derive(Debug)]
pub struct CloudStream {
    response: Response,
    deadline: Instant,
    /// The most time for an event whose first byte came.
    first_byte: Duration,
}

impl CloudClient {
    /// Builds the client of the configuration's cloud. Reads the CA file, not the token.
    ///
    /// # Errors
    /// The CA file, or the TLS library.
    pub fn new(config: &Config) -> Result<Option<Self>, Error> {
        let Some(cloud) = &config.cloud else { return Ok(None) };
        let grpc = cloud.grpc_url.as_deref();
        // Fails if the process has a provider already, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let extra = cloud.ca_file.as_deref().map(certificates).transpose()?.unwrap_or_default();
        #[expect(clippy::disallowed_methods, reason = "the one client of the cloud")]
        let builder = || {
            // The port is that of the URL.
            let addresses = cloud.addresses.iter().map(|(host, ip)| (host, (*ip, 0).into()));
            addresses
                .fold(Client::builder(), |builder, (host, address)| builder.resolve(host, address))
                .user_agent(concat!("neptune-gateway/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(config.timeouts.cloud_connect)
                .redirect(redirect::Policy::none())
                .no_proxy()
                .http1_only()
                .tcp_nodelay(true)
                .retry(reqwest::retry::never())
        };
        // A machine without system authorities can still use those in the CA file.
        let client = builder()
            .tls_certs_merge(extra.clone())
            .build()
            .or_else(|_| builder().tls_certs_only(extra).build())
            .map_err(|error| Error::Cloud(causes(&error)))?;
        Ok(Some(Self {
            client,
            url: cloud.url.clone(),
            model_name: cloud.model_name.clone(),
            first_byte: config.cloud_first_byte(),
            max_answer: config.limits.max_body_bytes,
            token: RwLock::default(),
            grpc: grpc.map(|url| GrpcClient::new(url, cloud, config)).transpose()?,
        }))
    }

    /// Returns the address of the cloud for calls of this kind.
    pub fn url(&self, wire: Wire) -> &str {
        match (wire, &self.grpc) {
            (Wire::Grpc, Some(grpc)) => grpc.url(),
            _ => &self.url,
        }
    }

    /// The address of a request, for messages.
    pub fn address(&self, request: &CloudRequest) -> String {
        match request.wire {
            Wire::Rest => join(&self.url, &request.path),
            Wire::Grpc => format!("{}{}", self.url(Wire::Grpc).trim_end_matches('/'), request.path),
        }
    }

    /// Returns the name of the model in the cloud; `None` if it is the one that clients use.
    pub fn model_name(&self) -> Option<&str> {
        self.model_name.as_deref()
    }

    /// Uses this token from now on. Returns whether it is another one.
    ///
    /// # Errors
    /// It has characters that a header cannot have. The text does not contain it.
    pub fn set_token(&self, token: Option<&str>) -> Result<bool, &'static str> {
        let header = |token: &str| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| "the token has characters that a header cannot have")?;
            value.set_sensitive(true);
            Ok::<_, &'static str>(value)
        };
        let token = token.map(header).transpose()?;
        let mut current = self.token.write();
        let is_other = *current != token;
        *current = token;
        Ok(is_other)
    }

    /// Uses the token of another client.
    pub fn inherit_token(&self, other: &Self) {
        let token = other.token.read().clone();
        *self.token.write() = token;
    }

    /// Reads a page of the cloud, such as metadata, of at most `max` bytes, within `limit`.
    ///
    /// # Errors
    /// The errors of [`CloudClient::call`], or the page has more bytes.
    pub async fn get(&self, path: &str, max: usize, limit: Duration) -> Result<Bytes, CloudError> {
        let call = self.authorized(self.client.get(join(&self.url, path)));
        let lost = |error| failed(false, causes(&error));
        let answer = call.timeout(limit).send().await.and_then(Response::error_for_status);
        let (mut answer, mut body) = (answer.map_err(lost)?, BytesMut::new());
        while let Some(chunk) = answer.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > max {
                return Err(failed(false, format!("the page has more than {max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Calls the cloud, and returns its whole answer.
    ///
    /// # Errors
    /// There is none in time, or it is not one.
    pub async fn call(&self, request: &CloudRequest) -> Result<CloudAnswer, CloudError> {
        if request.wire == Wire::Grpc {
            let token = self.token.read().clone();
            return match &self.grpc {
                Some(grpc) => grpc.call(request, token).await,
                None => Err(failed(false, "cloud.grpcUrl is not configured".to_owned())),
            };
        }
        let mut stream = self.open(request).await?;
        let mut body = BytesMut::new();
        while let Some(chunk) = stream.next().await? {
            if body.len() + chunk.len() > self.max_answer {
                let max = self.max_answer;
                return Err(failed(false, format!("the answer has more than {max} bytes")));
            }
            request.hold(body.len(), chunk.len())?;
            body.extend_from_slice(&chunk);
        }
        let upper = Upper::from_headers(stream.headers());
        Payload::new(stream.headers(), body.freeze())
            .map(|payload| CloudAnswer { payload, upper })
            .map_err(|error| CloudError::Invalid { received: error.to_string() })
    }

    fn authorized(&self, call: RequestBuilder) -> RequestBuilder {
        match self.token.read().clone() {
            Some(token) => call.header(AUTHORIZATION, token),
            None => call,
        }
    }

    /// Calls the cloud, and returns the head of its answer, which is a success.
    ///
    /// # Errors
    /// The errors of [`CloudClient::call`].
    pub async fn open(&self, request: &CloudRequest) -> Result<CloudStream, CloudError> {
        let deadline = Instant::from_std(request.deadline.at);
        let call = self.authorized(self.client.post(join(&self.url, &request.path)));
        let mut headers = request.headers.clone();
        request.body.describe(&mut headers);
        #[expect(clippy::disallowed_methods, reason = "I/O: the deadline of the first byte")]
        let now = Instant::now();
        // A gateway in the cloud's place then gives up in time, and answers with what it has.
        let rest = deadline.saturating_duration_since(now).as_millis();
        headers.insert(CLIENT_TIMEOUT, HeaderValue::from(u64::try_from(rest).unwrap_or(u64::MAX)));
        let call = call.headers(headers).body(request.body.body.clone());
        let first_byte = deadline.min(now + self.first_byte);
        let response = match timeout_at(first_byte, call.send()).await {
            Err(_) if first_byte == deadline => return Err(out_of_time("no answer in time")),
            Err(_) => return Err(failed(false, "no answer in time".to_owned())),
            Ok(Err(error)) => return Err(failed(!error.is_timeout(), causes(&error))),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        let headers = response.headers().clone();
        let mut stream = CloudStream { response, deadline, first_byte: self.first_byte };
        if status.is_success() {
            return Ok(stream);
        }
        let body = stream.beginning(MAX_BYTES).await;
        let token = self.token.read().clone();
        Err(classified_with(status, &headers, &excerpt(&body, bearer(token.as_ref()))))
    }
}

impl CloudStream {
    /// The headers of the answer.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The beginning of an event stream, up to its first event at least; `None` if it ends before.
    /// A server that sends a few bytes and then nothing has not answered.
    ///
    /// # Errors
    /// [`CloudStream::next`] fails, the event does not continue in time or is longer than `max`
    /// bytes, or there is no room for it among the answers to the request.
    pub async fn first_event(
        &mut self,
        max: usize,
        request: &CloudRequest,
    ) -> Result<Option<Bytes>, CloudError> {
        let (mut parser, mut held, mut limit) = (Parser::new(max), BytesMut::new(), self.deadline);
        let mut read = 0;
        loop {
            let Ok(next) = timeout_at(limit, self.next()).await else {
                if limit == self.deadline {
                    return Err(out_of_time("the first event did not come in time"));
                }
                return Err(failed(false, "the first event did not continue in time".to_owned()));
            };
            let Some(piece) = next? else { return Ok(None) };
            request.hold(held.len(), piece.len())?;
            held.extend_from_slice(&piece);
            parser.push(&piece);
            if held.len() > max {
                return Err(failed(false, format!("no event in {max} bytes of the stream")));
            }
            while let Some(frame) =
                parser.next_frame().map_err(|error| failed(false, error.to_string()))?
            {
                if frame.event.is_some() {
                    return Ok(Some(held.freeze()));
                }
                read = frame.range.end;
            }
            #[expect(clippy::disallowed_methods, reason = "I/O: the deadline of the first event")]
            let first_byte = Instant::now() + self.first_byte;
            // Comments keep the connection, and are no answer yet.
            if read == held.len() as u64 {
                limit = self.deadline;
            } else if limit == self.deadline {
                limit = first_byte.min(self.deadline);
            }
        }
    }

    /// The beginning of an error's body, as far as it comes in a short time.
    async fn beginning(&mut self, max: usize) -> BytesMut {
        #[expect(clippy::disallowed_methods, reason = "I/O: the deadline of an error's body")]
        let limit = self.deadline.min(Instant::now() + ERROR_BODY);
        let mut body = BytesMut::new();
        while body.len() < max
            && let Ok(Ok(Some(piece))) = timeout_at(limit, self.response.chunk()).await
        {
            body.extend_from_slice(&piece);
        }
        body.truncate(max);
        body
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, or the deadline passed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CloudError> {
        match timeout_at(self.deadline, self.response.chunk()).await {
            Err(_) => Err(out_of_time("the answer did not end in time")),
            Ok(Err(error)) => Err(failed(false, causes(&error))),
            Ok(Ok(chunk)) => Ok(chunk),
        }
    }
}

/// The token in a file.
///
/// # Errors
/// It cannot be read, or is empty.
pub fn read_token(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
    }
    Ok(token.to_owned())
}

fn certificates(path: &Path) -> Result<Vec<Certificate>, Error> {
    let failed = |reason: String| Error::Cloud(format!("CA file {}: {reason}", path.display()));
    let pem = fs::read(path).map_err(|error| failed(error.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if certificates.is_empty() => {
            Err(failed("it contains no certificate".to_owned()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(failed(causes(&error))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn page_without_an_end_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            stream.write_all(head).await.unwrap();
            // Until the client goes away.
            while stream.write_all(&[b' '; 1 << 12]).await.is_ok() {}
        });
        let config = json!({
            "service": "s", "protocol": "oip", "listen": "127.0.0.1:0",
            "edge": {"address": "127.0.0.1:1"},
            "hardExample": {"algorithm": "MaxProbability", "threshold": 0.8},
            "cloud": {"url": format!("http://{address}")},
        });
        let config = Config::parse(config.to_string().as_bytes()).unwrap();
        let client = CloudClient::new(&config).unwrap().unwrap();
        let page = client.get("/v2/models/m", 1 << 20, Duration::from_mins(1)).await;
        assert_eq!(page.unwrap_err().to_string(), "the page has more than 1048576 bytes");
        server.await.unwrap();
    }
}

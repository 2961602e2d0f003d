//! Connects to the join server, verifies it, and sends the request.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use neptune_join::{
    JOIN_PATH, JOIN_SERVER_NAME, JoinAnswer, JoinRefusal, JoinRequest, MAX_JOIN_BODY, RefusalReason,
};
use neptune_pinned_tls::authority_client_config;
use neptune_program::root_cause;
use neptune_wire::KeyPin;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    preflight::JoinServer,
    step::{Failure, Reason, SAME_LINE, Step, after_refusal},
};

/// How long connecting may take, with the resolution of the name; and again the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the server, and verifies that the authority with this pin signed its certificate.
///
/// # Errors
/// [`Reason::JoinUnreachable`] and [`Reason::ServerNotTrusted`]. Nothing but the handshake was sent.
pub async fn connect(
    server: &JoinServer,
    authority: &KeyPin,
) -> Result<TlsStream<TcpStream>, Failure> {
    let address = server.address();
    let unreachable = |why: &str| {
        Failure::new(
            Step::Connect,
            Reason::JoinUnreachable,
            format!("no connection to the join server {address}: {why}"),
            format!(
                "check address and port (kubectl -n neptune-system get service; the NodePort of the join server is \
                 30884 by default) and firewalls between; then {SAME_LINE}"
            ),
        )
    };
    let late = |_| unreachable(&format!("no response within {} s", CONNECT_TIMEOUT.as_secs()));
    let connected = TcpStream::connect((server.host.as_str(), server.port));
    let stream = timeout(CONNECT_TIMEOUT, connected).await.map_err(late)?;
    let stream = stream.map_err(|error| unreachable(&error.to_string()))?;
    let name = ServerName::try_from(JOIN_SERVER_NAME).expect("the constant is a DNS name");
    let config = Arc::new(authority_client_config(authority.clone(), name));
    let handshake = TlsConnector::from(config).connect(server.name.clone(), stream);
    match timeout(CONNECT_TIMEOUT, handshake).await.map_err(late)? {
        Ok(stream) => Ok(stream),
        Err(error) if is_distrust(&error) => Err(Failure::new(
            Step::Connect,
            Reason::ServerNotTrusted,
            format!("{address} is not the join server of the token's fleet: {error}"),
            format!(
                "check the address, and proxies that replace certificates; if the fleet has a new authority, run \
                 `neptune-cloud enroll` again; else {SAME_LINE}"
            ),
        )),
        Err(error) => Err(unreachable(&format!("it does not answer with TLS: {error}"))),
    }
}

/// Sends the request over a verified connection, and returns the answer.
///
/// # Errors
/// The server refused the request, or there is no usable answer.
pub async fn request(
    stream: TlsStream<TcpStream>,
    server: &JoinServer,
    request: &JoinRequest,
) -> Result<JoinAnswer, Failure> {
    let lost = |why: &str| {
        let remedy =
            format!("{SAME_LINE}: the server issues the certificate again for the same key");
        let problem = format!("the join server {} did not answer: {why}", server.address());
        Failure::new(Step::Request, Reason::AnswerLost, problem, remedy)
    };
    let invalid = |why: &str| {
        let remedy = "check that the URL is that of `neptune-cloud enroll`, and compare the versions of \
                      neptune-cloud and neptune-edge; then run the same line again";
        let problem = format!("the answer of {} cannot be used: {why}", server.address());
        Failure::new(Step::Request, Reason::AnswerInvalid, problem, remedy)
    };
    let body = serde_json::to_vec(request).map_err(|error| invalid(&error.to_string()))?;
    let answer = timeout(ANSWER_TIMEOUT, send(stream, server, body)).await;
    let late = |_| lost(&format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
    let (status, body) = match answer.map_err(late)? {
        Ok(answer) => answer,
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(invalid(&format!("it is longer than {MAX_JOIN_BODY} bytes")));
        }
        Err(error) => return Err(lost(&root_cause(&*error))),
    };
    if status == StatusCode::OK {
        return serde_json::from_slice(&body).map_err(|error| invalid(&error.to_string()));
    }
    match serde_json::from_slice::<JoinRefusal>(&body) {
        Ok(JoinRefusal { reason, message }) => Err(Failure::new(
            Step::Request,
            Reason::Refused(reason),
            message,
            after_refusal(reason, request.node.as_str()),
        )),
        // The server has no place for the connection now; that answer is no JSON.
        Err(_) if is_busy(status) => {
            let reason = RefusalReason::TooManyRequests;
            let problem = format!("the join server {} is busy: {status}", server.address());
            let remedy = after_refusal(reason, request.node.as_str());
            Err(Failure::new(Step::Request, Reason::Refused(reason), problem, remedy))
        }
        Err(_) => Err(invalid(&format!("its status is {status}"))),
    }
}

async fn send(
    stream: TlsStream<TcpStream>,
    server: &JoinServer,
    body: Vec<u8>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(JOIN_PATH)
        .header(header::HOST, server.address())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_JOIN_BODY).collect().await?;
        Ok((status, body.to_bytes()))
    };
    let connection = tokio::spawn(connection);
    let answer = exchange.await;
    connection.abort();
    answer
}

fn is_busy(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
    )
}

/// Whether a failed handshake means that the server is another one than the pin demands.
fn is_distrust(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::General(_)))
}

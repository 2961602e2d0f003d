//! Outages of streams: two scripted servers of streamed completions.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};

use crate::{
    load::Traffic,
    proxy::Fault,
    rig::{Rig, Sizes},
    run,
};

/// Tokens of an answer.
const TOKENS: usize = 12;
/// Pause between two tokens of a stream.
const PAUSE: Duration = Duration::from_millis(2);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A server of one model. Its tokens have the probability that is the question.
async fn server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let service = service_fn(move |request| answer(name, request));
            // An error is a client that went away.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

async fn answer(
    name: &'static str,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let question: Value = serde_json::from_slice(&body).unwrap_or_default();
    let probability: f64 = question["messages"][0]["content"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.9);
    let choice = |index: usize| {
        let text = format!("{name}{index} ");
        let mut choice = json!({"index": 0, "delta": {"content": text}});
        if question["logprobs"] == true {
            let top = json!([{"token": text, "logprob": probability.ln()}]);
            choice["logprobs"] = json!({"content": [
                {"token": text, "logprob": probability.ln(), "top_logprobs": top}
            ]});
        }
        choice
    };
    let (kind, body) = if question["stream"] == true {
        let mut events: Vec<String> = (0..TOKENS)
            .map(|index| format!("data: {}\n\n", json!({"choices": [choice(index)]})))
            .collect();
        events.push("data: [DONE]\n\n".to_owned());
        let events = stream::unfold(events.into_iter(), async |mut events| {
            let event = events.next()?;
            sleep(PAUSE).await;
            Some((Ok(Frame::data(Bytes::from(event))), events))
        });
        ("text/event-stream", StreamBody::new(events).boxed_unsync())
    } else {
        let mut whole = choice(0);
        whole["message"] = json!({"role": "assistant", "content": "whole"});
        let whole = json!({ "choices": [whole] }).to_string();
        ("application/json", Full::from(whole).boxed_unsync())
    };
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(answer)
}

/// All tokens of one server and the end; `None` for a stream that was cut with an error event. A
/// mixture of two answers is neither.
fn is_whole(body: &[u8]) -> Option<bool> {
    let text = String::from_utf8_lossy(body);
    let count =
        |name: &str| (0..TOKENS).filter(|at| text.contains(&format!("{name}{at} "))).count();
    let (edge, cloud) = (count("edge"), count("cloud"));
    let is_mixed = edge > 0 && cloud > 0;
    let is_cut = text.contains(r#"data: {"error":"#) && !text.contains("[DONE]");
    if is_cut && !is_mixed && cloud > 0 {
        return None;
    }
    Some(!is_mixed && edge + cloud == TOKENS && text.ends_with("data: [DONE]\n\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_outage_of_the_cloud_cuts_a_held_stream() {
    outages("Buffer").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_of_the_cloud_cuts_few_streams_and_mixes_none() {
    outages("Prefix").await;
}

async fn outages(streaming: &str) {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes::of_environment(Fault::STREAM.len(), 5);
    let (edge, cloud) = (server("edge").await, server("cloud").await);
    let config = json!({
        "protocol": "openai", "cloud": {"url": "/v1", "modelName": "big"}, "streaming": streaming,
    });
    println!("streaming: {streaming}");
    let cuts = streaming != "Buffer";
    let rig = Rig::start(folder, Vec::new(), (edge, cloud), &sizes, config).await;
    // Confidences of 0.30 to 0.99 in no particular order.
    let body = |number: usize| {
        let p = 0.3 + 0.69 * f64::from(u32::try_from(number * 61 % 100).unwrap()) / 100.0;
        let message = json!({"role": "user", "content": p.to_string()});
        json!({"model": "small", "stream": true, "messages": [message]}).to_string()
    };
    let path = "/v1/chat/completions";
    run(rig, Traffic { path, body: Box::new(body), is_whole, cuts }, &Fault::STREAM, &sizes).await;
}

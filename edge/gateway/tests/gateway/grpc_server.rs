//! A scripted model server and a client of gRPC. Both are tonic's, so frames and statuses are
//! checked by another implementation than the gateway's.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Request as HttpRequest, Response as HttpResponse, body::Incoming,
    header::HeaderValue, server::conn::http2, service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use neptune_gateway::protocol::grpc::inference::{
    InferTensorContents, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelMetadataResponse, model_infer_request::InferInputTensor,
    model_infer_response::InferOutputTensor,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc, UnaryService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use crate::harness::{Setup, merge};

pub const SERVICE: &str = "/inference.GRPCInferenceService/";

type Infer = dyn Fn(&ModelInferRequest) -> Script + Send + Sync;
type Answered<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// What a server does with a `ModelInfer`.
pub enum Script {
    Answer(Box<ModelInferResponse>),
    Fail(Status),
    Never,
}

pub struct GrpcServer {
    pub address: SocketAddr,
    shared: Shared,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    received: Arc<Mutex<Vec<(HeaderMap, ModelInferRequest)>>>,
    script: Arc<Mutex<Arc<Infer>>>,
}

impl GrpcServer {
    pub async fn start(
        infer: impl Fn(&ModelInferRequest) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self::serve(None, infer).await
    }

    pub async fn serve(
        tls: Option<TlsAcceptor>,
        infer: impl Fn(&ModelInferRequest) -> Script + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script: Arc<Infer> = Arc::new(infer);
        let received = Arc::default();
        let shared = Shared { received, script: Arc::new(Mutex::new(script)) };
        let served = shared.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (shared, tls) = (served.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => connection(stream, shared).await,
                        // A client that does not trust the server goes away.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                connection(stream, shared).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, shared, accepting }
    }

    pub fn received(&self) -> Vec<(HeaderMap, ModelInferRequest)> {
        self.shared.received.lock().unwrap().clone()
    }

    /// Answers otherwise from now on, and forgets what was received.
    pub fn become_script(
        &self,
        infer: impl Fn(&ModelInferRequest) -> Script + Send + Sync + 'static,
    ) {
        *self.shared.script.lock().unwrap() = Arc::new(infer);
        self.shared.received.lock().unwrap().clear();
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Shared) {
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Status>(answer(request, shared).await) }
    });
    // An error is a client that went away.
    let builder = http2::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: HttpRequest<Incoming>, shared: Shared) -> HttpResponse<Body> {
    assert_eq!(request.headers()["te"], "trailers");
    match request.uri().path().strip_prefix(SERVICE) {
        Some("ModelInfer") => {
            let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
            Grpc::new(codec).unary(Infering(request.headers().clone(), shared), request).await
        }
        Some("ModelMetadata") => {
            let codec = ProstCodec::<ModelMetadataResponse, ModelMetadataRequest>::default();
            Grpc::new(codec).unary(Metadata, request).await
        }
        // A stream that returns what it gets, piece by piece.
        Some("ModelStreamInfer") => {
            let trailers = HeaderMap::from_iter([
                ("grpc-status".parse().unwrap(), HeaderValue::from_static("0")),
                ("x-end".parse().unwrap(), HeaderValue::from_static("1")),
            ]);
            let body = request.into_body().with_trailers(async { Some(Ok(trailers)) });
            let mut answer = HttpResponse::new(Body::new(body));
            answer
                .headers_mut()
                .insert("content-type", HeaderValue::from_static("application/grpc"));
            answer
        }
        _ => Status::unimplemented("no such method at the edge").into_http(),
    }
}

struct Infering(HeaderMap, Shared);

impl UnaryService<ModelInferRequest> for Infering {
    type Response = ModelInferResponse;
    type Future = Answered<ModelInferResponse>;

    fn call(&mut self, request: Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let script = self.1.script.lock().unwrap().clone();
        self.1.received.lock().unwrap().push((self.0.clone(), request.clone()));
        Box::pin(async move {
            match script(&request) {
                Script::Answer(answer) => {
                    let mut answer = Response::new(*answer);
                    answer.metadata_mut().insert("x-server", "1".parse().unwrap());
                    Ok(answer)
                }
                Script::Fail(status) => Err(status),
                Script::Never => std::future::pending().await,
            }
        })
    }
}

struct Metadata;

impl UnaryService<ModelMetadataRequest> for Metadata {
    type Response = ModelMetadataResponse;
    type Future = Answered<ModelMetadataResponse>;

    fn call(&mut self, request: Request<ModelMetadataRequest>) -> Self::Future {
        let name = request.into_inner().name;
        Box::pin(
            async move { Ok(Response::new(ModelMetadataResponse { name, ..Default::default() })) },
        )
    }
}

fn typed(numbers: &[f32]) -> InferTensorContents {
    InferTensorContents { fp32_contents: numbers.to_vec(), ..Default::default() }
}

pub fn floats(numbers: &[f32]) -> Bytes {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(raw: &[u8]) -> Vec<f32> {
    raw.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// A request whose rows have these probabilities of the first class, and a second input.
pub fn rows(firsts: &[f32], is_raw: bool) -> ModelInferRequest {
    let count = i64::try_from(firsts.len()).unwrap();
    let texts: Vec<Bytes> = (0..firsts.len()).map(|row| Bytes::from("t".repeat(row))).collect();
    let input = |name: &str, datatype: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![count, 1],
        ..Default::default()
    };
    let mut request = ModelInferRequest {
        model_name: "small".to_owned(),
        id: "7".to_owned(),
        inputs: vec![input("x", "FP32"), input("text", "BYTES")],
        ..Default::default()
    };
    if is_raw {
        let text =
            |text: &Bytes| [&u32::try_from(text.len()).unwrap().to_le_bytes(), &text[..]].concat();
        request.raw_input_contents =
            vec![floats(firsts), texts.iter().flat_map(text).collect::<Vec<u8>>().into()];
    } else {
        request.inputs[0].contents = Some(typed(firsts));
        let texts = InferTensorContents { bytes_contents: texts, ..Default::default() };
        request.inputs[1].contents = Some(texts);
    }
    request
}

/// A strict model, which answers in the form of the request.
pub fn model(name: &str, request: &ModelInferRequest, score: impl Fn(f32) -> f32) -> Script {
    if request.model_name != name {
        return Script::Fail(Status::not_found(format!("no model {}", request.model_name)));
    }
    let is_raw = !request.raw_input_contents.is_empty();
    let invalid = |why: &str| Script::Fail(Status::invalid_argument(why));
    let [x, text] = &request.inputs[..] else { return invalid("two inputs") };
    let (x_values, texts) = if is_raw {
        let [x, text] = &request.raw_input_contents[..] else { return invalid("two contents") };
        let mut texts = 0;
        let mut rest = &text[..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            rest = &after[u32::from_le_bytes(*length) as usize..];
            texts += 1;
        }
        (numbers(x), texts)
    } else {
        let contents = |input: &InferInputTensor| input.contents.clone().unwrap();
        (contents(x).fp32_contents, contents(text).bytes_contents.len())
    };
    let shape = vec![i64::try_from(x_values.len()).unwrap(), 1];
    if x.shape != shape || text.shape != shape || texts != x_values.len() {
        return invalid("shapes and contents differ");
    }
    let scores: Vec<f32> =
        x_values.iter().map(|value| score(*value)).flat_map(|score| [score, 1.0 - score]).collect();
    let mut output = InferOutputTensor {
        name: "p".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![shape[0], 2],
        ..Default::default()
    };
    let mut raw = Vec::new();
    if is_raw {
        raw.push(floats(&scores));
    } else {
        output.contents = Some(typed(&scores));
    }
    Script::Answer(Box::new(ModelInferResponse {
        model_name: name.to_owned(),
        model_version: "1".to_owned(),
        id: request.id.clone(),
        outputs: vec![output],
        raw_output_contents: raw,
        ..Default::default()
    }))
}

pub fn edge_model(request: &ModelInferRequest) -> Script {
    model("small", request, |first| first)
}

pub fn cloud_model(request: &ModelInferRequest) -> Script {
    model("big", request, |_| 0.0)
}

/// The scores in an answer.
pub fn scores(answer: &ModelInferResponse) -> Vec<f32> {
    match answer.raw_output_contents.first() {
        Some(raw) => numbers(raw),
        None => answer.outputs[0].contents.clone().unwrap().fp32_contents,
    }
}

/// A gateway for gRPC between these addresses. Nobody answers its REST addresses.
pub async fn setup(edge: SocketAddr, cloud: SocketAddr, changes: Value) -> Setup {
    let nobody = crate::harness::dead_address();
    let mut config = json!({
        "grpcListen": "127.0.0.1:0",
        "edge": {"grpcAddress": edge.to_string()},
        "cloud": {"grpcUrl": format!("http://{cloud}"), "modelName": "big"},
    });
    merge(&mut config, changes);
    Setup::start(nobody, Some(nobody), config).await
}

/// Connects a gRPC client to the gateway.
pub async fn channel(setup: &Setup) -> Channel {
    let address = setup.running().grpc_address.unwrap();
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// Calls a method with one message each way, with this metadata.
pub async fn call<I, O>(
    setup: &Setup,
    method: &str,
    metadata: &[(&'static str, &str)],
    message: I,
) -> Result<Response<O>, Status>
where
    I: prost::Message + 'static,
    O: prost::Message + Default + 'static,
{
    let mut client = tonic::client::Grpc::new(channel(setup).await);
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    let path = format!("{SERVICE}{method}").parse().unwrap();
    client.unary(request, path, ProstCodec::<I, O>::default()).await
}

pub async fn infer(
    setup: &Setup,
    metadata: &[(&'static str, &str)],
    message: ModelInferRequest,
) -> Result<Response<ModelInferResponse>, Status> {
    call(setup, "ModelInfer", metadata, message).await
}

/// Calls `ModelInfer` on an open channel.
pub async fn infer_on(
    channel: Channel,
    request: Request<ModelInferRequest>,
) -> Result<Response<ModelInferResponse>, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = format!("{SERVICE}ModelInfer").parse().unwrap();
    client.unary(request, path, ProstCodec::default()).await
}

/// Calls `ModelInfer` of the gateway under another authority.
pub async fn infer_at(
    setup: &Setup,
    origin: &str,
    message: ModelInferRequest,
) -> Result<Response<ModelInferResponse>, Status> {
    let address = setup.running().grpc_address.unwrap();
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.origin(origin.parse().unwrap()).connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = format!("{SERVICE}ModelInfer").parse().unwrap();
    client.unary(Request::new(message), path, ProstCodec::default()).await
}

/// Sends a body as it is, and returns the headers of the answer with the trailers.
pub async fn raw_infer(setup: &Setup, headers: &[(&str, &str)], body: Bytes) -> HeaderMap {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let address = setup.running().grpc_address.unwrap();
    let mut request = HttpRequest::post(format!("http://{address}{SERVICE}ModelInfer"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/grpc".parse().unwrap())
    );
    let (head, body) = answer.into_parts();
    let mut headers = head.headers;
    headers.extend(body.collect().await.unwrap().trailers().cloned().unwrap_or_default());
    headers
}

pub fn decision<T>(answer: &Response<T>) -> (String, String) {
    let text = |name| answer.metadata().get(name).map_or("", |value| value.to_str().unwrap());
    (text("x-neptune-answered-by").to_owned(), text("x-neptune-decision").to_owned())
}

/// Returns the expected result of [`decision`].
pub fn parts(answered_by: &str, decision: &str) -> (String, String) {
    (answered_by.to_owned(), decision.to_owned())
}

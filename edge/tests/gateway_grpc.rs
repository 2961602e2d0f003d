//! A gateway with gRPC that the built agent runs with real Docker, in front of a model server with
//! gRPC in a container. Both models are tonic servers in the test: the container relays its gRPC
//! port to the one of the edge, and the gateway calls the one of the cloud.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    future::Future,
    net::SocketAddr,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, FileServer, docker, eventually, free_port, unique,
};
use hyper::{Request as HttpRequest, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use neptune_gateway::protocol::grpc::inference::{
    InferTensorContents, ModelInferRequest, ModelInferResponse,
    model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
};
use neptune_harness::{eventually_async, eventually_some, workspace::program};
use neptune_wire::{GatewayProblemReason, Phase, StatusReport};
use serde_json::json;
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc, UnaryService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

const MODEL: &str = "default/inferencemodels/small";
const SERVICE: &str = "default/jointinferenceservices/s";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const TOKEN: &str = "the-token";

/// Answers the health check, and relays the port of gRPC to a server of this machine.
const SERVER: &str = "mkdir -p /tmp/v2/health && echo ok > /tmp/v2/health/ready; \
    busybox nc -ll -p GRPC -e busybox nc 127.0.0.1 MODEL & exec busybox httpd -f -p PORT -h /tmp";

/// A model over gRPC, as strict as a real one.
#[derive(Clone)]
struct Model {
    name: &'static str,
    /// The score of the first class for an input.
    score: fn(f32) -> f32,
    token: Option<&'static str>,
    rows: Arc<AtomicU64>,
}

impl Model {
    async fn serve(
        name: &'static str,
        score: fn(f32) -> f32,
        token: Option<&'static str>,
    ) -> (SocketAddr, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let model = Self { name, score, token, rows: Arc::default() };
        let served = model.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let model = served.clone();
                let service = service_fn(move |request: HttpRequest<Incoming>| {
                    let model = model.clone();
                    async move {
                        if request.uri().path() != INFER {
                            return Ok(Status::unimplemented("no such method").into_http::<Body>());
                        }
                        let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
                        Ok::<_, Status>(Grpc::new(codec).unary(model, request).await)
                    }
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        (address, model)
    }

    fn answer(&self, request: &Request<ModelInferRequest>) -> Result<ModelInferResponse, Status> {
        let sent = request.metadata().get("authorization").and_then(|sent| sent.to_str().ok());
        let expected = self.token.map(|token| format!("Bearer {token}"));
        if expected.as_deref().is_some_and(|expected| sent != Some(expected)) {
            return Err(Status::unauthenticated("another token"));
        }
        let request = request.get_ref();
        if request.model_name != self.name {
            return Err(Status::not_found(format!("no model {}", request.model_name)));
        }
        let [input] = &request.inputs[..] else {
            return Err(Status::invalid_argument("one input"));
        };
        let values = input.contents.clone().unwrap_or_default().fp32_contents;
        let rows = i64::try_from(values.len()).unwrap();
        if input.shape != [rows, 1] {
            return Err(Status::invalid_argument("shape and contents differ"));
        }
        self.rows.fetch_add(rows.unsigned_abs(), Ordering::SeqCst);
        let scores = values.iter().map(|value| (self.score)(*value));
        let scores = scores.flat_map(|score| [score, 1.0 - score]).collect();
        Ok(ModelInferResponse {
            model_name: self.name.to_owned(),
            model_version: "3".to_owned(),
            outputs: vec![InferOutputTensor {
                name: "p".to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![rows, 2],
                contents: Some(InferTensorContents { fp32_contents: scores, ..Default::default() }),
                ..Default::default()
            }],
            ..Default::default()
        })
    }
}

impl UnaryService<ModelInferRequest> for Model {
    type Response = ModelInferResponse;
    type Future =
        Pin<Box<dyn Future<Output = Result<Response<ModelInferResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<ModelInferRequest>) -> Self::Future {
        let answer = self.answer(&request).map(Response::new);
        Box::pin(std::future::ready(answer))
    }
}

/// The answer to a batch: who answered each row, and the scores of the first class.
#[derive(Debug, PartialEq)]
struct Answer {
    by: String,
    firsts: Vec<f32>,
}

/// A batch whose second and fourth row are hard.
const ROWS: [f32; 4] = [0.875, 0.5, 0.9375, 0.625];

async fn ask(channel: &Channel) -> Result<Answer, Status> {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![4, 1],
        contents: Some(InferTensorContents { fp32_contents: ROWS.to_vec(), ..Default::default() }),
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: "small".to_owned(),
        inputs: vec![input],
        ..Default::default()
    };
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
    let path = INFER.parse().unwrap();
    let answer = client.unary(Request::new(request), path, codec).await?;
    let by = answer.metadata().get("x-neptune-answered-by").unwrap().to_str().unwrap().to_owned();
    let scores = answer.get_ref().outputs[0].contents.clone().unwrap().fp32_contents;
    Ok(Answer { by, firsts: scores.into_iter().step_by(2).collect() })
}

struct Node {
    agent: Agent,
    cloud: Cloud,
    model_image: BusyboxImage,
    gateway_image: BusyboxImage,
    worker: String,
    server: String,
    /// Ports of the gateway for REST and gRPC.
    ports: [u16; 2],
    /// Ports of the model server for REST and gRPC.
    model_ports: [u16; 2],
    big: SocketAddr,
    _broker: Broker,
    files: FileServer,
}

impl Node {
    async fn start(small: SocketAddr, big: SocketAddr) -> Self {
        let broker = Broker::start().await;
        let mut agent = Agent::new(&broker.url());
        let secrets = agent.dir.path().join("secrets");
        fs::create_dir(&secrets).unwrap();
        agent.extra = vec!["--secret-dir".to_owned(), secrets.display().to_string()];
        let cloud = Cloud::connect(&agent);
        agent.start();
        let node = Self {
            agent,
            cloud,
            model_image: BusyboxImage::import(),
            gateway_image: BusyboxImage::with_programs(&[program("neptune-gateway")]),
            worker: unique("s-edge"),
            server: unique("small"),
            ports: [free_port(), free_port()],
            model_ports: [free_port(), free_port()],
            big,
            _broker: broker,
            files: FileServer::serve(b"model").await,
        };
        node.serve_model(small).await;
        node
    }

    async fn serve_model(&self, small: SocketAddr) {
        let [port, grpc] = self.model_ports;
        let script = SERVER.replace("PORT", &port.to_string()).replace("GRPC", &grpc.to_string());
        let script = script.replace("MODEL", &small.port().to_string());
        self.cloud.insert(
            MODEL,
            &json!({"serving": {
                "name": self.server, "modelName": "small", "image": self.model_image.0,
                "port": port, "grpcPort": grpc, "reload": "replace",
                "command": ["/bin/sh", "-c"], "args": [script],
                "model": {"version": "3", "url": self.files.url, "directory": "/models/small"},
                "health": {
                    "httpPath": "/v2/health/ready", "periodMs": 200, "timeoutMs": 2000,
                    "startWithinMs": 10000, "probationMs": 500,
                },
            }}),
        );
        let is_served = |report: &StatusReport| {
            report.serving.as_ref().is_some_and(|it| it.serving_version.as_deref() == Some("3"))
        };
        self.cloud.status(MODEL, "serving", is_served).await;
    }

    fn insert(&self, threshold: f64) {
        let ([rest, grpc], [model, model_grpc]) = (self.ports, self.model_ports);
        let config = json!({
            "service": "s", "protocol": "oip",
            "listen": format!("127.0.0.1:{rest}"), "grpcListen": format!("127.0.0.1:{grpc}"),
            "edge": {
                "address": format!("127.0.0.1:{model}"),
                "grpcAddress": format!("127.0.0.1:{model_grpc}"),
            },
            "cloud": {
                "url": "http://127.0.0.1:9", "grpcUrl": format!("http://{}", self.big),
                "modelName": "big",
            },
            "hardExample": {"algorithm": "MaxProbability", "threshold": threshold},
        });
        let metadata = json!({"namespace": "default", "name": "s", "uid": "u"});
        self.cloud.insert(
            SERVICE,
            &json!({"metadata": metadata, "workers": [{
                "name": self.worker, "role": "edge", "image": self.gateway_image.0,
                "command": ["/bin/neptune-gateway"],
                "args": ["run", "--config", "/etc/neptune-gateway/gateway.json"],
                "env": {"WORKER_NAME": self.worker, "SERVICE_NAME": "s", "NAMESPACE": "default"},
                "gateway": {"server": "small", "tokenFile": "llm", "config": config},
            }]}),
        );
    }

    /// A client of the gateway, once it listens.
    async fn channel(&self) -> Channel {
        let url = format!("http://127.0.0.1:{}", self.ports[1]);
        let endpoint = Channel::from_shared(url).unwrap();
        eventually_some("the gateway's gRPC", async || endpoint.connect().await.ok()).await
    }

    fn secret(&self) -> PathBuf {
        self.agent.dir.path().join("secrets/llm")
    }

    /// Replaces the token as tools do that rotate secrets.
    fn write_token(&self, token: &str) {
        let new = self.agent.dir.path().join("secrets/new");
        fs::write(&new, token).unwrap();
        fs::rename(new, self.secret()).unwrap();
    }

    async fn running(&self, what: &str, matches: impl Fn(&StatusReport) -> bool) -> StatusReport {
        self.cloud
            .status(SERVICE, what, |report| report.phase == Phase::Running && matches(report))
            .await
    }

    /// Waits until exactly these samples are reported, and those of the cloud among them.
    async fn counted(&self, samples: u64, of_cloud: u64) {
        let is_counted = |report: &StatusReport| {
            report.output.task_info.as_ref().is_some_and(|task| {
                (task.counters.inference, task.counters.hard) == (samples, of_cloud)
            })
        };
        self.running(&format!("{samples} samples, {of_cloud} of the cloud"), is_counted).await;
    }

    /// Waits for a problem of the gateway. Returns its text.
    async fn problem(&self, reason: GatewayProblemReason) -> String {
        let message = |report: &StatusReport| {
            let gateway = report.workers.first()?.gateway.clone()?;
            let mut problems = gateway.problems.into_iter();
            problems.find(|problem| problem.reason == reason).map(|problem| problem.message)
        };
        let report = self.running(&format!("{reason:?}"), |report| message(report).is_some()).await;
        message(&report).unwrap()
    }

    async fn without_problems(&self) {
        let has_none = |report: &StatusReport| {
            let gateway = report.workers.first().and_then(|worker| worker.gateway.as_ref());
            gateway.is_some_and(|gateway| gateway.problems.is_empty())
        };
        self.running("no problem", has_none).await;
    }

    fn container(&self) -> String {
        let name = format!("neptune-{}-{}", self.agent.node, self.worker);
        docker(&["inspect", "--format", "{{.Id}}", &name])
    }
}

#[tokio::test]
async fn grpc_is_decided_on_a_node_and_counted_exactly() {
    let (small_address, small) = Model::serve("small", |value| value, None).await;
    let (big_address, big) = Model::serve("big", |_| 0.0, Some(TOKEN)).await;
    let node = Node::start(small_address, big_address).await;
    node.write_token("another");
    node.insert(0.75);

    // The path of the token is that on the node.
    let mut channel = node.channel().await;
    let refused = Answer { by: "edge".to_owned(), firsts: ROWS.to_vec() };
    assert_eq!(ask(&channel).await.unwrap(), refused);
    let problem = node.problem(GatewayProblemReason::CloudRefusesToken).await;
    let file = format!("refuses the token in {} (gRPC Unauthenticated", node.secret().display());
    assert!(problem.contains(&file), "{problem}");
    node.write_token(TOKEN);
    node.without_problems().await;

    let merged =
        Answer { by: "edge,cloud,edge,cloud".to_owned(), firsts: vec![0.875, 0.0, 0.9375, 0.0] };
    for _ in 0..50 {
        assert_eq!(ask(&channel).await.unwrap(), merged);
    }
    node.counted(204, 100).await;
    assert_eq!((small.rows.load(Ordering::SeqCst), big.rows.load(Ordering::SeqCst)), (204, 100));

    // An invalid change is reported, and the configuration before stays in force.
    node.insert(2.0);
    let problem = node.problem(GatewayProblemReason::ConfigurationInvalid).await;
    assert!(problem.contains("hardExample.threshold is 2; it has to be from 0 to 1"), "{problem}");
    assert_eq!(ask(&channel).await.unwrap(), merged);
    node.insert(0.75);
    node.without_problems().await;
    node.counted(208, 102).await;

    // A killed gateway counts in another run.
    let container = node.container();
    docker(&["kill", "--signal", "KILL", &container]);
    eventually("the next container", || {
        let name = format!("name=neptune-{}-{}", node.agent.node, node.worker);
        let id = docker(&["ps", "--quiet", "--no-trunc", "--filter", &name]);
        !id.is_empty() && id != container
    })
    .await;
    channel = node.channel().await;
    for _ in 0..10 {
        assert_eq!(ask(&channel).await.unwrap(), merged);
    }
    node.counted(248, 122).await;
    assert_eq!((small.rows.load(Ordering::SeqCst), big.rows.load(Ordering::SeqCst)), (248, 122));
}

#[tokio::test]
async fn model_server_without_grpc_is_down_and_named_by_its_port() {
    let (small_address, _small) = Model::serve("small", |value| value, None).await;
    let (big_address, _big) = Model::serve("big", |_| 0.0, Some(TOKEN)).await;
    let mut node = Node::start(small_address, big_address).await;
    node.write_token(TOKEN);
    // Nobody listens there.
    let port = free_port();
    node.model_ports[1] = port;
    node.insert(0.75);
    let channel = node.channel().await;
    let by_cloud = Answer { by: "cloud".to_owned(), firsts: vec![0.0; 4] };
    eventually_async("the cloud's answer", async || {
        ask(&channel).await.ok().as_ref() == Some(&by_cloud)
    })
    .await;
    let problem = node.problem(GatewayProblemReason::ModelServerDown).await;
    let address = format!("the model server at 127.0.0.1:{port} does not answer");
    assert!(problem.contains(&address), "{problem}");
}

//! The cloud worker, and the calls of the edge worker to it.

use std::time::{Duration, Instant};

use digits::call::CloudClient;
use digits::samples::{Pixels, held_out};
use digits::{cloud, model_file};
use neptune_harness::free_port;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::program::{BIG, Program, SERVICE};

/// A cloud worker in this process.
pub struct Cloud {
    pub url: String,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Cloud {
    pub async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// On an address on which nothing listens yet.
    pub async fn start_on(url: &str) -> Self {
        let address = url.trim_start_matches("http://");
        Self::on(TcpListener::bind(address).await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let model = model_file::read(BIG).unwrap();
        let server = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            cloud::serve(listener, SERVICE, model, stop).await.unwrap();
        });
        Self { url, stop, server }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap();
    }

    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn post(&self, path: &str, body: &str) -> String {
        let head = "Host: cloud\r\nContent-Type: application/json\r\nConnection: close";
        self.send(&format!(
            "POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await
    }
}

fn images(count: usize) -> Vec<Pixels> {
    held_out().iter().take(count).map(|sample| sample.pixels).collect()
}

#[tokio::test]
async fn each_sample_gets_a_label_and_ten_probabilities() {
    let cloud = Cloud::start().await;
    let samples = &held_out()[..3];
    let data: Vec<_> = samples.iter().map(|sample| sample.pixels.to_vec()).collect();
    let answer = cloud.post("/demo/predict", &serde_json::json!({"data": data}).to_string()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let body: serde_json::Value =
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let results = body["result"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (sample, result) in samples.iter().zip(results) {
        assert_eq!(result["label"], sample.label);
        assert_eq!(result["probabilities"].as_array().unwrap().len(), 10);
    }
}

#[tokio::test]
async fn invalid_request_is_refused_with_the_reason() {
    let cloud = Cloud::start().await;
    let short = format!(r#"{{"data":[{:?}]}}"#, [0; 63]);
    let dark = format!(r#"{{"data":[{:?},{:?}]}}"#, [0; 64], [17; 64]);
    for (path, body, status, reason) in [
        ("/other/predict", r#"{"data":[]}"#, 404, "this worker serves demo, not other"),
        ("/demo/predict", "{", 400, "Failed to parse"),
        ("/demo/predict", "{}", 422, "missing field `data`"),
        ("/demo/predict", &short, 400, "data[0]: 63 numbers instead of 64"),
        ("/demo/predict", &dark, 400, "data[1]: pixel 17 is not in 0..=16"),
        ("/demo", "{}", 404, ""),
    ] {
        let answer = cloud.post(path, body).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(reason),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn cloud_worker_answers_health_check() {
    let answer = Cloud::start()
        .await
        .send("GET /healthz HTTP/1.1\r\nHost: cloud\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
}

#[tokio::test]
async fn program_serves_and_exits_cleanly_on_sigterm() {
    let port = free_port().to_string();
    let mut program = Program::start(
        "cloud",
        &[("MODEL_URL", BIG), ("BIG_MODEL_BIND_IP", "127.0.0.1"), ("BIG_MODEL_BIND_PORT", &port)],
    );
    let mut client = CloudClient::new(&format!("http://127.0.0.1:{port}"), SERVICE).unwrap();
    // It does not announce when it listens.
    let labels = loop {
        match client.predict(&images(5)).await {
            Ok(labels) => break labels,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(labels.len(), 5);
    assert!(program.terminate().await.success());
}

#[tokio::test]
async fn closed_keep_alive_connection_is_reopened() {
    let cloud = Cloud::start().await;
    let mut client = CloudClient::new(&cloud.url, SERVICE).unwrap();
    let url = cloud.url.clone();
    let before = client.predict(&images(2)).await.unwrap();
    cloud.stop().await;
    assert!(client.predict(&images(2)).await.is_err());
    let _again = Cloud::start_on(&url).await;
    assert_eq!(client.predict(&images(2)).await.unwrap(), before);
}

#[tokio::test]
async fn silent_cloud_times_out_after_two_seconds() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let started = Instant::now();
    let error = CloudClient::new(&url, SERVICE).unwrap().predict(&images(1)).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 2 s"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3));
}

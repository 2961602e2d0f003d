//! The model server and its client, over real HTTP.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use digits::samples::held_out;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::{client::legacy::Client as Pool, rt::TokioExecutor};
use serde_json::{Value, json};
use tempfile::TempDir;
use three_resources::{
    client::Client,
    error::Error,
    evaluate::{Targets, evaluate},
    folder, server,
    versions::Versions,
};
use tokio::{net::TcpListener, sync::watch, time::timeout};

const TIMEOUT: Duration = Duration::from_secs(20);

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../digits/models").join(name)
}

/// Serves routes on a free port until the test ends.
async fn listen(routes: axum::Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    url
}

/// A model server with its own directory.
struct Server {
    dir: TempDir,
    versions: watch::Receiver<Versions>,
    url: String,
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("versions")).unwrap();
        let (sender, versions) = watch::channel(Versions::default());
        tokio::spawn(folder::watch(dir.path().join("versions"), sender));
        let url = listen(server::routes("digits", versions.clone())).await;
        Self { dir, versions, url }
    }

    /// Adds a version like an agent: with one rename.
    fn put(&self, version: &str, file: impl FnOnce(&Path)) {
        let building = self.dir.path().join("building");
        fs::create_dir(&building).unwrap();
        file(&building.join("model.json"));
        fs::rename(building, self.dir.path().join("versions").join(version)).unwrap();
    }

    fn put_model(&self, version: &str, name: &str) {
        self.put(version, |path| {
            fs::copy(model(name), path).unwrap();
        });
    }

    fn take(&self, version: &str) {
        let away = self.dir.path().join("away");
        fs::rename(self.dir.path().join("versions").join(version), &away).unwrap();
        fs::remove_dir_all(away).unwrap();
    }

    async fn until(&mut self, so: impl FnMut(&Versions) -> bool) {
        timeout(TIMEOUT, self.versions.wait_for(so)).await.unwrap().unwrap();
    }

    fn client(&self) -> Client {
        Client::new(&self.url, "digits").unwrap()
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        send(Request::get(format!("{}{path}", self.url)).body(Full::default()).unwrap()).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = Full::from(body.to_string());
        send(Request::post(format!("{}{path}", self.url)).body(body).unwrap()).await
    }
}

async fn send(request: Request<Full<bytes::Bytes>>) -> (u16, Value) {
    let pool = Pool::builder(TokioExecutor::new()).build_http();
    let response = pool.request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn server_implements_the_open_inference_protocol() {
    let mut server = Server::start().await;
    assert_eq!(server.get("/v2/health/live").await, (200, json!({"live": true})));
    assert_eq!(server.get("/v2/health/ready").await.0, 400);
    assert_eq!(server.get("/v2/models/digits/ready").await.0, 400);
    server.put_model("3", "small.json");
    server.put("4", |path| fs::write(path, "{\"format\": ").unwrap());
    server.until(|versions| versions.by_number.len() == 2).await;

    assert_eq!(server.get("/v2/health/ready").await.0, 200);
    assert_eq!(server.get("/v2/models/digits/ready").await.0, 200);
    assert_eq!(server.get("/v2/models/digits/versions/3/ready").await.0, 200);
    let (status, answer) = server.get("/v2/models/digits/versions/4/ready").await;
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().contains("not a usable model"), "{answer}");
    assert_eq!(server.get("/v2/models/digits/versions/5/ready").await.0, 404);
    assert_eq!(server.get("/v2/models/other/ready").await.0, 404);
    let (_, metadata) = server.get("/v2/models/digits").await;
    assert_eq!(
        (&metadata["versions"], &metadata["inputs"][0]["shape"]),
        (&json!(["3"]), &json!([-1, 64]))
    );

    let sample = &held_out()[0];
    let body = json!({"id": "7", "inputs": [
        {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": [sample.pixels.to_vec()]},
    ]});
    let (status, answer) = server.post("/v2/models/digits/versions/3/infer", &body).await;
    assert_eq!((status, &answer["model_version"], &answer["id"]), (200, &json!("3"), &json!("7")));
    assert_eq!(answer["outputs"][0]["data"], json!([sample.label]));
    assert_eq!(answer["outputs"][1]["shape"], json!([1, 10]));
    assert_eq!(server.post("/v2/models/digits/infer", &json!({"inputs": []})).await.0, 400);
}

#[tokio::test]
async fn versions_switch_under_load_without_a_failed_request() {
    let mut server = Server::start().await;
    server.put_model("3", "small.json");
    server.until(|versions| versions.ready() == ["3"]).await;
    let (seen, mut versions) = watch::channel(Vec::new());
    let client = server.client();
    let load = tokio::spawn(async move {
        let image = held_out()[0].pixels;
        while !seen.is_closed() {
            let version = client.infer(&[image]).await.unwrap().version.unwrap();
            seen.send_if_modified(|versions: &mut Vec<_>| {
                let is_new = versions.last() != Some(&version);
                versions.extend(is_new.then_some(version));
                is_new
            });
        }
    });
    let mut answered = async |wanted: &[&str]| {
        let answered = timeout(TIMEOUT, versions.wait_for(|versions| versions == wanted)).await;
        drop(answered.unwrap().unwrap());
    };
    answered(&["3"]).await;
    server.put_model("4", "big.json");
    answered(&["3", "4"]).await;
    // A broken version does not affect the others.
    server.put("5", |path| fs::write(path, "[]").unwrap());
    server.until(|versions| versions.by_number.contains_key(&5)).await;
    assert_eq!(server.client().infer(&[[0.0; 64]]).await.unwrap().version.unwrap(), "4");
    server.take("4");
    answered(&["3", "4", "3"]).await;
    drop(versions);
    load.await.unwrap();
}

#[tokio::test]
async fn incomplete_version_is_retried_and_missing_directory_is_ignored() {
    let mut server = Server::start().await;
    server.put("1", |path| fs::write(path, "{\"for").unwrap());
    server.until(|versions| versions.by_number.get(&1).is_some_and(Result::is_err)).await;
    fs::copy(model("small.json"), server.dir.path().join("versions/1/model.json")).unwrap();
    server.until(|versions| versions.ready() == ["1"]).await;
    let before = server.versions.borrow().clone();
    assert!(folder::scan(&server.dir.path().join("nowhere"), &before).is_err());
}

#[tokio::test]
async fn model_server_in_place_of_a_gateway_is_named() {
    let mut server = Server::start().await;
    server.put_model("4", "small.json");
    server.until(|versions| !versions.ready().is_empty()).await;
    let targets = Targets { gateway: server.client(), edge: None, cloud: None };
    let error = evaluate(&targets, 1).await.unwrap_err();
    assert!(matches!(&error, Error::NoGateway { url } if url.starts_with(&server.url)), "{error}");
}

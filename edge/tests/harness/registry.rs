//! A container registry with images of the engine, without TLS, with or without authentication.

use std::{collections::BTreeMap, fs, path::Path, process::Command, sync::Arc};

use axum::{
    Router,
    extract::{Path as UrlPath, Request, State},
    http::{HeaderName, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::get,
};
use neptune_harness::docker::{BusyboxImage, docker};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// A type and a content by digest, and manifests also by repository and tag.
type Content = BTreeMap<String, (String, Vec<u8>)>;

/// The registry. Every image has the tag 1.
pub struct Registry {
    address: String,
}

impl Registry {
    /// Takes over these images, by repository: they are on the engine only after a pull.
    pub async fn public(images: impl IntoIterator<Item = (&str, BusyboxImage)>) -> Self {
        Self::serve(images, None).await
    }

    /// Starts a registry like [`Registry::public`], for clients with this header `Authorization`
    /// only.
    pub async fn private(
        images: impl IntoIterator<Item = (&str, BusyboxImage)>,
        authorization: &'static str,
    ) -> Self {
        Self::serve(images, Some(authorization)).await
    }

    async fn serve(
        images: impl IntoIterator<Item = (&str, BusyboxImage)>,
        authorization: Option<&'static str>,
    ) -> Self {
        let mut content = Content::new();
        for (repository, image) in images {
            add_image(&mut content, repository, &image);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let routes = Router::new()
            .route("/v2/", get(|| async {}))
            .route("/v2/{repository}/manifests/{reference}", get(manifest))
            .route("/v2/{repository}/blobs/{digest}", get(blob))
            .with_state(Arc::new(content))
            .layer(from_fn_with_state(authorization, authorize));
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { address }
    }

    /// Returns host and port of the registry.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The reference of the image in this repository.
    pub fn image(&self, repository: &str) -> String {
        format!("{}/{repository}:1", self.address)
    }
}

async fn authorize(
    State(required): State<Option<&'static str>>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION);
    if required.is_none_or(|required| given.is_some_and(|given| given == required)) {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, r#"Basic realm="test""#)];
    (StatusCode::UNAUTHORIZED, challenge).into_response()
}

type Answer = Result<([(HeaderName, String); 2], Vec<u8>), StatusCode>;

async fn manifest(
    State(content): State<Arc<Content>>,
    UrlPath((repository, reference)): UrlPath<(String, String)>,
) -> Answer {
    let is_digest = reference.starts_with("sha256:");
    answer(&content, &if is_digest { reference } else { format!("{repository}:{reference}") })
}

async fn blob(
    State(content): State<Arc<Content>>,
    UrlPath((_, digest)): UrlPath<(String, String)>,
) -> Answer {
    answer(&content, &digest)
}

fn answer(content: &Content, key: &str) -> Answer {
    let (kind, body) = content.get(key).ok_or(StatusCode::NOT_FOUND)?;
    let digest = HeaderName::from_static("docker-content-digest");
    Ok(([(header::CONTENT_TYPE, kind.clone()), (digest, digest_of(body))], body.clone()))
}

/// Adds an image as the engine exports it.
fn add_image(content: &mut Content, repository: &str, image: &BusyboxImage) {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("image.tar");
    docker(&["save", "-o", archive.to_str().unwrap(), &image.0]);
    let unpacked = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status();
    assert!(unpacked.unwrap().success());
    let exported: Value = read_json(&dir.path().join("manifest.json"));
    let mut blob = |path: &Value, kind: &str| {
        let body = fs::read(dir.path().join(path.as_str().unwrap())).unwrap();
        let (digest, size) = (digest_of(&body), body.len());
        content.insert(digest.clone(), ("application/octet-stream".to_owned(), body));
        json!({"mediaType": kind, "size": size, "digest": digest})
    };
    let config = blob(&exported[0]["Config"], "application/vnd.docker.container.image.v1+json");
    let layers = exported[0]["Layers"].as_array().unwrap();
    let layer = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let layers: Vec<Value> = layers.iter().map(|path| blob(path, layer)).collect();
    let manifest =
        json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
    let manifest = (MANIFEST.to_owned(), manifest.to_string().into_bytes());
    content.insert(digest_of(&manifest.1), manifest.clone());
    content.insert(format!("{repository}:1"), manifest);
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn digest_of(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

//! Artifacts from a container registry, with its faults and with hostile manifests.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use neptune_harness::http_stub::{HttpStub, StubReply, StubRequest, ranged};
use neptune_store::{Digest, HubProblem, Login, ModelError, RegistryLogins, StorePolicy};
use serde_json::{Value, json};

use crate::fixture::{StoreFixture, files, noise, policy};

const TITLE: &str = "org.opencontainers.image.title";
const BASIC: &str = "Basic YW5uOnMzY3JldA==";

/// What a registry answers with.
#[derive(Clone, Default)]
struct Content {
    manifest: Vec<u8>,
    blobs: Vec<Vec<u8>>,
    /// Each response with a file ends after this number of bytes.
    cut: Option<usize>,
    /// Files are redirected to this URL.
    redirect: Option<String>,
    /// The scheme that requests must use: `basic` or `bearer`.
    auth: Option<&'static str>,
    /// The number of tokens that were issued. The last one is valid.
    tokens: usize,
    /// For how many requests a token is valid. Default: for all.
    token_uses: Option<usize>,
    /// The number of requests with the last token.
    used: usize,
    /// Files are denied with any token.
    denies_files: bool,
    wrong_bytes: bool,
}

/// A registry on loopback.
struct Registry {
    stub: HttpStub,
    content: Arc<Mutex<Content>>,
}

impl Registry {
    async fn start(content: Content) -> Self {
        let content = Arc::new(Mutex::new(content));
        let shared = Arc::clone(&content);
        let stub =
            HttpStub::start(move |request| answer(&mut shared.lock().unwrap(), request)).await;
        Self { stub, content }
    }

    fn url(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/team/model{rest}", self.stub.port)
    }

    fn change(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.content.lock().unwrap());
    }

    /// The number of requests for access, for tokens, for manifests and for files.
    fn counts(&self) -> [usize; 4] {
        let requests = self.stub.requests();
        let count = |is: &dyn Fn(&str) -> bool| requests.iter().filter(|it| is(&it.path)).count();
        [
            count(&|path| path == "/v2/"),
            count(&|path| path == "/token"),
            count(&|path| path.contains("/manifests/")),
            count(&|path| path.contains("/blobs/")),
        ]
    }
}

fn answer(content: &mut Content, request: &StubRequest) -> StubReply {
    let authorization = request.header("authorization");
    if request.path == "/token" {
        let scope = "scope=repository%3Ateam%2Fmodel%3Apull";
        let is_good = authorization == Some(BASIC) && request.query.contains(scope);
        if !is_good {
            return StubReply::status(401);
        }
        (content.tokens, content.used) = (content.tokens + 1, 0);
        return StubReply::json(json!({"token": format!("t0k3n{}", content.tokens)}).to_string());
    }
    let token = format!("Bearer t0k3n{}", content.tokens);
    let (wanted, challenge) = match content.auth {
        None => (None, String::new()),
        Some("basic") => (Some(BASIC), "Basic realm=\"r\"".to_owned()),
        Some(_) => {
            let port = request.port;
            let realm = format!("Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"r\"");
            (Some(&*token), realm)
        }
    };
    let is_used_up = content.token_uses.is_some_and(|uses| content.used >= uses);
    if authorization != wanted || is_used_up {
        return StubReply::status(401).with("www-authenticate", challenge);
    }
    content.used += 1;
    if request.path == "/v2/" {
        return StubReply::json("{}".to_owned());
    }
    let Some((kind, reference)) =
        request.path.trim_start_matches("/v2/team/model/").split_once('/')
    else {
        return StubReply::status(404);
    };
    if kind == "manifests" {
        let accept = request.header("accept").unwrap_or_default();
        let is_known = reference == "v1" || reference.starts_with("sha256:");
        if !is_known || !accept.contains("vnd.oci.image.manifest.v1+json") {
            return StubReply::status(404);
        }
        return StubReply { body: content.manifest.clone(), ..StubReply::status(200) };
    }
    if content.denies_files {
        return StubReply::status(403);
    }
    if let Some(target) = &content.redirect {
        return StubReply::status(307).with("location", format!("{target}{reference}"));
    }
    blob(content, request, reference)
}

fn blob(content: &Content, request: &StubRequest, reference: &str) -> StubReply {
    let name = |blob: &&Vec<u8>| format!("sha256:{}", Digest::of_bytes(blob)) == reference;
    let Some(mut blob) = content.blobs.iter().find(name).cloned() else {
        return StubReply::status(404);
    };
    if content.wrong_bytes {
        blob[0] ^= 1;
    }
    StubReply { cut: content.cut, ..ranged(request, &blob, &format!("\"{reference}\"")) }
}

fn artifact(all: &[(&str, &[u8])]) -> Content {
    let layers: Vec<Value> = all
        .iter()
        .map(|(path, content)| {
            json!({
                "mediaType": "application/octet-stream",
                "digest": format!("sha256:{}", Digest::of_bytes(content)),
                "size": content.len(),
                "annotations": {TITLE: path},
            })
        })
        .collect();
    let config = json!({"mediaType": "application/vnd.oci.empty.v1+json"});
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let blobs = all.iter().map(|(_, content)| content.to_vec()).collect();
    Content { manifest: manifest.to_string().into_bytes(), blobs, ..Content::default() }
}

fn with_login() -> StorePolicy {
    let registry_logins = Some(RegistryLogins::new(|repository| async move {
        assert!(repository.ends_with("/team/model"), "{repository}");
        Ok(Some(Login { username: "ann".to_owned(), password: "s3cret".to_owned() }))
    }));
    StorePolicy { registry_logins, ..policy() }
}

fn problem(error: &ModelError) -> &HubProblem {
    match error.root() {
        ModelError::Hub(error) => &error.problem,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn artifact_is_a_directory_with_its_files_and_the_digest_of_their_list() {
    let weights = noise(1 << 20, 1);
    let content = artifact(&[("b/w.bin", &weights), ("a.json", b"{}")]);
    let manifest = format!("sha256:{}", Digest::of_bytes(&content.manifest));
    let pinned = format!("@{manifest}");
    let registry = Registry::start(content).await;
    let fixture = StoreFixture::with(policy());
    let set = fixture.fetch(&registry.url(":v1"), None).await.unwrap();
    assert_eq!(fs::read(set.path.join("b/w.bin")).unwrap(), weights);
    let lines = [("a.json", &b"{}"[..]), ("b/w.bin", &weights)]
        .map(|(path, content)| format!("{}  {path}\n", Digest::of_bytes(content)));
    assert_eq!(set.digest, Digest::of_bytes(lines.concat().as_bytes()));
    assert_eq!((set.files, set.revision), (Some(2), Some(manifest.clone())));
    let requests = registry.stub.requests().len();
    let again = fixture.fetch(&registry.url(&pinned), Some(set.digest)).await.unwrap();
    assert_eq!((again.files, again.revision), (Some(2), Some(manifest)));
    assert_eq!((again.path, registry.stub.requests().len()), (set.path, requests));
    let one = fixture.fetch(&registry.url(":v1?files=*.json"), None).await.unwrap();
    assert_eq!(files(&one.path), [one.path.join("a.json")]);
}

#[tokio::test]
async fn login_is_sent_to_the_registry_and_its_server_of_tokens_only() {
    let weights = noise(1000, 2);
    for auth in ["basic", "bearer"] {
        let files = artifact(&[("w.bin", &weights)]);
        let storage = files.clone();
        // As the storage behind registries: another credential beside the signature is refused.
        let storage = HttpStub::start(move |request| match request.header("authorization") {
            Some(_) => StubReply::status(400),
            None => blob(&storage, request, request.path.trim_start_matches('/')),
        });
        let storage = storage.await;
        let redirect = Some(format!("http://127.0.0.1:{}/", storage.port));
        let registry = Registry::start(Content { auth: Some(auth), redirect, ..files }).await;
        let error = StoreFixture::new().fetch(&registry.url(":v1"), None).await.unwrap_err();
        assert_eq!(problem(&error), &HubProblem::RegistryDenied, "{auth}");
        let fixture = StoreFixture::with(with_login());
        let set = fixture.fetch(&registry.url(":v1"), None).await.unwrap();
        assert_eq!(fs::read(set.path.join("w.bin")).unwrap(), weights, "{auth}");
        assert_eq!(storage.requests().len(), 1);
    }
}

#[tokio::test]
async fn redirect_to_a_refused_address_is_not_followed() {
    let content = artifact(&[("w.bin", b"w")]);
    let redirect = Some("http://169.254.169.254/".to_owned());
    let registry = Registry::start(Content { redirect, ..content }).await;
    let error = StoreFixture::new().fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::AddressRefused { .. }), "{error}");
}

#[tokio::test]
async fn wrong_digests_of_manifest_file_and_set_are_refused() {
    let content = artifact(&[("w.bin", b"w")]);
    let registry = Registry::start(content).await;
    let fixture = StoreFixture::new();
    let other = registry.url(&format!("@sha256:{}", "0".repeat(64)));
    let error = fixture.fetch(&other, None).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::InvalidManifest { .. }), "{error}");
    let wrong = Some(Digest::of_bytes(b"x"));
    let error = fixture.fetch(&registry.url(":v1"), wrong).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::DigestMismatch { .. }), "{error}");
    registry.change(|content| content.wrong_bytes = true);
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert!(matches!(error.root(), ModelError::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn hostile_and_missing_manifests_are_refused() {
    let registry = Registry::start(artifact(&[("../x", b"w")])).await;
    let fixture = StoreFixture::new();
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::InvalidSet { .. }), "{error}");
    let error = fixture.fetch(&registry.url(":v2"), None).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::ManifestNotFound { .. }), "{error}");
    registry.change(|content| content.manifest = vec![b' '; 5 << 20]);
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::InvalidAnswer { .. }), "{error}");
    let layer = json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"});
    let image = json!({"layers": [layer]}).to_string().into_bytes();
    registry.change(|content| content.manifest = image);
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert!(matches!(problem(&error), HubProblem::LayoutUnknown { .. }), "{error}");
}

#[tokio::test]
async fn download_that_is_cut_twenty_times_transfers_no_byte_twice() {
    let weights = noise(4 << 20, 3);
    let content = artifact(&[("w.bin", &weights)]);
    let manifest = content.manifest.len() as u64;
    let cut = Some(weights.len() / 20 + 1);
    let registry = Registry::start(Content { cut, ..content }).await;
    let fixture = StoreFixture::new();
    let set = fixture.fetch_in_pieces(&registry.url(":v1")).await;
    assert_eq!(fs::read(set.path.join("w.bin")).unwrap(), weights);
    let requests = registry.stub.requests();
    let downloads = requests.iter().filter(|request| request.path.contains("/blobs/")).count();
    assert!(downloads >= 20, "{downloads}");
    let bytes = registry.stub.sent();
    assert!(bytes * 20 <= (weights.len() as u64 + manifest) * 21, "{bytes}");
}

/// Five files, each with other bytes.
fn five_files() -> Content {
    let all: [(&str, &[u8]); 5] =
        [("a.bin", b"1"), ("b.bin", b"2"), ("c.bin", b"3"), ("d.bin", b"4"), ("e.json", b"5")];
    artifact(&all)
}

#[tokio::test]
async fn files_of_an_artifact_share_one_login() {
    for (auth, tokens) in [(None, 0), (Some("basic"), 0), (Some("bearer"), 1)] {
        let registry = Registry::start(Content { auth, ..five_files() }).await;
        let fixture = StoreFixture::with(with_login());
        let set = fixture.fetch(&registry.url(":v1"), None).await.unwrap();
        assert_eq!(files(&set.path).len(), 5);
        assert_eq!(registry.counts(), [1, tokens, 1, 5], "{auth:?}");
        fixture.fetch(&registry.url(":v1?files=*.json"), None).await.unwrap();
        assert_eq!(registry.counts(), [1, tokens, 2, 5], "{auth:?}");
    }
}

#[tokio::test]
async fn expired_token_is_renewed_once() {
    // The list and a file, two files, two files.
    let content = Content { auth: Some("bearer"), token_uses: Some(2), ..five_files() };
    let registry = Registry::start(content).await;
    let fixture = StoreFixture::with(with_login());
    let set = fixture.fetch(&registry.url(":v1"), None).await.unwrap();
    assert_eq!(files(&set.path).len(), 5);
    assert_eq!(registry.counts(), [3, 3, 1, 7]);

    let denying = Content { auth: Some("bearer"), denies_files: true, ..five_files() };
    let registry = Registry::start(denying).await;
    let fixture = StoreFixture::with(with_login());
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert_eq!(problem(&error), &HubProblem::RegistryDenied);
    assert_eq!(registry.counts(), [2, 2, 1, 2]);

    let useless = Content { auth: Some("bearer"), token_uses: Some(0), ..five_files() };
    let registry = Registry::start(useless).await;
    let error = fixture.fetch(&registry.url(":v1"), None).await.unwrap_err();
    assert_eq!(problem(&error), &HubProblem::RegistryDenied);
    assert_eq!(registry.counts(), [1, 1, 1, 0], "a new token that is refused");
}

#[tokio::test]
async fn replaced_login_is_used_at_once() {
    let registry = Registry::start(Content { auth: Some("basic"), ..five_files() }).await;
    let password = Arc::new(Mutex::new("s3cret".to_owned()));
    let shared = Arc::clone(&password);
    let logins = RegistryLogins::new(move |_| {
        let password = shared.lock().unwrap().clone();
        async move { Ok(Some(Login { username: "ann".to_owned(), password })) }
    });
    let policy = StorePolicy { registry_logins: Some(logins), ..policy() };
    let fixture = StoreFixture::with(policy);
    fixture.fetch(&registry.url(":v1"), None).await.unwrap();
    "other".clone_into(&mut password.lock().unwrap());
    let error = fixture.fetch(&registry.url(":v1?files=a*"), None).await.unwrap_err();
    assert_eq!(problem(&error), &HubProblem::RegistryDenied);
}

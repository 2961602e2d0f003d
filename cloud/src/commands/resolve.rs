//! The `resolve` command: prints a Model whose content cannot change, for an address of a model hub or
//! of a container registry.

use std::{
    fs,
    io::{self, Write as _},
    time::Duration,
};

use neptune_api::{Model, ModelSpec};
use neptune_hub::{
    HubClient, HubEndpoint, HubError, Login, Registry, ResolvedAddress, Transport, is_loopback,
};
use neptune_program::causes;
use neptune_registry_config::{LOGINS_VARIABLE, RegistryConfig};
use neptune_wire::{ArtifactAddress, HubAddress, OciAddress};
use reqwest::{Client, Method, Response, Url, header::HeaderMap, redirect};

use crate::{
    cli::{ManifestFormat, Resolve},
    error::Error,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks the hub or the registry, and prints the Model. The token for a hub is that of `HF_TOKEN`.
///
/// # Errors
/// [`Error::Resolve`] with the reason and the remedy.
pub async fn resolve(flags: Resolve) -> Result<(), Error> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let resolved = ask(&flags, variable).await?;
    let text = manifest(flags.name.as_deref(), &resolved, flags.output)?;
    let written = io::stdout().write_all(text.as_bytes());
    written.map_err(|source| Error::Write { path: "standard output".into(), source })
}

async fn ask(
    flags: &Resolve,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ResolvedAddress, Error> {
    let parsed = flags.url.parse::<ArtifactAddress>();
    let address = parsed.and_then(|address| address.with_files(&flags.files));
    let transport = DirectTransport::new()?;
    match address.map_err(|error| Error::Resolve(error.to_string()))? {
        ArtifactAddress::Hub(address) => {
            let endpoint = endpoint(flags.hf_endpoint.as_deref(), variable)?;
            HubClient::new(&transport, &endpoint).resolve(&address).await
        }
        ArtifactAddress::Oci(address) => {
            let file = flags.registry_config.as_deref().filter(|file| !file.as_os_str().is_empty());
            let login = match (file, variable(LOGINS_VARIABLE)) {
                (Some(file), _) => {
                    let source = format!("--registry-config {}", file.display());
                    login(&source, fs::read(file).map_err(|it| it.to_string()), &address)?
                }
                (None, Some(text)) => login(LOGINS_VARIABLE, Ok(text.into_bytes()), &address)?,
                (None, None) => None,
            };
            let is_plain_http = flags.plain_http || is_loopback(&address.registry);
            let registry =
                Registry::open(&transport, &address, is_plain_http, login.as_ref()).await?;
            registry.resolve(&transport, &address).await
        }
        other => Err(Error::Resolve(format!(
            "{other}: only addresses of a model hub or a registry have revisions; use hf://organization/repository or oci://host/repository, or `sha256sum FILE` for the digest of another file"
        ))),
    }
}

/// The login of a file or a variable for the repository of an address, if it has one.
fn login(
    source: &str,
    content: Result<Vec<u8>, String>,
    address: &OciAddress,
) -> Result<Option<Login>, Error> {
    let failed = |reason: String| Error::Resolve(format!("{source}: {reason}; correct it"));
    let content = content.map_err(failed)?;
    let config = RegistryConfig::parse(&content).map_err(|error| failed(error.to_string()))?;
    Ok(Login::of_repository(&config, &address.repository_id()))
}

fn endpoint(
    named: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<HubEndpoint, Error> {
    let url = named.filter(|url| !url.is_empty()).map(str::to_owned);
    let hub = match url.or_else(|| variable("HF_ENDPOINT")) {
        None => HubEndpoint::default(),
        Some(url) => url.parse().map_err(|error| {
            Error::Resolve(format!(
                "--hf-endpoint: {error}; use a URL such as https://huggingface.co"
            ))
        })?,
    };
    let token = variable("HF_TOKEN").unwrap_or_default();
    hub.with_token(&token).map_err(|error| {
        Error::Resolve(format!("HF_TOKEN: {error}; correct or unset the variable"))
    })
}

/// The Model as text that ends with a line break.
fn manifest(
    name: Option<&str>,
    resolved: &ResolvedAddress,
    format: ManifestFormat,
) -> Result<String, Error> {
    let ResolvedAddress { address, sha256, files, bytes } = resolved;
    let (address, patterns) = without_patterns(address);
    let spec = ModelSpec {
        model_url: address.to_url(),
        files: patterns,
        sha256sum: Some(sha256.to_string()),
        ..ModelSpec::default()
    };
    let model = Model::new(&name.map_or_else(|| default_name(&address), str::to_owned), spec);
    let failed = |error: String| Error::Resolve(format!("the Model cannot be printed: {error}"));
    match format {
        ManifestFormat::Json => {
            let text = serde_json::to_string(&model).map_err(|error| failed(error.to_string()))?;
            Ok(text + "\n")
        }
        ManifestFormat::Yaml => {
            // An address on one line, so that it can be searched and copied.
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let text = serde_saphyr::to_string_with_options(&model, options)
                .map_err(|error| failed(error.to_string()))?;
            let number = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
            Ok(format!("# {number}, {bytes} bytes\n{}\n", text.trim_end()))
        }
    }
}

/// The address without the patterns of its files, which are a field of the Model.
fn without_patterns(address: &ArtifactAddress) -> (ArtifactAddress, Vec<String>) {
    match address {
        ArtifactAddress::Hub(it) => {
            let without = HubAddress { files: Vec::new(), ..it.clone() };
            (ArtifactAddress::Hub(without), it.files.clone())
        }
        ArtifactAddress::Oci(it) => {
            let without = OciAddress { files: Vec::new(), ..it.clone() };
            (ArtifactAddress::Oci(without), it.files.clone())
        }
        other => (other.clone(), Vec::new()),
    }
}

/// The name of the file or the repository as the name of an object.
fn default_name(address: &ArtifactAddress) -> String {
    let path = match address {
        ArtifactAddress::Hub(it) => it.path.as_deref().unwrap_or(&it.repository),
        ArtifactAddress::Oci(it) => &it.repository,
        _ => "",
    };
    let last = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = last.chars().map(fits).take(63).collect();
    let name =
        name.trim_matches(['-', '.']).replace("..", ".").replace(".-", "-").replace("-.", "-");
    if name.is_empty() { "model".to_owned() } else { name }
}

/// Sends requests of a person's machine: to every address, and through the proxies of the
/// environment.
struct DirectTransport(Client);

impl DirectTransport {
    #[expect(clippy::disallowed_methods, reason = "the one client of this command")]
    fn new() -> Result<Self, Error> {
        let client = Client::builder()
            .user_agent(concat!("neptune-cloud/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(redirect::Policy::none())
            .build();
        client.map(Self).map_err(|error| Error::Resolve(format!("HTTP client: {}", causes(&error))))
    }
}

impl Transport for DirectTransport {
    type Error = Error;

    async fn send(&self, method: Method, url: &Url, headers: HeaderMap) -> Result<Response, Error> {
        let sent = self.0.request(method, url.clone()).headers(headers).send().await;
        sent.map_err(|error| {
            let host = url.host_str().unwrap_or_default();
            let reason = causes(&error.without_url());
            Error::Resolve(format!("{host}: {reason}; check the connection, the address, and --hf-endpoint or --plain-http"))
        })
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Self {
        Self::Resolve(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_harness::{
        http_stub::{HttpStub, StubReply},
        hub::{Hub, Repository, sha256},
    };
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn flags(url: &str, files: &[&str]) -> Resolve {
        Resolve {
            url: url.to_owned(),
            files: files.iter().map(|text| (*text).to_owned()).collect(),
            name: None,
            hf_endpoint: None,
            registry_config: None,
            plain_http: false,
            output: ManifestFormat::Yaml,
        }
    }

    async fn resolved(hub: &Hub, url: &str, files: &[&str]) -> Result<String, Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let flags = Resolve { hf_endpoint: Some(hub.url()), ..flags(url, files) };
        manifest(None, &ask(&flags, |_| None).await?, ManifestFormat::Yaml)
    }

    /// A registry that wants a login and has `team/Model:v1` with two files.
    async fn registry() -> HttpStub {
        let layers = [("a.json", 2, b"{}".as_slice()), ("m/w.bin", 7, b"weights")].map(|(path, size, content)| {
            let title = json!({"org.opencontainers.image.title": path});
            json!({"digest": format!("sha256:{}", sha256(content)), "size": size, "annotations": title})
        });
        let body = json!({"schemaVersion": 2, "layers": layers}).to_string();
        HttpStub::start(move |request| match (&*request.path, request.header("authorization")) {
            (_, None) => StubReply::status(401).with("www-authenticate", "Basic realm=\"r\""),
            ("/v2/", _) => StubReply::status(200),
            ("/v2/team/model_a/manifests/v1", Some("Basic YW5uOnMzY3JldA==")) => {
                StubReply::json(body.clone())
            }
            _ => StubReply::status(404),
        })
        .await
    }

    #[tokio::test]
    async fn artifact_of_a_registry_is_printed_with_the_digest_of_its_manifest() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let registry = registry().await;
        let host = format!("127.0.0.1:{}", registry.port);
        let file = tempfile::NamedTempFile::new().unwrap();
        let auths = json!({"auths": {&host: {"username": "ann", "password": "s3cret"}}});
        fs::write(&file, auths.to_string()).unwrap();
        let ask_with = |url: &str, files: &[&str], config: Option<&Path>| {
            let registry_config = config.map(Path::to_owned);
            let flags = Resolve { registry_config, ..flags(url, files) };
            async move { manifest(None, &ask(&flags, |_| None).await?, ManifestFormat::Yaml) }
        };
        let url = format!("oci://{host}/team/model_a:v1");
        let text = ask_with(&url, &["*.json"], Some(file.path())).await.unwrap();
        let model: Model = serde_saphyr::from_str(&text).unwrap();
        assert!(text.starts_with("# 1 file, 2 bytes\n"), "{text}");
        assert_eq!(model.metadata.name.as_deref(), Some("model-a"));
        assert_eq!(model.spec.files, ["*.json"]);
        let list = format!("{}  a.json\n", sha256(b"{}"));
        assert_eq!(model.spec.sha256sum, Some(sha256(list.as_bytes())));
        assert_eq!(registry.requests().len(), 2, "access and the manifest");
        assert!(text.contains(&format!("  modelUrl: {url}@sha256:")), "{text}");

        let denied = ask_with(&url, &[], None).await.unwrap_err().to_string();
        assert!(denied.contains("--registry-config"), "{denied}");
        let other = url.replace(":v1", ":v2");
        let missing = ask_with(&other, &[], Some(file.path())).await.unwrap_err().to_string();
        assert!(missing.contains("no artifact \"v2\""), "{missing}");
        fs::write(&file, "s3cret").unwrap();
        let broken = ask_with(&url, &[], Some(file.path())).await.unwrap_err().to_string();
        assert!(broken.contains("not JSON") && !broken.contains("s3cret"), "{broken}");
    }

    #[tokio::test]
    async fn printed_model_has_the_commit_and_the_digest() {
        let files: [(&str, &[u8]); 3] =
            [("a.json", b"{}"), ("README.md", b"#"), ("m/Weights_1.bin", b"weights")];
        let repository = Repository::new("org/Model").commit("main", &files);
        let commit = repository.resolve("main").unwrap().to_owned();
        let hub = Hub::start(vec![repository]).await;
        let file = resolved(&hub, "hf://org/Model/m/Weights_1.bin", &[]).await.unwrap();
        let digest = sha256(b"weights");
        assert_eq!(
            file,
            format!(
                "# 1 file, 7 bytes\napiVersion: edgeai.io/v1alpha1\nkind: Model\nmetadata:\n  name: weights-1.bin\nspec:\n  modelUrl: hf://org/Model@{commit}/m/Weights_1.bin\n  sha256sum: {digest}\n"
            )
        );
        assert_eq!(hub.sent(), 0, "a large file is not downloaded");
        let set = resolved(&hub, "hf://org/Model", &["*.json", "m/*"]).await.unwrap();
        let list = format!("{}  a.json\n{digest}  m/Weights_1.bin\n", sha256(b"{}"));
        assert!(set.starts_with("# 2 files, 9 bytes\n"), "{set}");
        assert!(set.contains(&format!("sha256sum: {}\n", sha256(list.as_bytes()))), "{set}");
        let model: Model = serde_saphyr::from_str(&set).unwrap();
        assert_eq!(model.spec.files, ["*.json", "m/*"]);
        assert_eq!(model.spec.model_url, format!("hf://org/Model@{commit}"));
    }

    #[tokio::test]
    async fn address_that_cannot_be_resolved_is_an_error_with_the_remedy() {
        let hub = Hub::start(vec![Repository::new("o/r").commit("main", &[("a", b"a")])]).await;
        for (url, files, expected) in [
            ("http://h/m", &[][..], "only addresses of a model hub or a registry have revisions"),
            ("hf://o/r/a", &["*"], "remove the path or the patterns"),
            ("hf://o", &[], "must be hf://organization/repository"),
            ("hf://o/none", &[], "no such repository"),
            ("hf://o/r@v9", &[], "no revision \"v9\""),
        ] {
            let error = resolved(&hub, url, files).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn default_name_is_a_name_of_an_object() {
        for (url, name) in [
            ("hf://o/Qwen2.5-0.5B_Instruct", "qwen2.5-0.5b-instruct"),
            ("hf://o/r/a/Model Q4_K.gguf", "model-q4-k.gguf"),
            ("hf://o/r/_._", "model"),
            ("oci://r/team/small_1:v1", "small-1"),
        ] {
            assert_eq!(default_name(&url.parse().unwrap()), name, "{url}");
        }
    }
}

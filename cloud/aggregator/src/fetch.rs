//! Fetches first weights: searches them among the contents, or downloads them.

use std::{io, path::Path, sync::Arc, time::Duration};

use neptune_aggregate::weights::Weights;
use neptune_content::Digest;
use neptune_wire::{ContentReference, aggregator::InitialWeights, redact};
use reqwest::{Client, Response};
use sha2::{Digest as _, Sha256};
use tokio::{fs::File, io::AsyncWriteExt as _};

use crate::{aggregator::Aggregator, error::Error, run::FetchFailure};

/// How long a server may take to accept a connection, and to send the next bytes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the client that downloads.
///
/// # Errors
/// TLS cannot be set up.
pub fn client() -> Result<Client, Error> {
    #[expect(clippy::disallowed_methods, reason = "the one place of this program that downloads")]
    let client = Client::builder().connect_timeout(TIMEOUT).read_timeout(TIMEOUT);
    client.build().map_err(|error| Error::Start(error.to_string()))
}

/// Returns the content once it is here and usable.
///
/// # Errors
/// It is not, with a text for the user.
pub async fn fetch(
    aggregator: &Arc<Aggregator>,
    client: &Client,
    source: &InitialWeights,
) -> Result<ContentReference, FetchFailure> {
    let sha256 = &source.sha256;
    if aggregator.content(sha256).is_none() {
        let Some(url) = &source.url else {
            let message = format!("the aggregator does not have the weights {sha256}");
            return Err(FetchFailure { message, is_permanent: true });
        };
        let failed = |why: String, is_permanent: bool| {
            let retry = if is_permanent { "" } else { "; retrying" };
            let message = format!("first weights {}: {why}{retry}", redact(url));
            FetchFailure { message, is_permanent }
        };
        let path = aggregator.work_file("initial");
        let limit = aggregator.uploads().max_bytes();
        let actual = download(client, url, limit, &path).await.map_err(|it| failed(it, false))?;
        if actual.to_string() != *sha256 {
            return Err(failed(format!("SHA-256 is {actual}, expected {sha256}"), false));
        }
        let (aggregator, path) = (Arc::clone(aggregator), path.clone());
        let adopted =
            tokio::task::spawn_blocking(move || aggregator.uploads().adopt(&path, &actual)).await;
        adopted.map_err(io::Error::from).flatten().map_err(|it| failed(it.to_string(), false))?;
    }
    let path = aggregator.content(sha256);
    let used = tokio::task::spawn_blocking(move || usable(path.as_deref())).await;
    let bytes = used.map_err(|error| Err(io::Error::from(error))).flatten();
    bytes.map(|bytes| ContentReference { sha256: sha256.clone(), bytes }).map_err(|error| {
        match error {
            Ok(text) => FetchFailure {
                message: format!("weights {sha256} are not usable: {text}"),
                is_permanent: true,
            },
            Err(error) => {
                FetchFailure { message: format!("weights {sha256}: {error}"), is_permanent: false }
            }
        }
    })
}

/// Returns the size of a file of weights. A text is why it can never be used.
fn usable(path: Option<&Path>) -> Result<u64, Result<String, io::Error>> {
    let file = std::fs::File::open(path.unwrap_or(Path::new(""))).map_err(Err)?;
    let bytes = file.metadata().map_err(Err)?.len();
    match Weights::open(file) {
        Ok(weights) => match neptune_aggregate::update::check(&weights, &weights) {
            Ok(Ok(_)) => Ok(bytes),
            Ok(Err(refusal)) => Err(Ok(format!("they contain {refusal}"))),
            Err(error) => Err(Ok(error.to_string())),
        },
        Err(neptune_aggregate::weights::WeightsError::Io(error)) => Err(Err(error)),
        Err(error) => Err(Ok(error.to_string())),
    }
}

async fn download(client: &Client, url: &str, limit: u64, path: &Path) -> Result<Digest, String> {
    let response = client.get(url).send().await.map_err(without_url)?;
    let mut response = response.error_for_status().map_err(without_url)?;
    let too_large = || format!("larger than the {limit} bytes of maxUpdateBytes");
    if response.content_length().is_some_and(|it| it > limit) {
        return Err(too_large());
    }
    let mut file = File::create(path).await.map_err(|error| error.to_string())?;
    let (mut hash, mut length) = (Sha256::new(), 0);
    while let Some(chunk) = next(&mut response).await? {
        length += chunk.len() as u64;
        if length > limit {
            return Err(too_large());
        }
        hash.update(&chunk);
        file.write_all(&chunk).await.map_err(|error| error.to_string())?;
    }
    file.sync_all().await.map_err(|error| error.to_string())?;
    Ok(Digest::from(hash))
}

async fn next(response: &mut Response) -> Result<Option<bytes::Bytes>, String> {
    response.chunk().await.map_err(without_url)
}

/// The text of an error and its causes. The address may contain a password.
fn without_url(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

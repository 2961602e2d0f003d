//! Fetches first weights: searches them among the contents, or downloads them.

use std::{io, path::Path, sync::Arc, time::Duration};

use neptune_aggregate::weights::Weights;
use neptune_content::{
    Digest, InvalidDigest,
    download::{Download, DownloadError, Length, download},
};
use neptune_program::causes;
use neptune_wire::{ContentReference, aggregator::InitialWeights, redact};
use reqwest::Client;

use crate::{aggregator::Aggregator, error::Error, run::FetchFailure};

/// How long a server may take to accept a connection, and to send the next bytes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The names of unfinished downloads begin with this.
const PREFIX: &str = "initial-";

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
        let retrying = |why: String| FetchFailure {
            message: format!("first weights {}: {why}; retrying", redact(url)),
            is_permanent: false,
        };
        let invalid =
            |it: InvalidDigest| FetchFailure { message: it.to_string(), is_permanent: true };
        let content: Digest = sha256.parse().map_err(invalid)?;
        let path = aggregator.work_file(&format!("{PREFIX}{content}"));
        remove_others(&path);
        let length = Length::AtMost(aggregator.uploads().max_bytes());
        let wanted = Download { url: url.clone(), content, length, path: path.clone() };
        download(client, &wanted).await.map_err(|it| retrying(failed(it)))?;
        let aggregator = Arc::clone(aggregator);
        let adopted =
            tokio::task::spawn_blocking(move || aggregator.uploads().adopt(&path, &content)).await;
        adopted.map_err(io::Error::from).flatten().map_err(|it| retrying(it.to_string()))?;
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

/// Removes what is here of downloads of other weights. The next start of the program removes all.
fn remove_others(path: &Path) {
    let own = path.file_name().unwrap_or_default().as_encoded_bytes();
    let Some(entries) = path.parent().and_then(|it| std::fs::read_dir(it).ok()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(PREFIX.as_bytes()) && !name.starts_with(own) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Why a download failed, with a text for the user.
fn failed(error: DownloadError) -> String {
    match error {
        DownloadError::Http(error) => causes(&error.without_url()),
        DownloadError::Status(status, _) => format!("the server answered {status}"),
        DownloadError::Digest { got, expected } => format!("SHA-256 is {got}, expected {expected}"),
        DownloadError::TooLarge { limit } => {
            format!("larger than the {limit} bytes of maxUpdateBytes")
        }
        error @ (DownloadError::Length { .. } | DownloadError::File { .. }) => error.to_string(),
    }
}

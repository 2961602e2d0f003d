//! Posts one report to the controller.

use std::time::Duration;

use bytes::Bytes;
use neptune_program::causes;
use reqwest::{Client, StatusCode, Url, redirect};
use tokio::time::sleep;

use crate::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a post, from the look-up of the controller's name to the whole answer.
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts of one post while a standby replica of the controller answers: each connection may reach
/// another replica.
const STANDBY_ATTEMPTS: u32 = 6;
const STANDBY_DELAY: Duration = Duration::from_millis(50);
/// Maximum length of an answer that is logged, in characters.
const MAX_ANSWER: usize = 200;

/// Why a report was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// Another attempt with this report fails, too.
    #[error("{0}")]
    Invalid(String),
    /// Wrong token, or the service was deleted.
    #[error("{0}")]
    Forbidden(String),
    /// The replica is not active.
    #[error("{0}")]
    Standby(String),
    /// Another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// The HTTP client and the address.
#[derive(Debug)]
pub struct Poster {
    client: Client,
    url: Url,
}

impl Poster {
    /// Posts to this URL, which must be http:// or https://.
    ///
    /// # Errors
    /// [`Error::Config`]. Its message does not contain the URL, which has a token.
    #[expect(clippy::disallowed_methods, reason = "the one HTTP client of the sidecar")]
    pub fn new(url: &str) -> Result<Self, Error> {
        let invalid = |problem: String| Error::Config {
            flag: "--report-url",
            problem,
            remedy: "use the value of WORKER_REPORT_URL",
        };
        let url: Url = url.parse().map_err(|error| invalid(format!("invalid URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid(format!("the scheme {:?} is not http or https", url.scheme())));
        }
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            // The receiver closes the connection after each answer.
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(POST_TIMEOUT)
            .build()
            .map_err(|error| invalid(error.to_string()))?;
        Ok(Self { client, url })
    }

    /// Posts a report, until a replica of the controller answers that is not a standby.
    ///
    /// # Errors
    /// [`PostError`], without the URL.
    pub async fn post(&self, report: Bytes) -> Result<(), PostError> {
        let mut attempts = 1;
        loop {
            match self.post_once(report.clone()).await {
                Err(PostError::Standby(_)) if attempts < STANDBY_ATTEMPTS => {
                    attempts += 1;
                    sleep(STANDBY_DELAY).await;
                }
                result => return result,
            }
        }
    }

    async fn post_once(&self, report: Bytes) -> Result<(), PostError> {
        let answer = self.client.post(self.url.clone()).body(report).send().await;
        let answer = answer.map_err(|error| PostError::Unavailable(causes(&error)))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let text = answer.text().await.unwrap_or_default();
        let text: String = text.trim().chars().take(MAX_ANSWER).collect();
        Err(of_status(status, format!("{status}: {text}")))
    }
}

fn of_status(status: StatusCode, why: String) -> PostError {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => PostError::Invalid(why),
        StatusCode::FORBIDDEN => PostError::Forbidden(why),
        StatusCode::SERVICE_UNAVAILABLE => PostError::Standby(why),
        _ => PostError::Unavailable(why),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn poster(url: &str) -> Result<Poster, Error> {
        // Fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Poster::new(url)
    }

    #[test]
    fn only_an_answer_about_the_report_itself_drops_it() {
        for (status, is_invalid) in [(400, true), (413, true), (403, false), (409, false)] {
            let error = of_status(StatusCode::from_u16(status).unwrap(), String::new());
            assert_eq!(matches!(error, PostError::Invalid(_)), is_invalid, "{status}");
        }
        for status in [404, 409, 429, 500] {
            let error = of_status(StatusCode::from_u16(status).unwrap(), String::new());
            assert!(matches!(error, PostError::Unavailable(_)), "{status}");
        }
    }

    #[tokio::test]
    async fn no_error_contains_the_token() {
        for url in ["ftp://host/token", "token"] {
            let error = poster(url).unwrap_err().to_string();
            assert!(error.contains("--report-url") && !error.contains("token"), "{error}");
        }
        // Nothing listens on port 1.
        let poster = poster("http://127.0.0.1:1/token").unwrap();
        let error = poster.post(Bytes::new()).await.unwrap_err();
        assert!(matches!(error, PostError::Unavailable(_)), "{error:?}");
        assert!(!error.to_string().contains("token"), "{error}");
    }
}

//! Sends the requests to a hub through the transport of the caller, and follows redirects within the
//! hub only.

use std::{future::Future, time::Duration};

use neptune_program::causes;
use neptune_wire::HubAddress;
use reqwest::{
    Method, Response, StatusCode,
    header::{
        AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, HeaderValue, LINK, LOCATION, RETRY_AFTER,
    },
};
use tokio::time::timeout;
use url::Url;

use crate::{
    endpoint::HubEndpoint,
    error::{HubError, HubProblem},
    failure::{HubResponse, problem},
    file_set::check_paths,
    head::{FileHead, HubFile},
    pattern::is_selected,
    requests::{file_url, next_page, refs_url, revision_url, tree_url},
    tree::{ListedFile, RepositoryListing, commit, files, nearest, revisions},
};

/// Maximum number of redirects of one request.
pub(crate) const MAX_REDIRECTS: usize = 5;
/// Maximum size of one answer in bytes.
const MAX_BODY: usize = 16 << 20;
/// Maximum number of pages of a list of files, of at most 1,000 files each.
const MAX_PAGES: usize = 100;
/// Maximum time for the body of one answer.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends HTTP requests. The caller decides which addresses it reaches, through which proxy, and
/// which certificates it trusts.
pub trait Transport: Sync {
    /// Error of the caller.
    type Error: From<HubError> + Send;

    /// Sends one request without a body. Follows no redirect.
    fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
    ) -> impl Future<Output = Result<Response, Self::Error>> + Send;
}

/// A client of one hub.
#[derive(Debug)]
pub struct HubClient<'a, T> {
    transport: &'a T,
    endpoint: &'a HubEndpoint,
}

impl<'a, T: Transport> HubClient<'a, T> {
    /// A client that sends its requests through `transport`.
    pub fn new(transport: &'a T, endpoint: &'a HubEndpoint) -> Self {
        Self { transport, endpoint }
    }

    /// What the hub states about the file of an address. The content is not requested.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the hub does not state it.
    pub async fn file(&self, address: &HubAddress) -> Result<HubFile, T::Error> {
        let mut url = file_url(self.endpoint, address);
        let mut commit = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(Method::HEAD, &url).await?;
            // The target of a redirect within the hub may omit it.
            commit = header(&response, "x-repo-commit").map(str::to_owned).or(commit);
            let status = response.status();
            if status.is_redirection() {
                let target = header(&response, LOCATION.as_str()).and_then(|to| url.join(to).ok());
                if let Some(target) = target.filter(|target| self.endpoint.is_own(target)) {
                    url = target;
                    continue;
                }
            } else if !status.is_success() {
                return Err(self.failed(&response, address).await);
            }
            let length = header(&response, CONTENT_LENGTH.as_str());
            let head = FileHead {
                commit: commit.as_deref(),
                linked_etag: header(&response, "x-linked-etag"),
                linked_size: header(&response, "x-linked-size"),
                etag: header(&response, ETAG.as_str()),
                length: length.filter(|_| status == StatusCode::OK).and_then(|it| it.parse().ok()),
            };
            return head.file().map_err(|reason| invalid(address, reason));
        }
        Err(invalid(address, format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// The files of a set, at the commit to which the revision of the address refers.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the hub does not list the files, no file is
    /// selected, or a path is refused.
    pub async fn list(&self, address: &HubAddress) -> Result<RepositoryListing, T::Error> {
        let (commit, all) = self.all_files(address).await?;
        let is_wanted = |file: &ListedFile| is_selected(&file.path, &address.files);
        let (files, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
        let refused = |problem| T::Error::from(HubError { address: address.to_string(), problem });
        if files.is_empty() && !others.is_empty() {
            let path = address.files.join(", ");
            let names = others.iter().map(|file| file.path.as_str());
            let nearest = nearest(address.files.first().map_or("", String::as_str), names);
            return Err(refused(HubProblem::FileNotFound { path, nearest }));
        }
        let paths = files.iter().map(|file| file.path.as_str());
        check_paths(paths).map_err(|error| refused(error.into()))?;
        Ok(RepositoryListing { commit, files })
    }

    /// The content of a small file, from the hub or from a server to which it redirects. That server
    /// gets no token.
    ///
    /// # Errors
    /// Those of the transport; [`HubProblem`] if the content is not sent, or has more than 16 MiB.
    pub async fn content(&self, address: &HubAddress) -> Result<Vec<u8>, T::Error> {
        let mut url = file_url(self.endpoint, address);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(Method::GET, &url).await?;
            if !response.status().is_redirection() {
                if response.status().is_success() {
                    return body(response, address).await;
                }
                return Err(self.failed(&response, address).await);
            }
            let target = header(&response, LOCATION.as_str()).and_then(|to| url.join(to).ok());
            let keeps_secret = |to: &Url| to.scheme() == "https" || to.scheme() == url.scheme();
            url = target.filter(keeps_secret).ok_or_else(|| {
                invalid::<T::Error>(address, "a file redirects to an unsupported URL".to_owned())
            })?;
        }
        Err(invalid(address, format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn all_files(&self, address: &HubAddress) -> Result<(String, Vec<ListedFile>), T::Error> {
        let (body, _) = self.get(&revision_url(self.endpoint, address), address).await?;
        let commit = commit(&body).map_err(|reason| invalid::<T::Error>(address, reason))?;
        let mut url = tree_url(self.endpoint, address, &commit);
        let mut all = Vec::new();
        for _ in 0..MAX_PAGES {
            let (body, next) = self.get(&url, address).await?;
            all.extend(files(&body).map_err(|reason| invalid::<T::Error>(address, reason))?);
            let Some(next) = next else { return Ok((commit, all)) };
            url = match url.join(&next) {
                Ok(next) if self.endpoint.is_own(&next) => next,
                _ => return Err(invalid(address, "the next page is on another server".to_owned())),
            };
        }
        Err(invalid(address, format!("the list of files has more than {MAX_PAGES} pages")))
    }

    /// Sends a GET request. Returns the body, and the link to the next page.
    async fn get(
        &self,
        url: &Url,
        address: &HubAddress,
    ) -> Result<(Vec<u8>, Option<String>), T::Error> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(Method::GET, &url).await?;
            if response.status().is_redirection() {
                let target = header(&response, LOCATION.as_str()).and_then(|to| url.join(to).ok());
                // A renamed repository. Lists are not on other servers.
                let Some(target) = target.filter(|target| self.endpoint.is_own(target)) else {
                    let reason = "a list of files redirects to another server".to_owned();
                    return Err(invalid(address, reason));
                };
                url = target;
                continue;
            }
            if !response.status().is_success() {
                return Err(self.failed(&response, address).await);
            }
            let next = header(&response, LINK.as_str()).and_then(next_page).map(str::to_owned);
            return Ok((body(response, address).await?, next));
        }
        Err(invalid(address, format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn send(&self, method: Method, url: &Url) -> Result<Response, T::Error> {
        let mut headers = HeaderMap::new();
        let authorization = self.endpoint.authorization(url).map(HeaderValue::try_from);
        if let Some(Ok(mut value)) = authorization {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        self.transport.send(method, url, headers).await
    }

    /// The error of a response, with names that are similar to the missing one.
    async fn failed(&self, response: &Response, address: &HubAddress) -> T::Error {
        let mut error = response_error(response, address);
        match &mut error.problem {
            HubProblem::FileNotFound { path, nearest: names } => {
                let repository = HubAddress { path: None, ..address.clone() };
                if let Ok((_, all)) = Box::pin(self.all_files(&repository)).await {
                    *names = nearest(path, all.iter().map(|file| file.path.as_str()));
                }
            }
            HubProblem::RevisionNotFound { revision, nearest: names } => {
                let refs = refs_url(self.endpoint, address);
                if let Ok(response) = self.send(Method::GET, &refs).await
                    && response.status().is_success()
                    && let Ok(body) = body::<T::Error>(response, address).await
                {
                    let known = revisions(&body);
                    *names = nearest(revision, known.iter().map(String::as_str));
                }
            }
            _ => {}
        }
        error.into()
    }
}

/// The error of a response with an error status.
pub fn response_error(response: &Response, address: &HubAddress) -> HubError {
    let parts = HubResponse {
        status: response.status().as_u16(),
        error_code: header(response, "x-error-code"),
        retry_after: header(response, RETRY_AFTER.as_str()),
        rate_limit: header(response, "ratelimit"),
    };
    problem(&parts, address)
}

async fn body<E: From<HubError>>(response: Response, address: &HubAddress) -> Result<Vec<u8>, E> {
    let body = bounded_body(response, MAX_BODY).await;
    body.map_err(|problem| HubError { address: address.to_string(), problem }.into())
}

/// Reads a body of at most `limit` bytes within [`BODY_TIMEOUT`].
pub(crate) async fn bounded_body(
    mut response: Response,
    limit: usize,
) -> Result<Vec<u8>, HubProblem> {
    let interrupted = |reason: String| HubProblem::Interrupted { reason };
    let reading = async {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > limit {
                break;
            }
        }
        Ok::<_, reqwest::Error>(body)
    };
    let body = timeout(BODY_TIMEOUT, reading)
        .await
        .map_err(|_| interrupted(format!("not complete within {} s", BODY_TIMEOUT.as_secs())))?
        .map_err(|error| interrupted(causes(&error.without_url())))?;
    if body.len() > limit {
        let reason = format!("the answer has more than {limit} bytes");
        return Err(HubProblem::InvalidAnswer { reason });
    }
    Ok(body)
}

pub(crate) fn header<'r>(response: &'r Response, name: &str) -> Option<&'r str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn invalid<E: From<HubError>>(address: &HubAddress, reason: String) -> E {
    let problem = HubProblem::InvalidAnswer { reason };
    HubError { address: address.to_string(), problem }.into()
}

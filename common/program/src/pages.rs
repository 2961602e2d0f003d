//! A server of pages for machines: probes, metrics and states over HTTP/1, on an address of its own.

use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use tokio::net::TcpListener;

use crate::listen::{self, Gate, HttpRules, Limits, Refusals, serve_http};

/// The answer of a page.
pub type Page = Response<Full<Bytes>>;

/// A server of pages.
#[derive(Debug, Clone, Copy)]
pub struct PageServer {
    /// Its name in metrics and in the log.
    pub name: &'static str,
    /// The connections that it accepts.
    pub limits: Limits,
    /// How long a connection may be idle between requests, or in a header.
    pub idle_timeout: Duration,
    /// Paths that are answered without a place, so that they always are.
    pub probes: &'static [&'static str],
}

impl PageServer {
    /// Serves until the task ends. Counts refused connections in `refusals`.
    pub async fn serve<F>(
        self,
        listener: TcpListener,
        refusals: &Refusals,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = Page> + Send + 'static,
    {
        let gate = Gate::new(self.name, self.limits, refusals);
        let Self { idle_timeout, probes, .. } = self;
        listen::run(&listener, &gate, pending(), |stream, _, entry| {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let rules = HttpRules { idle_timeout, probes, busy: listen::busy };
            serve_http(stream, entry, rules, service)
        })
        .await;
    }
}

/// Returns a page of text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Page {
    let mut page = Page::new(Full::new(text.into()));
    *page.status_mut() = status;
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    page.headers_mut().insert(CONTENT_TYPE, media_type);
    page
}

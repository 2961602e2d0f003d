//! The page of metrics: its two text formats, and the figures of the program itself.
//!
//! | file | task |
//! |---|---|
//! | `text_format` | the page in the format of Prometheus; pure |
//! | `process` | the build and the process, from `/proc/self` |

mod process;
mod text_format;

use hyper::{
    HeaderMap, Response,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};

use crate::listen::Refusals;

pub use self::{process::register, text_format::text_format};

/// Upper bounds of a program's own time, in seconds. There are three sets of buckets, so that
/// histograms of several programs can be compared.
pub const FAST_BUCKETS: [f64; 10] = [5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.25];
/// Upper bounds of the time of a request, in seconds: those that are usual for HTTP, extended for
/// language models.
pub const REQUEST_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds of the time of work in the background, in seconds.
pub const WORK_BUCKETS: [f64; 9] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];

/// The media type of `OpenMetrics`.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics of a registry in the format of `OpenMetrics`, without the line that ends a
/// page.
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    encode_registry(&mut text, registry).expect("a String takes every text");
    text
}

/// Returns the metrics of the build, of the process and of refused connections in the format of
/// `OpenMetrics`, for a page that a program writes itself. `prefix` is that of the program.
pub fn program_page(prefix: &str, refusals: &Refusals) -> String {
    let mut registry = Registry::default();
    register(&mut registry);
    refusals.register(registry.sub_registry_with_prefix(prefix));
    encode(&registry)
}

/// Returns the answer with these metrics in the format that the client accepts: `OpenMetrics` if its
/// request names it, otherwise the text format of Prometheus. `metrics` are in the format of
/// `OpenMetrics`, without the line that ends a page.
pub fn answer<B: From<String>>(request: &HeaderMap, mut metrics: String) -> Response<B> {
    let (media_type, page) = if accepts_open_metrics(request) {
        encode_eof(&mut metrics).expect("a String takes every text");
        (OPEN_METRICS, metrics)
    } else {
        (TEXT, text_format(&metrics))
    };
    let mut answer = Response::new(B::from(page));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}

/// Whether a request names the media type without refusing it.
fn accepts_open_metrics(request: &HeaderMap) -> bool {
    let values = request.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_refused = |part: &str| {
            part.strip_prefix("q=").and_then(|q| q.parse::<f64>().ok()).is_some_and(|q| q <= 0.0)
        };
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"))
            && !parts.any(is_refused)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn format_is_the_one_that_the_client_accepts() {
        let ask = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            let answer = answer::<String>(&headers, "# TYPE a counter\na_total 1\n".to_owned());
            let media_type = answer.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            (media_type, answer.into_body())
        };
        let open = (OPEN_METRICS.to_owned(), "# TYPE a counter\na_total 1\n# EOF\n".to_owned());
        let text = (TEXT.to_owned(), "# TYPE a_total counter\na_total 1\n".to_owned());
        assert_eq!(ask(&[]), text);
        assert_eq!(ask(&["*/*"]), text);
        assert_eq!(ask(&["text/plain; version=0.0.4; q=0.5"]), text);
        assert_eq!(ask(&["application/openmetrics-text; version=1.0.0; q=0"]), text);
        assert_eq!(ask(&["text/html", "application/openmetrics-text"]), open);
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        assert_eq!(ask(&[prometheus]), open);
    }
}

//! Merges the metrics of several gateways into one page of the OpenMetrics text format: a family
//! appears once, and each sample has the labels of its gateway.

#![allow(clippy::doc_markdown, reason = "OpenMetrics is a name")]

use std::{collections::BTreeMap, fmt::Write as _};

use neptune_wire::{ObjectKey, WorkerName};

/// The label that a gateway sets itself in some samples.
const SERVICE: &str = "service=\"";

/// The metrics of one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPage {
    pub service: ObjectKey,
    pub worker: WorkerName,
    /// `None` if the gateway does not answer.
    pub text: Option<String>,
}

/// A family: its comments, and the samples of all gateways.
#[derive(Default)]
struct Family<'a> {
    comments: Vec<&'a str>,
    samples: Vec<String>,
}

/// Merges the metrics of all gateways and of the agent itself.
pub fn merge(pages: &[GatewayPage], node: &str) -> String {
    let mut up =
        "# HELP neptune_edge_gateway_up Whether the gateway answers the agent (1) or not (0).\n\
        # TYPE neptune_edge_gateway_up gauge\n"
            .to_owned();
    for page in pages {
        let is_up = u8::from(page.text.is_some());
        // Writing to a string does not fail.
        let _ = writeln!(up, "{}", labelled(&format!("neptune_edge_gateway_up {is_up}"), page));
    }
    let mut families = BTreeMap::new();
    for page in pages {
        let text = page.text.as_deref().unwrap_or_default();
        add(&mut families, text, |sample| labelled(sample, page));
    }
    add(&mut families, node, str::to_owned);
    if !pages.is_empty() {
        add(&mut families, &up, str::to_owned);
    }
    let mut text = String::new();
    for line in families.values().flat_map(|family| {
        let samples = family.samples.iter().map(String::as_str);
        family.comments.iter().copied().chain(samples)
    }) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Adds the families of a page, with the samples that `labelled` returns.
fn add<'a>(
    families: &mut BTreeMap<&'a str, Family<'a>>,
    text: &'a str,
    labelled: impl Fn(&str) -> String,
) {
    let mut name = "";
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            // `# EOF` has no name.
            let Some(family) = comment.split(' ').nth(1) else { continue };
            name = family;
            let comments = &mut families.entry(name).or_default().comments;
            if !comments.contains(&line) {
                comments.push(line);
            }
        } else if !line.is_empty() {
            families.entry(name).or_default().samples.push(labelled(line));
        }
    }
}

/// The sample with the labels of its gateway.
fn labelled(sample: &str, page: &GatewayPage) -> String {
    let end = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(end);
    let (own, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once("} ").map_or((rest, ""), |(own, rest)| (own, rest)),
        None => ("", rest.trim_start()),
    };
    let GatewayPage { service, worker, .. } = page;
    let mut labels = format!("namespace=\"{}\",worker=\"{worker}\"", service.namespace);
    // A quote within a value is escaped, so that this is the label.
    let has_service = own.starts_with(SERVICE) || own.contains(&format!(",{SERVICE}"));
    if !has_service {
        let _ = write!(labels, ",service=\"{}\"", service.name);
    }
    let comma = if own.is_empty() { "" } else { "," };
    format!("{name}{{{labels}{comma}{own}}} {rest}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn page(name: &str, text: Option<&str>) -> GatewayPage {
        GatewayPage {
            service: format!("shop/jointinferenceservices/{name}").parse().unwrap(),
            worker: format!("{name}-edge").parse().unwrap(),
            text: text.map(str::to_owned),
        }
    }

    #[test]
    fn family_appears_once_with_the_samples_of_all_gateways() {
        let text = "# HELP requests Answered requests.\n# TYPE requests counter\n\
            requests_total{service=\"a\",code=\"200\"} 3\n# HELP threshold Threshold.\n\
            # TYPE threshold gauge\nthreshold 0.5\n# EOF\n";
        let pages = [
            page("a", Some(text)),
            page("b", Some(&text.replace("\"a\"", "\"b\""))),
            page("c", None),
        ];
        let node = "# HELP threshold Threshold.\n# TYPE threshold gauge\nthreshold 0.7\n\
            # TYPE node counter\nnode_total 1\n";
        let merged = merge(&pages, node);
        let expected = "# HELP neptune_edge_gateway_up Whether the gateway answers the agent (1) or not (0).\n\
            # TYPE neptune_edge_gateway_up gauge\n\
            neptune_edge_gateway_up{namespace=\"shop\",worker=\"a-edge\",service=\"a\"} 1\n\
            neptune_edge_gateway_up{namespace=\"shop\",worker=\"b-edge\",service=\"b\"} 1\n\
            neptune_edge_gateway_up{namespace=\"shop\",worker=\"c-edge\",service=\"c\"} 0\n\
            # TYPE node counter\nnode_total 1\n\
            # HELP requests Answered requests.\n# TYPE requests counter\n\
            requests_total{namespace=\"shop\",worker=\"a-edge\",service=\"a\",code=\"200\"} 3\n\
            requests_total{namespace=\"shop\",worker=\"b-edge\",service=\"b\",code=\"200\"} 3\n\
            # HELP threshold Threshold.\n# TYPE threshold gauge\n\
            threshold{namespace=\"shop\",worker=\"a-edge\",service=\"a\"} 0.5\n\
            threshold{namespace=\"shop\",worker=\"b-edge\",service=\"b\"} 0.5\n\
            threshold 0.7\n";
        assert_eq!(merged, expected);
    }

    #[test]
    fn sample_keeps_its_own_labels_and_value() {
        let labels = "namespace=\"shop\",worker=\"a-edge\"";
        for (sample, expected) in [
            ("x 1", format!("x{{{labels},service=\"a\"}} 1")),
            ("x{} 1", format!("x{{{labels},service=\"a\"}} 1")),
            ("x{le=\"+Inf\"} 1", format!("x{{{labels},service=\"a\",le=\"+Inf\"}} 1")),
            ("x{my_service=\"b\"} 1", format!("x{{{labels},service=\"a\",my_service=\"b\"}} 1")),
            (
                r#"x{t=",service=\"b"} 1"#,
                format!(r#"x{{{labels},service="a",t=",service=\"b"}} 1"#),
            ),
            ("x{t=\"1\",service=\"b\"} 1", format!("x{{{labels},t=\"1\",service=\"b\"}} 1")),
        ] {
            assert_eq!(labelled(sample, &page("a", None)), expected);
        }
    }
}

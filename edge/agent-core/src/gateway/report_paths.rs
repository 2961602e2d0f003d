//! Replaces the paths of secrets in the reports of gateways: a gateway knows those in its
//! container, and people need those on the node.

use std::path::Path;

use neptune_wire::{GatewayReport, GatewaySpec};

use super::{directories::SECRETS_DIR, files::source_of_copy};

/// The report with the paths of the node.
pub fn on_node(report: &GatewayReport, spec: &GatewaySpec, secret_dir: &Path) -> GatewayReport {
    let mut report = report.clone();
    for problem in &mut report.problems {
        problem.message = text_on_node(&problem.message, spec, secret_dir);
    }
    report.bounded()
}

fn text_on_node(text: &str, spec: &GatewaySpec, secret_dir: &Path) -> String {
    let prefix = format!("{SECRETS_DIR}/");
    let mut parts = text.split(&prefix);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
        let copy = part[..end].trim_end_matches('.');
        // Copies of certificates have other names than their sources.
        let source = source_of_copy(copy, spec).unwrap_or(copy);
        shown.push_str(&secret_dir.join(source).to_string_lossy());
        shown.push_str(&part[copy.len()..]);
    }
    shown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{GatewayProblem, GatewayProblemReason};

    use super::*;
    use crate::{fixtures::wanted_gateway, gateway::files::ca_copy_name};

    #[test]
    fn report_names_the_files_of_the_node() {
        let spec = GatewaySpec {
            ca_file: Some("authorities".into()),
            ..*wanted_gateway().worker.gateway.unwrap()
        };
        let ca = ca_copy_name(b"pem");
        for (text, shown) in [
            (
                "refuses the token in /etc/neptune-gateway-secrets/llm (401 Unauthorized): every"
                    .to_owned(),
                "refuses the token in /srv/secrets/llm (401 Unauthorized): every".to_owned(),
            ),
            (
                format!("CA file {SECRETS_DIR}/{ca}: it contains no certificate"),
                "CA file /srv/secrets/authorities: it contains no certificate".to_owned(),
            ),
            (
                format!("{SECRETS_DIR}/a, {SECRETS_DIR}/b."),
                "/srv/secrets/a, /srv/secrets/b.".into(),
            ),
            ("no path".to_owned(), "no path".to_owned()),
        ] {
            let problem =
                GatewayProblem { reason: GatewayProblemReason::CloudRefusesToken, message: text };
            let report = GatewayReport { problems: vec![problem], ..GatewayReport::default() };
            let reported = on_node(&report, &spec, Path::new("/srv/secrets"));
            assert_eq!(reported.problems[0].message, shown);
        }
    }
}

//! The part of a service's page that its gateway reports. Pure.

use neptune_api::JointInferenceServiceStatus;
use serde::Serialize;

use super::{
    format::{or_none, sparkline},
    section::{Section, Value},
};

/// How the samples of a service are answered, and by which threshold.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cascade {
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    pub protocol: Option<String>,
    pub signal: Option<String>,
    pub threshold: Option<String>,
    pub agreement: Option<String>,
    pub cloud: Option<String>,
    pub shares: Shares,
    /// Share of the last 1000 samples that was uploaded; absent before the first sample.
    pub upload_ratio: Option<String>,
    /// The last upload ratios, the newest last.
    pub history: Vec<String>,
    pub problems: Vec<String>,
    /// The tiers of the chain that begins here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
}

/// A tier of a chain of services.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tier {
    pub service: String,
    pub answered: u64,
    /// The share of all samples that it answered.
    pub share: String,
    /// The share of all samples that arrives above it.
    pub above: String,
}

/// Shares of all samples, from the exact totals.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shares {
    pub edge: String,
    pub cloud: String,
    pub fallback: String,
    pub over_budget: String,
    pub unjudged: String,
}

impl Cascade {
    /// The gateway's part of a status.
    pub fn from_status(status: &JointInferenceServiceStatus) -> Option<Self> {
        let gateway = status.gateway.clone()?;
        let problem = |problem: &neptune_api::GatewayProblemStatus| {
            format!("{}: {}: {}", problem.node, problem.reason, problem.message)
        };
        Some(Self {
            shares: Shares::from_status(status),
            tiers: tiers(status),
            problems: gateway.problems.iter().map(problem).collect(),
            url: gateway.url,
            grpc_url: gateway.grpc_url,
            service_url: gateway.service_url,
            protocol: gateway.protocol,
            signal: gateway.signal,
            threshold: gateway.threshold,
            agreement: gateway.agreement,
            cloud: gateway.cloud,
            upload_ratio: gateway.upload_ratio,
            history: gateway.history,
        })
    }

    /// Where clients connect, how samples are answered, and what is wrong.
    pub fn section(&self) -> Section {
        let known = |text: &Option<String>| or_none(text.as_deref());
        let Shares { edge, cloud, fallback, over_budget, unjudged } = &self.shares;
        let grpc = self.grpc_url.as_ref().map(|url| format!(", gRPC {url}")).unwrap_or_default();
        let address = format!(
            "{}{grpc} (protocol {}, signal {})",
            known(&self.url),
            known(&self.protocol),
            known(&self.signal)
        );
        let shares = format!(
            "edge {edge}, cloud {cloud}, fallback {fallback}, over budget {over_budget}, unjudged {unjudged}"
        );
        let threshold = format!(
            "threshold {}, agreement {}, cloud {}",
            known(&self.threshold),
            known(&self.agreement),
            known(&self.cloud)
        );
        let bars = sparkline(&self.history);
        let bars = if bars.is_empty() { bars } else { format!("{bars} ") };
        let uploads =
            format!("uploads {bars}{} of the last 1000 samples", known(&self.upload_ratio));
        let service = self.service_url.as_ref().map(|url| format!("on other nodes {url}"));
        let lines = std::iter::once(address).chain(service).chain([shares, threshold, uploads]);
        let mut values = vec![Value { name: "Cascade".to_owned(), lines: lines.collect() }];
        if !self.tiers.is_empty() {
            let lines = self.tiers.iter().map(|Tier { service, answered, share, above }| {
                format!("{service}: {answered} ({share}), above it {above}")
            });
            values.push(Value { name: "Tiers".to_owned(), lines: lines.collect() });
        }
        if !self.problems.is_empty() {
            values.push(Value { name: "Problems".to_owned(), lines: self.problems.clone() });
        }
        Section::Values(values)
    }
}

/// The tiers, with the share of samples that arrives above each.
fn tiers(status: &JointInferenceServiceStatus) -> Vec<Tier> {
    let all: u64 = status.tiers.iter().map(|tier| tier.answered).sum();
    #[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
    let percent = |part: u64| format!("{:.2} %", part as f64 / all.max(1) as f64 * 100.0);
    let mut rest = all;
    let tier = |tier: &neptune_api::TierStatus| {
        rest = rest.saturating_sub(tier.answered);
        Tier {
            service: tier.service.clone(),
            answered: tier.answered,
            share: percent(tier.answered),
            above: percent(rest),
        }
    };
    status.tiers.iter().map(tier).collect()
}

impl Shares {
    fn from_status(status: &JointInferenceServiceStatus) -> Self {
        let total = |key: &str| {
            let metric = status.metrics.iter().find(|metric| metric.key == key);
            metric.and_then(|metric| metric.value.parse().ok()).unwrap_or(0.0_f64)
        };
        let all = total("inferenceNumber");
        let [cloud, fallback, over_budget, unjudged] =
            ["hardExampleNumber", "fallbackNumber", "overBudgetNumber", "unjudgedNumber"]
                .map(total);
        let share = |number: f64| {
            if all > 0.0 { format!("{:.1} %", number / all * 100.0) } else { "-".to_owned() }
        };
        Self {
            edge: share((all - cloud - fallback - over_budget - unjudged).max(0.0)),
            cloud: share(cloud),
            fallback: share(fallback),
            over_budget: share(over_budget),
            unjudged: share(unjudged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_show_what_arrives_above_each() {
        let tier = |service: &str, answered| neptune_api::TierStatus {
            service: service.to_owned(),
            answered,
            share: String::new(),
        };
        let rows = vec![tier("cam", 480), tier("box", 90), tier("box/cloud", 30)];
        let status = JointInferenceServiceStatus { tiers: rows, ..Default::default() };
        let rows: Vec<_> =
            tiers(&status).into_iter().map(|tier| (tier.share, tier.above)).collect();
        let expected = [("80.00 %", "20.00 %"), ("15.00 %", "5.00 %"), ("5.00 %", "0.00 %")];
        assert_eq!(rows, expected.map(|(share, above)| (share.to_owned(), above.to_owned())));
    }

    #[test]
    fn shares_without_samples_are_unknown() {
        let shares = Shares::from_status(&JointInferenceServiceStatus::default());
        assert_eq!((shares.edge.as_str(), shares.unjudged.as_str()), ("-", "-"));
    }
}

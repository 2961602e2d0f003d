//! The hard example algorithm of a gateway: from the strings of the spec to the configuration, and
//! whether it fits the protocol. A part of `validate`.

use neptune_api::{HardExampleAlgorithm, KeyValue, ServerProtocol};
use neptune_gateway_config::{Algorithm, Goal, HardExample, Reads, ScoreKind, TokenRule};

use crate::{finding::Finding, joint_inference_service::spec::goal::parse_share, reason::Reason};

const FIELD: &str = "spec.edgeWorker.hardExampleAlgorithm";

/// The parameters that are the threshold: the names of the workers' library are valid too.
const THRESHOLDS: [&str; 3] = ["threshold", "threshold_img", "threshold_cross_entropy"];

/// What a user gets to know although the spec is valid: which threshold decides.
pub fn threshold_warning(algorithm: &HardExampleAlgorithm) -> Option<String> {
    let has_goal = algorithm.goal.as_ref().is_some_and(|goal| {
        let goals = [&goal.upload_ratio, &goal.agreement, &goal.total_upload_ratio];
        goals.iter().any(|goal| goal.is_some())
    });
    let has_threshold = algorithm.parameters.iter().any(|p| THRESHOLDS.contains(&p.key.as_str()));
    let name = &algorithm.name;
    let reads = one_of(&Algorithm::NAMES, name)?.reads();
    (reads != Reads::Nothing && !has_goal && !has_threshold).then(|| {
        format!(
            "no goal and no threshold: {name}'s default 0.5 is used; goal: {{uploadRatio: \"0.2\"}} uploads a fixed share instead"
        )
    })
}

/// Returns the value with this name; `None` if no value has it.
fn one_of<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn listed<T>(names: &[(&str, T)]) -> String {
    names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The section `hardExample` of the gateway's configuration.
pub fn hard_example_config(
    algorithm: &HardExampleAlgorithm,
    protocol: ServerProtocol,
    findings: &mut Vec<Finding>,
) -> HardExample {
    let known = one_of(&Algorithm::NAMES, &algorithm.name);
    match known {
        None => {
            let message = format!(
                "{FIELD}.name {:?} is not an algorithm of the gateway; use one of {}",
                algorithm.name,
                listed(&Algorithm::NAMES)
            );
            findings.push(Finding::new(Reason::HardExampleAlgorithmInvalid, message));
        }
        Some(known) => unsuited(&algorithm.name, known.reads(), protocol, findings),
    }
    let mut config = HardExample { algorithm: known, ..HardExample::default() };
    for parameter in &algorithm.parameters {
        set(parameter, &mut config, findings);
    }
    fits_kind(&config, findings);
    goal(algorithm, &mut config, findings);
    let Goal { upload_ratio, agreement } = config.goal;
    let holds_agreement = agreement.is_some() && upload_ratio.is_none();
    if protocol == ServerProtocol::Openai && holds_agreement && config.labels.is_empty() {
        let message = format!(
            "{FIELD}.goal: agreement compares the answers of a language model by their labels: give the parameter labels, such as \"yes,no\", or uploadRatio instead"
        );
        findings.push(Finding::new(Reason::GoalInvalid, message));
    }
    config
}

fn unsuited(name: &str, reads: Reads, protocol: ServerProtocol, findings: &mut Vec<Finding>) {
    let is_tensor = protocol != ServerProtocol::Openai;
    let message = match reads {
        Reads::Tokens if is_tensor => format!(
            "{FIELD}: {name} reads tokens; protocol {protocol} answers with tensors: did you mean MaxProbability?"
        ),
        Reads::Classes | Reads::Boxes if !is_tensor => format!(
            "{FIELD}: {name} reads tensors; protocol {protocol} answers with tokens: did you mean LogProb?"
        ),
        _ => return,
    };
    findings.push(Finding::new(Reason::AlgorithmUnsuited, message));
}

fn set(parameter: &KeyValue, config: &mut HardExample, findings: &mut Vec<Finding>) {
    let KeyValue { key, value } = parameter;
    let a_share = || parse_share(value).ok_or_else(|| "must be a decimal from 0 to 1".to_owned());
    let must_be = |names: String| format!("must be one of {names}");
    let result = match key.as_str() {
        key if THRESHOLDS.contains(&key) => a_share().map(|it| config.threshold = it),
        "quantile" => a_share().map(|it| config.quantile = it),
        "threshold_box" => a_share().map(|it| config.threshold_box = it),
        "kind" => one_of(&ScoreKind::NAMES, value)
            .map(|it| config.kind = Some(it))
            .ok_or_else(|| must_be(listed(&ScoreKind::NAMES))),
        "signal" => one_of(&TokenRule::NAMES, value)
            .map(|it| config.tokens = it)
            .ok_or_else(|| must_be(listed(&TokenRule::NAMES))),
        "output" => {
            config.output = Some(value.clone());
            Ok(())
        }
        "labels" => {
            config.labels = value.split(',').map(|label| label.trim().to_owned()).collect();
            Ok(())
        }
        _ => Err("is not a parameter of the gateway; use threshold, output, kind, signal, quantile, labels or threshold_box".to_owned()),
    };
    if let Err(why) = result {
        let message = format!("{FIELD}.parameters: {key:?} with value {value:?} {why}");
        findings.push(Finding::new(Reason::ParameterInvalid, message));
    }
}

fn fits_kind(config: &HardExample, findings: &mut Vec<Finding>) {
    let message = match (config.algorithm.map(Algorithm::reads), config.kind) {
        (Some(Reads::Classes), Some(ScoreKind::Boxes)) => "kind boxes is for IBT and Threshold",
        (Some(Reads::Boxes), Some(ScoreKind::Probabilities | ScoreKind::Logits)) => {
            "IBT and Threshold read boxes; remove kind"
        }
        _ if config.tokens == TokenRule::Choice && config.labels.len() < 2 => {
            "signal choice needs at least two labels, separated by commas"
        }
        _ => return,
    };
    let message = format!("{FIELD}.parameters: {message}");
    findings.push(Finding::new(Reason::ParameterInvalid, message));
}

fn goal(algorithm: &HardExampleAlgorithm, config: &mut HardExample, findings: &mut Vec<Finding>) {
    let goal = algorithm.goal.clone().unwrap_or_default();
    let mut invalid = |why: String| {
        findings.push(Finding::new(Reason::GoalInvalid, format!("{FIELD}.goal: {why}")));
    };
    let neptune_api::Goal {
        upload_ratio,
        total_upload_ratio,
        agreement,
        max_upload_ratio,
        shadow_ratio,
    } = &*goal;
    let mut read = |name: &str, text: &Option<String>| {
        let text = text.as_ref()?;
        let read = parse_share(text);
        if read.is_none() {
            invalid(format!("{name} {text:?} must be a decimal from 0 to 1, such as \"0.2\""));
        }
        read
    };
    let ratio = read("uploadRatio", upload_ratio);
    let total = read("totalUploadRatio", total_upload_ratio);
    let agreement = read("agreement", agreement);
    let cap = read("maxUploadRatio", max_upload_ratio);
    let shadow = read("shadowRatio", shadow_ratio);
    if ratio.is_some() && agreement.is_some() {
        invalid(
            "give uploadRatio or agreement, not both: one is enforced, the other follows"
                .to_owned(),
        );
    }
    if total.is_some() && (ratio.is_some() || agreement.is_some()) {
        invalid(
            "give totalUploadRatio, or uploadRatio or agreement: only one is enforced".to_owned(),
        );
    }
    if let (Some(cap), Some(ratio)) = (cap, ratio)
        && cap < ratio
    {
        invalid(format!("maxUploadRatio {cap} is below uploadRatio {ratio}"));
    }
    if algorithm.name == "Random" && ratio.or(total).is_none() {
        invalid("Random needs uploadRatio".to_owned());
    }
    config.goal = Goal { upload_ratio: ratio, agreement };
    config.max_upload_ratio = cap;
    config.shadow_ratio = shadow;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn algorithm(value: Value) -> HardExampleAlgorithm {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn strings_become_the_numbers_of_the_configuration() {
        let algorithm = algorithm(json!({
            "name": "LogProb",
            "goal": {"uploadRatio": "0.2", "maxUploadRatio": "0.25", "shadowRatio": "0"},
            "parameters": [
                {"key": "signal", "value": "choice"}, {"key": "labels", "value": "yes, no"},
                {"key": "threshold", "value": "0.7"},
            ],
        }));
        let mut findings = Vec::new();
        assert_eq!(
            hard_example_config(&algorithm, ServerProtocol::Openai, &mut findings),
            serde_json::from_value(json!({
                "algorithm": "LogProb", "goal": {"uploadRatio": 0.2}, "maxUploadRatio": 0.25,
                "shadowRatio": 0.0, "tokens": "choice", "labels": ["yes", "no"], "threshold": 0.7,
            }))
            .unwrap()
        );
        assert_eq!(findings, []);
    }

    #[test]
    fn agreement_of_a_language_model_needs_labels() {
        let findings = |protocol, labels: &str| {
            let name = if protocol == ServerProtocol::Openai { "LogProb" } else { "Margin" };
            let mut algorithm = json!({"name": name, "goal": {"agreement": "0.9"}});
            if !labels.is_empty() {
                algorithm["parameters"] = json!([{"key": "labels", "value": labels}]);
            }
            let algorithm = self::algorithm(algorithm);
            let mut findings = Vec::new();
            hard_example_config(&algorithm, protocol, &mut findings);
            findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        let [message] = &findings(ServerProtocol::Openai, "")[..] else { unreachable!() };
        assert!(message.contains("give the parameter labels"), "{message}");
        assert_eq!(findings(ServerProtocol::Openai, "yes,no"), [""; 0]);
        assert_eq!(findings(ServerProtocol::Oip, ""), [""; 0]);
    }

    #[test]
    fn default_threshold_is_a_warning_unless_it_has_no_effect() {
        let with = |name: &str, rest: Value| {
            let mut value = json!({ "name": name });
            value.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            threshold_warning(&algorithm(value))
        };
        let text = with("CrossEntropy", json!({})).unwrap();
        assert!(text.contains("CrossEntropy's default 0.5 is used; goal: {uploadRatio"), "{text}");
        assert_eq!(with("LogProb", json!({"goal": {"agreement": "0.9"}})), None);
        let threshold = json!({"parameters": [{"key": "threshold", "value": "0.5"}]});
        assert_eq!(with("LogProb", threshold), None);
        assert_eq!(with("CloudOnly", json!({})), None);
    }
}

//! What an API server is told of a write: deny it, or warn of what is amiss. Pure; what is amiss is
//! found by the controllers' own `validate`, so that a warning says what a condition will say.

use neptune_wire::Resource;

use crate::{
    cli::MissingReferences,
    finding::{Finding, Missing},
    reason::Reason,
};

/// Longer warnings may be cut by the API server, in characters.
const LONGEST: usize = 256;

/// All warnings of an answer share 4096 characters.
const MOST: usize = 4096 / LONGEST;

/// What is said of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Why it is denied, if it is.
    pub denied: Option<String>,
    /// What the user is told besides.
    pub warnings: Vec<String>,
}

/// How much a finding weighs at apply time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// Only a change of this very object helps.
    Malformed,
    /// The object names another one that is not there.
    Missing,
    /// Something else has to change, or may: it may well be the next in the same `kubectl apply`.
    Elsewhere,
}

/// The verdict on a write. `before` is what was amiss with the object as it is: of that a user is warned,
/// since whoever only adds a label must not be held up by what was there already.
pub fn decide(
    resource: Resource,
    findings: &[Finding],
    before: &[Finding],
    references: MissingReferences,
    suggestion: impl Fn(&Missing) -> Option<String>,
) -> Decision {
    let mut decision = Decision::default();
    let mut denials = Vec::new();
    for finding in findings {
        let denies = match weight(resource, finding.reason) {
            Weight::Malformed => true,
            Weight::Missing => references == MissingReferences::Deny,
            Weight::Elsewhere => false,
        };
        let text = message(finding, &suggestion);
        if denies && !before.contains(finding) {
            denials.push(text);
        } else {
            decision.warnings.push(one_line(&text));
        }
    }
    bound(&mut decision.warnings);
    decision.denied = (!denials.is_empty()).then(|| denials.join("; "));
    decision
}

fn message(finding: &Finding, suggestion: &impl Fn(&Missing) -> Option<String>) -> String {
    let suggestion = finding.missing.as_ref().and_then(suggestion);
    let hint = suggestion.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default();
    format!("{}{hint}", finding.message)
}

/// What is final for a condition is not final here when it is another object that is wrong.
fn weight(resource: Resource, reason: Reason) -> Weight {
    use Reason::{
        DatasetNotFound, FrameworkUnknown, ImageRequired, ModelDigestInvalid, ModelNotFound,
        ModelUrlInvalid, NodeNotFound,
    };
    match (resource, reason) {
        (_, ModelNotFound | DatasetNotFound | NodeNotFound) => Weight::Missing,
        // The table of frameworks is a ConfigMap, and what a service says of a Model is the Model's.
        (_, FrameworkUnknown | ImageRequired)
        | (Resource::JointInferenceServices, ModelUrlInvalid | ModelDigestInvalid) => {
            Weight::Elsewhere
        }
        (_, reason) if reason.condition() == neptune_api::JisConditionType::Failed => {
            Weight::Malformed
        }
        _ => Weight::Elsewhere,
    }
}

/// A header cannot have more than one line.
fn one_line(text: &str) -> String {
    let line = text.replace(|c: char| c.is_control(), " ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    line.chars().take(LONGEST - 3).chain("...".chars()).collect()
}

fn bound(warnings: &mut Vec<String>) {
    if warnings.len() > MOST {
        let more = warnings.len() - (MOST - 1);
        warnings.truncate(MOST - 1);
        warnings.push(format!("and {more} more; the status will tell"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Resource = Resource::JointInferenceServices;

    fn missing() -> Finding {
        let field = "spec.cloudWorker.model.name";
        Finding::missing_object(
            Reason::ModelNotFound,
            Resource::Models,
            "default",
            "big-modle",
            field,
        )
    }

    fn malformed() -> Finding {
        Finding::new(Reason::NameInvalid, "spec.edgeWorker.name \"a b\" must be letters")
    }

    fn review_change(
        findings: &[Finding],
        before: &[Finding],
        references: MissingReferences,
    ) -> Decision {
        decide(SERVICE, findings, before, references, |_| Some("big-model".to_owned()))
    }

    #[test]
    fn malformed_is_denied_and_missing_is_a_warning_or_denied_by_flag() {
        use MissingReferences::{Deny, Warn};
        type Case<'a> = (&'a [Finding], &'a [Finding], MissingReferences, bool, usize);
        let table: &[Case] = &[
            (&[], &[], Deny, false, 0),
            (&[missing()], &[], Warn, false, 1),
            (&[missing()], &[], Deny, true, 0),
            (&[malformed()], &[], Warn, true, 0),
            (&[malformed(), missing()], &[], Warn, true, 1),
            // What was so before is no reason to forbid a label.
            (&[missing()], &[missing()], Deny, false, 1),
            (&[malformed()], &[malformed()], Deny, false, 1),
            (&[malformed(), missing()], &[missing()], Deny, true, 1),
        ];
        for (findings, before, references, denied, warnings) in table {
            let decision = review_change(findings, before, *references);
            let outcome = (decision.denied.is_some(), decision.warnings.len());
            assert_eq!(outcome, (*denied, *warnings), "{findings:?} {before:?} {references:?}");
        }
    }

    #[test]
    fn warning_is_the_message_of_the_condition_with_a_suggestion() {
        let decision = review_change(&[missing()], &[], MissingReferences::Warn);
        assert_eq!(
            decision.warnings,
            [
                "model \"big-modle\" not found in namespace \"default\": apply it, or correct spec.cloudWorker.model.name (did you mean \"big-model\"?)"
            ]
        );
        let both = [malformed(), Finding::new(Reason::EnvInvalid, "spec.edgeWorker.env: no")];
        let denied = review_change(&both, &[], MissingReferences::Warn).denied;
        assert_eq!(
            denied.as_deref(),
            Some("spec.edgeWorker.name \"a b\" must be letters; spec.edgeWorker.env: no")
        );
    }

    #[test]
    fn finding_of_another_object_denies_nothing() {
        for (resource, reason, expected) in [
            (SERVICE, Reason::ModelUrlInvalid, Weight::Elsewhere),
            (SERVICE, Reason::FrameworkUnknown, Weight::Elsewhere),
            (SERVICE, Reason::FrameworksInvalid, Weight::Elsewhere),
            (SERVICE, Reason::NodeNotEdge, Weight::Elsewhere),
            (SERVICE, Reason::NodeNotFound, Weight::Missing),
            (SERVICE, Reason::ScriptDirInvalid, Weight::Malformed),
            (Resource::InferenceModels, Reason::ServingPortTaken, Weight::Elsewhere),
            (Resource::InferenceModels, Reason::ModelDigestInvalid, Weight::Malformed),
            (Resource::InferenceModels, Reason::TargetVersionUnknown, Weight::Malformed),
        ] {
            assert_eq!(weight(resource, reason), expected, "{reason}");
        }
    }

    #[test]
    fn warnings_stay_within_what_an_api_server_passes_on() {
        let long =
            Finding::new(Reason::FrameworksInvalid, format!("line 1\nline 2 {}", "ü".repeat(300)));
        let decision = review_change(&vec![long; 40], &[], MissingReferences::Warn);
        assert_eq!(decision.warnings.len(), 16);
        assert!(
            decision.warnings[0].starts_with("line 1 line 2 ü")
                && decision.warnings[0].ends_with("...")
        );
        assert!(decision.warnings[15].starts_with("and 25 more"));
        assert!(decision.warnings.iter().all(|warning| warning.chars().count() <= 256));
    }
}

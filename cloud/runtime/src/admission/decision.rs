//! Decides the answer to an admission review: allow, warn or deny. Pure. The findings come from the
//! controllers' `validate`, so a warning has the text of the later condition.

use neptune_cloud_kinds::{
    finding::{Finding, Missing},
    reason::Reason,
};
use neptune_wire::Resource;

/// Maximum length of a warning in characters. The API server may truncate longer ones.
const MAX_WARNING_CHARS: usize = 256;

/// Maximum number of warnings: all warnings of a response share 4096 characters.
const MAX_WARNINGS: usize = 4096 / MAX_WARNING_CHARS;

/// What to do about references to objects that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingReferences {
    /// Allow the request with a warning. The object becomes ready when the referenced objects
    /// appear.
    Warn,
    /// Deny the request, unless the stored object has the same references.
    Deny,
}

/// The answer to an admission review.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The reason for the denial; `None` if the write is allowed.
    pub denied: Option<String>,
    /// Warnings shown to the user, one line each.
    pub warnings: Vec<String>,
}

impl Decision {
    /// Denies the write for one more reason, if there is one.
    pub fn deny(&mut self, why: Option<String>) {
        let all = self.denied.take().into_iter().chain(why);
        self.denied = all.reduce(|all, why| format!("{all}; {why}"));
    }
}

/// The severity of a finding at apply time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// Only a change of this object fixes it: deny.
    Malformed,
    /// The object refers to an object that does not exist: warn, or deny by flag.
    Missing,
    /// A change of another object may fix it, perhaps later in the same `kubectl apply`: warn.
    Elsewhere,
}

/// Decides on a write. `before` are the findings of the stored object: they only cause warnings, so
/// that they do not block an unrelated change such as a new label.
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
        let denies = match severity(resource, finding.reason) {
            Severity::Malformed => true,
            Severity::Missing => references == MissingReferences::Deny,
            Severity::Elsewhere => false,
        };
        let text = message(finding, &suggestion);
        if denies && !before.contains(finding) {
            denials.push(text);
        } else {
            decision.warnings.push(one_line(&text));
        }
    }
    limit(&mut decision.warnings);
    decision.denied = (!denials.is_empty()).then(|| denials.join("; "));
    decision
}

fn message(finding: &Finding, suggestion: &impl Fn(&Missing) -> Option<String>) -> String {
    let suggestion = finding.missing.as_ref().and_then(suggestion);
    let hint = suggestion.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default();
    format!("{}{hint}", finding.message)
}

/// A reason that is final for a condition is not final here if another object causes it.
fn severity(resource: Resource, reason: Reason) -> Severity {
    use Reason::{
        AlgorithmUnsuited, DatasetNotFound, FrameworkUnknown, ImageRequired,
        InferenceModelNotFound, ModelDigestInvalid, ModelNotFound, ModelUrlInvalid, NodeNotFound,
        OutputConflict, ProtocolsDiffer, ServiceNotFound, TooManyWorkers,
    };
    match (resource, reason) {
        (
            _,
            ModelNotFound
            | DatasetNotFound
            | NodeNotFound
            | InferenceModelNotFound
            | ServiceNotFound,
        ) => Severity::Missing,
        // The framework table is a ConfigMap, and names the protocols. A service's findings on a
        // Model concern the Model. Datasets with labels, and the owner of a Model, are other objects.
        (
            _,
            FrameworkUnknown | ImageRequired | AlgorithmUnsuited | ProtocolsDiffer | OutputConflict
            | TooManyWorkers,
        )
        | (Resource::JointInferenceServices, ModelUrlInvalid | ModelDigestInvalid) => {
            Severity::Elsewhere
        }
        (_, reason) if reason.condition() == neptune_api::JisConditionType::Failed => {
            Severity::Malformed
        }
        _ => Severity::Elsewhere,
    }
}

/// Warnings are sent as HTTP headers, which have one line.
fn one_line(text: &str) -> String {
    let line = text.replace(|c: char| c.is_control(), " ");
    if line.chars().count() <= MAX_WARNING_CHARS {
        return line;
    }
    line.chars().take(MAX_WARNING_CHARS - 3).chain("...".chars()).collect()
}

fn limit(warnings: &mut Vec<String>) {
    if warnings.len() > MAX_WARNINGS {
        let more = warnings.len() - (MAX_WARNINGS - 1);
        warnings.truncate(MAX_WARNINGS - 1);
        warnings.push(format!("and {more} more; see the conditions in the object's status"));
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
    fn malformed_is_denied_and_missing_reference_warns_or_is_denied() {
        use MissingReferences::{Deny, Warn};
        type Case<'a> = (&'a [Finding], &'a [Finding], MissingReferences, bool, usize);
        let table: &[Case] = &[
            (&[], &[], Deny, false, 0),
            (&[missing()], &[], Warn, false, 1),
            (&[missing()], &[], Deny, true, 0),
            (&[malformed()], &[], Warn, true, 0),
            (&[malformed(), missing()], &[], Warn, true, 1),
            // Findings of the stored object do not block a change.
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
    fn warning_is_the_condition_message_with_a_suggestion() {
        let decision = review_change(&[missing()], &[], MissingReferences::Warn);
        assert_eq!(
            decision.warnings,
            [
                "Model \"big-modle\" not found in namespace \"default\"; create it or correct spec.cloudWorker.model.name (did you mean \"big-model\"?)"
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
    fn finding_of_another_object_is_not_denied() {
        for (resource, reason, expected) in [
            (SERVICE, Reason::ModelUrlInvalid, Severity::Elsewhere),
            (SERVICE, Reason::FrameworkUnknown, Severity::Elsewhere),
            (SERVICE, Reason::FrameworksInvalid, Severity::Elsewhere),
            (SERVICE, Reason::NodeNotEdge, Severity::Elsewhere),
            (SERVICE, Reason::HostPathNotAllowed, Severity::Elsewhere),
            (SERVICE, Reason::NodeIsControlPlane, Severity::Elsewhere),
            (SERVICE, Reason::SecurityContextInvalid, Severity::Malformed),
            (SERVICE, Reason::NodeNotFound, Severity::Missing),
            (SERVICE, Reason::ScriptDirInvalid, Severity::Malformed),
            (Resource::InferenceModels, Reason::ServingPortTaken, Severity::Elsewhere),
            (Resource::InferenceModels, Reason::ModelDigestInvalid, Severity::Malformed),
            (Resource::InferenceModels, Reason::TargetVersionUnknown, Severity::Malformed),
        ] {
            assert_eq!(severity(resource, reason), expected, "{reason}");
        }
    }

    #[test]
    fn warnings_stay_within_the_limits_of_the_api_server() {
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

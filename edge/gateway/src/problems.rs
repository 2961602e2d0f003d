//! Decides which problems a gateway reports, and their texts. Pure. The texts have no time that
//! passes, so that a gateway without requests reports nothing new.

use std::path::Path;

use neptune_cascade::{Unjudged, breaker::BreakerSettings, policy::Goal};
use neptune_wire::{GatewayCloud, GatewayProblem, GatewayProblemReason, GatewaySignal};

use crate::decision::{CloudState, RefusedCall};

/// Samples in a row without a confidence from which on this is a problem.
pub const UNJUDGED_IN_A_ROW: u32 = 20;

/// What is known of a gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts<'a> {
    /// The cloud, as the breaker knows it.
    pub cloud: CloudState,
    /// Calls of the cloud that failed in a row.
    pub failures: u32,
    /// Why the last call failed, until the cloud answers.
    pub cloud_failure: Option<&'a str>,
    /// The address of the cloud.
    pub cloud_url: Option<&'a str>,
    /// Path of the file with the cloud's token; `None` if none is configured.
    pub token_file: Option<&'a Path>,
    /// The status and the text with which the cloud refuses the token.
    pub token_refusal: Option<&'a str>,
    /// The last refusal of the cloud, if it refused the last calls.
    pub cloud_refusal: Option<&'a RefusedCall>,
    /// The outputs from which the confidence is computed.
    pub signal: GatewaySignal,
    /// Why the last samples had no confidence, if so many in a row had none.
    pub unjudged: Option<Unjudged>,
    /// What the policy keeps to: a threshold, a share of uploads or an agreement.
    pub goal: Goal,
    /// The drift of the confidences, if there is one.
    pub drift: Option<Drift>,
    /// Whether the shadows disagree more than before.
    pub is_disagreeing: bool,
    /// The estimated share of samples on which both models agree; `None` if it is not known.
    pub agreement: Option<f64>,
    /// The share of the last samples that the cap kept at the edge, if it is high.
    pub over_budget: Option<f64>,
    /// The share of uploads that the cap permits.
    pub max_ratio: f64,
    /// How the outputs of the two models differ, if they cannot be mixed.
    pub difference: Option<&'a str>,
    /// The address of the edge's model server, if it does not answer.
    pub edge_down: Option<&'a str>,
    /// The last refusal of the edge's model server, if it refused the last calls.
    pub edge_refusal: Option<&'a RefusedCall>,
    /// Why the last requests were not decided, if that is a problem.
    pub undecided: Option<&'a str>,
    /// What is wrong with the cloud's answers, if several in a row could not be used.
    pub invalid_answers: Option<&'a str>,
    /// Why requests are refused: the services are a loop.
    pub refusal: Option<&'a str>,
    /// Whether the gateway in the cloud's place does not call its own cloud.
    pub is_upper_away: bool,
    /// Why captured samples cannot be written.
    pub capture: Option<&'a str>,
    /// What is wrong with the changed configuration, if it is not used.
    pub configuration: Option<&'a str>,
}

/// How far the confidences moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// The population stability index of the confidences.
    pub psi: f64,
    /// The shares of samples below the threshold of before: of the first samples, and of now.
    pub below: Option<(f64, f64)>,
}

impl Facts<'_> {
    /// The state of the cloud in reports. It is left alone until a call succeeds: also between a
    /// pause and the next call.
    pub fn cloud(&self) -> GatewayCloud {
        let is_failing = self.failures >= BreakerSettings::DEFAULT.opens_at;
        match self.cloud {
            CloudState::Absent => GatewayCloud::Absent,
            CloudState::TokenRefused => GatewayCloud::TokenRefused,
            CloudState::LeftAlone { .. } | CloudState::CallPending => GatewayCloud::LeftAlone,
            CloudState::Reachable | CloudState::Unknown | CloudState::RequestsRefused
                if is_failing =>
            {
                GatewayCloud::LeftAlone
            }
            CloudState::RequestsRefused => GatewayCloud::RequestsRefused,
            CloudState::Unknown => GatewayCloud::Unknown,
            CloudState::Reachable => GatewayCloud::Reachable,
        }
    }
}

/// The problems, the most important first.
pub fn problems(facts: &Facts<'_>) -> Vec<GatewayProblem> {
    use GatewayProblemReason::{
        CaptureFailing, CloudAnswerInvalid, CloudLeftAlone, CloudRefusesRequests,
        CloudRefusesToken, ConfigurationInvalid, Drifting, ModelServerDown,
        ModelServerRefusesRequests, OutputsDiffer, OverBudget, ProtocolMismatch, RequestLoop,
        RequestsUndecided, SignalMissing, UpperAway,
    };
    let candidates = [
        (ModelServerDown, model_server_down(facts)),
        (ModelServerRefusesRequests, model_server_refuses_requests(facts)),
        (ProtocolMismatch, protocol_mismatch(facts)),
        (CloudRefusesToken, cloud_refuses_token(facts)),
        (CloudRefusesRequests, cloud_refuses_requests(facts)),
        (CloudAnswerInvalid, cloud_answer_invalid(facts)),
        (RequestLoop, facts.refusal.map(|why| format!("{why}; such requests get the status 508"))),
        (UpperAway, upper_away(facts)),
        (CloudLeftAlone, cloud_left_alone(facts)),
        (ConfigurationInvalid, configuration_invalid(facts)),
        (RequestsUndecided, requests_undecided(facts)),
        (SignalMissing, signal_missing(facts)),
        (OverBudget, over_budget(facts)),
        (Drifting, drifting(facts)),
        (OutputsDiffer, facts.difference.map(str::to_owned)),
        (CaptureFailing, capture_failing(facts)),
    ];
    let problem = |(reason, message): (_, Option<String>)| {
        message.map(|message| GatewayProblem { reason, message })
    };
    candidates.into_iter().filter_map(problem).collect()
}

fn model_server_down(facts: &Facts<'_>) -> Option<String> {
    let address = facts.edge_down?;
    Some(format!(
        "the model server at {address} does not answer; see the InferenceModel on this node"
    ))
}

/// Reports that the model server refuses requests. The text ends with that of the model server.
fn model_server_refuses_requests(facts: &Facts<'_>) -> Option<String> {
    let RefusedCall { url, status, reason } = facts.edge_refusal?;
    let remedy = match status {
        404 => "check the model's name there and in the requests of clients",
        413 | 429 | 500.. => "see its log",
        _ => "check what clients send",
    };
    Some(format!(
        "the model server at {url} refuses every request ({reason}): none is judged, and the cloud \
         answers only what is beyond the capacity of the edge; {remedy}"
    ))
}

fn requests_undecided(facts: &Facts<'_>) -> Option<String> {
    let why = facts.undecided?;
    Some(format!(
        "the last requests are not decided and pass to the edge's model server, because they {why}"
    ))
}

/// Numbers that are not what the configuration states.
fn protocol_mismatch(facts: &Facts<'_>) -> Option<String> {
    let reason = facts.unjudged.filter(|reason| !is_missing(*reason))?;
    Some(format!(
        "the answers of the edge's model server cannot be judged ({reason}): every sample stays at \
         the edge; check the protocol of both servers, and output and kind of hardExampleAlgorithm"
    ))
}

fn is_missing(reason: Unjudged) -> bool {
    matches!(reason, Unjudged::Empty | Unjudged::Missing | Unjudged::NoLabel)
}

fn cloud_refuses_token(facts: &Facts<'_>) -> Option<String> {
    if facts.cloud() != GatewayCloud::TokenRefused {
        return None;
    }
    let (host, refusal) = (host(facts), facts.token_refusal.unwrap_or("401 or 403"));
    Some(match facts.token_file {
        Some(file) => format!(
            "{host} refuses the token in {} ({refusal}): every sample stays at the edge; correct the \
             token: the cloud is called again when the file is written, and every few minutes",
            file.display()
        ),
        None => format!(
            "{host} refuses requests without a token ({refusal}): every sample stays at the edge; \
             name a file with a token in tokenFile of the cloud, which is called again every few \
             minutes"
        ),
    })
}

/// Reports that the cloud refuses requests. The text has that of the cloud.
fn cloud_refuses_requests(facts: &Facts<'_>) -> Option<String> {
    let RefusedCall { url, status, reason } =
        facts.cloud_refusal.filter(|_| facts.cloud() == GatewayCloud::RequestsRefused)?;
    let remedy = match status {
        404 => "check url and modelName of the cloud",
        413 => "raise the limit of request bodies there",
        _ => "check modelName and protocol of the cloud, and whether it supports what clients send",
    };
    Some(format!(
        "{} refuses every request ({reason}): hard samples get the edge's answers; {remedy}",
        host_of(url)
    ))
}

fn cloud_answer_invalid(facts: &Facts<'_>) -> Option<String> {
    let answers = facts.invalid_answers?;
    Some(format!(
        "{answers}: hard samples get the edge's answers; check url, modelName and protocol of the \
         cloud"
    ))
}

fn configuration_invalid(facts: &Facts<'_>) -> Option<String> {
    let problem = facts.configuration?;
    Some(format!(
        "the changed configuration is not used: {problem}; the one before stays in force; correct \
         this field"
    ))
}

/// Reports that the cloud is left alone, unless it answers in another form.
fn cloud_left_alone(facts: &Facts<'_>) -> Option<String> {
    if facts.cloud() != GatewayCloud::LeftAlone || facts.invalid_answers.is_some() {
        return None;
    }
    let BreakerSettings { opens_at, pause, .. } = BreakerSettings::DEFAULT;
    let pause = pause.step(facts.failures.saturating_sub(opens_at).saturating_add(1));
    let (failures, seconds) = (facts.failures, pause.as_secs());
    let plural = if failures == 1 { "" } else { "s" };
    let cause = facts.cloud_failure.map(|cause| format!(" ({cause})")).unwrap_or_default();
    Some(format!(
        "{} is left alone after {failures} failure{plural}{cause}: hard samples get the edge's answers; it \
         is called again after a pause of about {seconds} s, or as long as it asks for",
        host(facts)
    ))
}

fn upper_away(facts: &Facts<'_>) -> Option<String> {
    (facts.is_upper_away && facts.cloud() == GatewayCloud::Reachable).then(|| {
        format!(
            "the gateway at {} does not reach its own cloud, and answers hard samples with its own \
             model; see the service that cloudWorker.service names",
            host(facts)
        )
    })
}

/// The scheme, host and port of the cloud's address.
fn host(facts: &Facts<'_>) -> String {
    facts.cloud_url.map_or_else(|| "the cloud".to_owned(), host_of)
}

fn host_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Never a password.
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

fn signal_missing(facts: &Facts<'_>) -> Option<String> {
    if facts.signal == GatewaySignal::None {
        return Some(
            "the edge's server gives no logprobs: every sample stays at the edge; use a server \
             that does, or name Random"
                .to_owned(),
        );
    }
    let reason = facts.unjudged.filter(|reason| is_missing(*reason))?;
    Some(format!(
        "the last answers of the edge's server have no confidence ({reason}): such samples stay at \
         the edge; check output, labels and signal of hardExampleAlgorithm"
    ))
}

fn over_budget(facts: &Facts<'_>) -> Option<String> {
    let share = facts.over_budget?;
    Some(format!(
        "the cap of {} is reached: {} of the last 1000 samples were hard and stayed at the edge; \
         raise maxUploadRatio, or lower the threshold or the goal",
        percent(facts.max_ratio),
        percent(share)
    ))
}

fn capture_failing(facts: &Facts<'_>) -> Option<String> {
    let problem = facts.capture?;
    Some(format!(
        "samples cannot be captured ({problem}): they are dropped and counted, and requests are \
         answered; check the directory of the Dataset of gateway.capture and the space on its disk"
    ))
}

fn drifting(facts: &Facts<'_>) -> Option<String> {
    let moved = match (facts.drift, facts.is_disagreeing) {
        (Some(Drift { psi, below: None }), _) => {
            format!("the confidence at the edge moved (PSI {psi:.2})")
        }
        (Some(Drift { psi, below: Some((then, now)) }), _) => format!(
            "the confidence at the edge moved (PSI {psi:.2}), {} of samples are below the \
             threshold of before, {} then",
            percent(now),
            percent(then)
        ),
        (None, true) => "the answers of the two models differ more often than before".to_owned(),
        (None, false) => return None,
    };
    let kept = match facts.goal {
        Goal::Threshold => "the threshold stays".to_owned(),
        Goal::UploadRatio(ratio) | Goal::TrackedRatio { ratio, .. } => {
            format!("the upload ratio of {} is kept", percent(ratio.get()))
        }
        Goal::Agreement(agreement) => {
            format!("the agreement of {agreement} is kept", agreement = percent(agreement.get()))
        }
    };
    let agreement = facts
        .agreement
        .map(|agreement| format!(", the agreement with the cloud is {agreement:.2}"));
    Some(format!(
        "{moved}: {kept}{}; check the inputs, or train the edge's model again",
        agreement.unwrap_or_default()
    ))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use neptune_cascade::Share;

    use super::*;

    fn healthy() -> Facts<'static> {
        Facts {
            cloud: CloudState::Reachable,
            cloud_failure: None,
            failures: 0,
            cloud_url: Some("https://user:secret@llm.example/v1"),
            token_file: Some(Path::new("/etc/neptune/secrets/llm")),
            token_refusal: None,
            cloud_refusal: None,
            signal: GatewaySignal::Top2,
            unjudged: None,
            goal: Goal::UploadRatio(Share::percent(20)),
            drift: None,
            is_disagreeing: false,
            agreement: Some(0.834),
            over_budget: None,
            max_ratio: 0.3,
            difference: None,
            edge_down: None,
            edge_refusal: None,
            undecided: None,
            invalid_answers: None,
            refusal: None,
            is_upper_away: false,
            capture: None,
            configuration: None,
        }
    }

    const LEFT_ALONE: CloudState =
        CloudState::LeftAlone { pause: Duration::from_millis(700), failures: 5 };

    fn assert_problem(facts: &Facts, reason: GatewayProblemReason, text: &str) {
        let problems = problems(facts);
        let [problem] = &problems[..] else { unreachable!("{problems:?}") };
        assert_eq!((problem.reason, &*problem.message), (reason, text));
    }

    #[test]
    fn each_state_of_the_cloud_is_one_problem_with_its_text() {
        let refusal = RefusedCall {
            url: "https://user:secret@llm.example/v1".to_owned(),
            status: 404,
            reason: "404 Not Found: no model x".to_owned(),
        };
        for (facts, reason, text) in [
            (
                Facts {
                    cloud: LEFT_ALONE,
                    failures: 5,
                    cloud_failure: Some("connection refused"),
                    ..healthy()
                },
                GatewayProblemReason::CloudLeftAlone,
                "https://llm.example is left alone after 5 failures (connection refused): hard samples get the edge's \
                 answers; it is called again after a pause of about 4 s, or as long as it asks for",
            ),
            (
                Facts {
                    cloud: CloudState::TokenRefused,
                    failures: 1,
                    token_refusal: Some("403 Forbidden: quota exceeded"),
                    ..healthy()
                },
                GatewayProblemReason::CloudRefusesToken,
                "https://llm.example refuses the token in /etc/neptune/secrets/llm (403 Forbidden: \
                 quota exceeded): every sample stays at the edge; correct the token: the cloud is \
                 called again when the file is written, and every few minutes",
            ),
            (
                Facts {
                    cloud: CloudState::TokenRefused,
                    failures: 1,
                    token_file: None,
                    token_refusal: Some("401 Unauthorized: no key"),
                    ..healthy()
                },
                GatewayProblemReason::CloudRefusesToken,
                "https://llm.example refuses requests without a token (401 Unauthorized: no key): \
                 every sample stays at the edge; name a file with a token in tokenFile of the \
                 cloud, which is called again every few minutes",
            ),
            (
                Facts {
                    cloud: CloudState::RequestsRefused,
                    cloud_refusal: Some(&refusal),
                    ..healthy()
                },
                GatewayProblemReason::CloudRefusesRequests,
                "https://llm.example refuses every request (404 Not Found: no model x): hard \
                 samples get the edge's answers; check url and modelName of the cloud",
            ),
        ] {
            assert_problem(&facts, reason, text);
        }
    }

    #[test]
    fn each_fact_is_one_problem_with_its_text() {
        let edge = RefusedCall {
            url: "127.0.0.1:9001".to_owned(),
            status: 400,
            reason: "400 Bad Request: bad shape".to_owned(),
        };
        for (facts, reason, text) in [
            (
                Facts { signal: GatewaySignal::None, ..healthy() },
                GatewayProblemReason::SignalMissing,
                "the edge's server gives no logprobs: every sample stays at the edge; use a server \
                 that does, or name Random",
            ),
            (
                Facts { drift: Some(Drift { psi: 0.312, below: Some((0.2, 0.381)) }), ..healthy() },
                GatewayProblemReason::Drifting,
                "the confidence at the edge moved (PSI 0.31), 38 % of samples are below the \
                 threshold of before, 20 % then: the upload ratio of 20 % is kept, the agreement \
                 with the cloud is 0.83; check the inputs, or train the edge's model again",
            ),
            (
                Facts {
                    invalid_answers: Some("expected a JSON object with outputs, received HTML"),
                    cloud: LEFT_ALONE,
                    failures: 5,
                    ..healthy()
                },
                GatewayProblemReason::CloudAnswerInvalid,
                "expected a JSON object with outputs, received HTML: hard samples get the edge's \
                 answers; check url, modelName and protocol of the cloud",
            ),
            (
                Facts { edge_refusal: Some(&edge), ..healthy() },
                GatewayProblemReason::ModelServerRefusesRequests,
                "the model server at 127.0.0.1:9001 refuses every request (400 Bad Request: bad \
                 shape): none is judged, and the cloud answers only what is beyond the capacity of \
                 the edge; check what clients send",
            ),
            (
                Facts { undecided: Some("are to /v1/embeddings"), ..healthy() },
                GatewayProblemReason::RequestsUndecided,
                "the last requests are not decided and pass to the edge's model server, because \
                 they are to /v1/embeddings",
            ),
            (
                Facts { configuration: Some("unknown field `prot`"), ..healthy() },
                GatewayProblemReason::ConfigurationInvalid,
                "the changed configuration is not used: unknown field `prot`; the one before stays \
                 in force; correct this field",
            ),
            (
                Facts { over_budget: Some(0.12), ..healthy() },
                GatewayProblemReason::OverBudget,
                "the cap of 30 % is reached: 12 % of the last 1000 samples were hard and stayed at \
                 the edge; raise maxUploadRatio, or lower the threshold or the goal",
            ),
            (
                Facts { difference: Some("outputs differ"), ..healthy() },
                GatewayProblemReason::OutputsDiffer,
                "outputs differ",
            ),
            (
                Facts { capture: Some("No space left on device (os error 28)"), ..healthy() },
                GatewayProblemReason::CaptureFailing,
                "samples cannot be captured (No space left on device (os error 28)): they are \
                 dropped and counted, and requests are answered; check the directory of the \
                 Dataset of gateway.capture and the space on its disk",
            ),
            (
                Facts { refusal: Some("this request came back over a, b"), ..healthy() },
                GatewayProblemReason::RequestLoop,
                "this request came back over a, b; such requests get the status 508",
            ),
            (
                Facts { is_upper_away: true, ..healthy() },
                GatewayProblemReason::UpperAway,
                "the gateway at https://llm.example does not reach its own cloud, and answers hard \
                 samples with its own model; see the service that cloudWorker.service names",
            ),
            (
                Facts { edge_down: Some("127.0.0.1:9001"), ..healthy() },
                GatewayProblemReason::ModelServerDown,
                "the model server at 127.0.0.1:9001 does not answer; see the InferenceModel on \
                 this node",
            ),
        ] {
            assert_problem(&facts, reason, text);
        }
        assert_eq!(problems(&healthy()), []);
    }

    #[test]
    fn unjudged_samples_are_missing_or_of_another_form() {
        for (unjudged, reason) in [
            (Unjudged::Missing, GatewayProblemReason::SignalMissing),
            (Unjudged::NoLabel, GatewayProblemReason::SignalMissing),
            (Unjudged::OutOfRange, GatewayProblemReason::ProtocolMismatch),
            (Unjudged::SingleClass, GatewayProblemReason::ProtocolMismatch),
        ] {
            let facts =
                Facts { unjudged: Some(unjudged), signal: GatewaySignal::Scores, ..healthy() };
            let problems = problems(&facts);
            let [problem] = &problems[..] else { unreachable!("{problems:?}") };
            assert_eq!(problem.reason, reason);
            assert!(problem.message.contains(unjudged.as_str()), "{}", problem.message);
        }
    }

    #[test]
    fn cloud_stays_left_alone_until_a_call_succeeds() {
        let state = |cloud, failures| Facts { cloud, failures, ..healthy() }.cloud();
        assert_eq!(state(CloudState::Reachable, 2), GatewayCloud::Reachable);
        assert_eq!(state(CloudState::Reachable, 3), GatewayCloud::LeftAlone, "its pause is over");
        assert_eq!(state(CloudState::CallPending, 3), GatewayCloud::LeftAlone);
        assert_eq!(state(CloudState::Absent, 9), GatewayCloud::Absent);
        assert_eq!(state(CloudState::RequestsRefused, 2), GatewayCloud::RequestsRefused);
        assert_eq!(state(CloudState::RequestsRefused, 3), GatewayCloud::LeftAlone);
    }

    #[test]
    fn text_does_not_change_while_the_pause_passes() {
        let left_alone = |millis| {
            let pause = Duration::from_millis(millis);
            let cloud = CloudState::LeftAlone { pause, failures: 4 };
            problems(&Facts { cloud, failures: 4, ..healthy() })
        };
        assert_eq!(left_alone(1900), left_alone(100));
    }

    #[test]
    fn problems_are_ordered_by_importance() {
        let facts = Facts {
            edge_down: Some("a:1"),
            cloud: CloudState::TokenRefused,
            drift: Some(Drift { psi: 0.3, below: None }),
            ..healthy()
        };
        let reasons: Vec<_> = problems(&facts).into_iter().map(|problem| problem.reason).collect();
        assert!(reasons.is_sorted(), "{reasons:?}");
        assert_eq!(reasons.len(), 3);
    }
}

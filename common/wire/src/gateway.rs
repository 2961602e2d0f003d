//! What a gateway reports of its decisions and of its two model servers, beside its counters. It is
//! bounded when it is decoded. What is not understood counts as absent.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::unknown::{self, deserialize_known};

/// Maximum number of problems of a report. Further ones are dropped.
pub const MAX_PROBLEMS: usize = 8;

/// Maximum number of clients of a report. Further ones are dropped.
pub const MAX_CLIENTS: usize = 32;

/// Maximum length of a client's name in bytes. Rows with a longer one are dropped.
const MAX_CLIENT_NAME: usize = 63;

/// Maximum length of the time in a client's row in bytes. A longer one is dropped.
const MAX_CLIENT_SINCE: usize = 40;

/// Maximum length of a problem's message in characters. Longer ones are truncated.
pub const MAX_PROBLEM_CHARS: usize = 512;

/// The state of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayReport {
    /// The data from which the confidence of a sample is computed.
    #[serde(default)]
    pub signal: GatewaySignal,
    /// The state of the cloud's server.
    #[serde(default)]
    pub cloud: GatewayCloud,
    /// The confidence below which a sample is hard.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Figure>,
    /// The estimated share of samples whose answer is that of the cloud's model.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Figure>,
    /// The lower end of the 95 % interval of `agreement`.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub agreement_low: Option<Figure>,
    /// The upper end of the 95 % interval of `agreement`.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub agreement_high: Option<Figure>,
    /// The share of the last 1000 samples that the cloud answered.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub upload_ratio: Option<Figure>,
    /// The population stability index of the confidences.
    #[serde(default, deserialize_with = "figure", skip_serializing_if = "Option::is_none")]
    pub psi: Option<Figure>,
    /// The capture of samples, if there is one.
    #[serde(default, deserialize_with = "capture", skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureReport>,
    /// What the clients of the gateway asked for, in the order of the spec: 32 or
    /// fewer.
    #[serde(default, deserialize_with = "unknown::list", skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<ClientReport>,
    /// What a user should correct, the most important first.
    #[serde(default, deserialize_with = "unknown::list", skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<GatewayProblem>,
}

/// The capture of samples since the start of the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CaptureReport {
    /// Samples that were written.
    pub captured: u64,
    /// Samples that were to be written and are not.
    pub dropped: u64,
    /// The size of all records, also of earlier starts, in bytes.
    pub bytes: u64,
}

/// What a client of a gateway asked for, since a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientReport {
    /// Name of the client in the spec of the gateway.
    pub name: String,
    /// Time at which the gateway began to count, RFC 3339.
    #[serde(default)]
    pub since: String,
    /// Number of requests with a key of the client.
    #[serde(default)]
    pub requests: u64,
    /// Number of these that were refused: above the rate, or for another model.
    #[serde(default)]
    pub refused: u64,
    /// Number of answered samples.
    #[serde(default)]
    pub samples: u64,
    /// Number of these that the cloud answered.
    #[serde(default)]
    pub cloud: u64,
    /// Number of hard samples that the cloud did not answer.
    #[serde(default)]
    pub fallback: u64,
    /// Number of hard samples that the cap kept at the edge.
    #[serde(default)]
    pub over_budget: u64,
    /// Number of samples without a confidence.
    #[serde(default)]
    pub unjudged: u64,
}

/// A number of a gateway with three decimals, from 0. In JSON it is a text, so that equal numbers
/// have equal texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Figure(u32);

impl Figure {
    /// Rounds a number. `None` if it is not finite, below 0 or above 4 million.
    pub fn new(number: f64) -> Option<Self> {
        let thousandths = (number * 1000.0).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range is checked"
        )]
        (0.0..=f64::from(u32::MAX)).contains(&thousandths).then_some(Self(thousandths as u32))
    }

    /// Returns the number, a multiple of 0.001.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The data from which a gateway computes the confidence of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum GatewaySignal {
    /// The log-probabilities of the tokens and of one alternative.
    Top2,
    /// The log-probabilities of the tokens.
    Chosen,
    /// The scores in the answer.
    Scores,
    /// The edge's server gives none: every sample stays at the edge.
    None,
    /// The edge's server was not asked yet, or a newer gateway has another one.
    #[default]
    Unknown,
}

deserialize_known!(GatewaySignal {
    "Top2" => Top2, "Chosen" => Chosen, "Scores" => Scores, "None" => None, "Unknown" => Unknown,
} else Unknown);

impl fmt::Display for GatewaySignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The state of the cloud's server. The order is from the best state to the worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum GatewayCloud {
    /// The server was not called yet, or a newer gateway has another state.
    #[default]
    Unknown,
    /// The server is called.
    Reachable,
    /// No server is configured.
    Absent,
    /// The server is not called for a time, after failures.
    LeftAlone,
    /// The server is called, and refused each of the last requests.
    RequestsRefused,
    /// The server refuses the token, and is called again after minutes, or when the token file is
    /// written.
    TokenRefused,
}

deserialize_known!(GatewayCloud {
    "Reachable" => Reachable, "Absent" => Absent, "Unknown" => Unknown,
    "LeftAlone" => LeftAlone, "RequestsRefused" => RequestsRefused,
    "TokenRefused" => TokenRefused,
} else Unknown);

impl fmt::Display for GatewayCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A problem of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayProblem {
    /// The problem, as conditions name it.
    pub reason: GatewayProblemReason,
    /// Human-readable: what is wrong, what the gateway does meanwhile, and the remedy.
    #[serde(default)]
    pub message: String,
}

/// What is wrong with a gateway or its model servers. The names are the reasons of conditions and
/// Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GatewayProblemReason {
    /// The model server at the edge does not answer.
    ModelServerDown,
    /// The model server at the edge answers, and refuses each of the last requests. The message has
    /// the status and the text of the last refusal.
    ModelServerRefusesRequests,
    /// A model server answers in a form that is not of the protocol.
    ProtocolMismatch,
    /// The cloud's server refuses the token.
    CloudRefusesToken,
    /// The cloud's server answers, and refuses each of the last requests. The message has the
    /// status and the text of the last refusal.
    CloudRefusesRequests,
    /// The cloud's server answers in a form that cannot be used.
    CloudAnswerInvalid,
    /// A request came back to the gateway, or passed too many of them.
    RequestLoop,
    /// The gateway in the cloud's place does not call its own cloud.
    UpperAway,
    /// The cloud's server is not called for a time, after failures.
    CloudLeftAlone,
    /// A changed configuration is invalid, and the one before stays in force.
    ConfigurationInvalid,
    /// The last requests are of a kind, or for a model, that is not decided.
    RequestsUndecided,
    /// The edge's server gives nothing from which a confidence can be computed.
    SignalMissing,
    /// The cap of uploads keeps many hard samples at the edge.
    OverBudget,
    /// The confidences differ from those of the first samples.
    Drifting,
    /// The outputs of the two models cannot be mixed in one answer.
    OutputsDiffer,
    /// Samples that should be captured cannot be written.
    CaptureFailing,
    /// A problem of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// A number, also one in a text; absent for anything else.
fn figure<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Figure>, D::Error> {
    let number = match Value::deserialize(input)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(number.and_then(Figure::new))
}

/// Absent if it is not one.
fn capture<'de, D: Deserializer<'de>>(input: D) -> Result<Option<CaptureReport>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(input)?).ok())
}

/// A report within its bounds; absent if it is not one, because the counters beside it count.
///
/// # Errors
/// The value is not JSON.
pub fn lenient<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<Box<GatewayReport>>, D::Error> {
    let value = Value::deserialize(input)?;
    let report = serde_json::from_value::<GatewayReport>(value).ok();
    Ok(report.map(GatewayReport::bounded).map(Box::new))
}

impl GatewayReport {
    /// Returns the report without control characters, and without what exceeds the bounds.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.clients.truncate(MAX_CLIENTS);
        self.clients.retain(|client| client.name.len() <= MAX_CLIENT_NAME);
        for client in &mut self.clients {
            client.name.retain(|c| !c.is_control());
            if client.since.len() > MAX_CLIENT_SINCE {
                client.since.clear();
            }
        }
        self.problems.truncate(MAX_PROBLEMS);
        for problem in &mut self.problems {
            problem.message.retain(|c| !c.is_control());
            if let Some((at, _)) = problem.message.char_indices().nth(MAX_PROBLEM_CHARS) {
                problem.message.truncate(at);
            }
        }
        self
    }

    /// Whether the states are equal: everything but the figures, also those in messages.
    pub fn is_same_state(&self, other: &Self) -> bool {
        let state = |report: &Self| (report.signal, report.cloud);
        let reasons = |report: &Self| -> Vec<_> {
            report.problems.iter().map(|problem| problem.reason).collect()
        };
        state(self) == state(other) && reasons(self) == reasons(other)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::WorkerInfo;

    fn read(gateway: &Value) -> Option<GatewayReport> {
        let info = json!({"gateway": gateway}).to_string();
        WorkerInfo::decode(info.as_bytes()).unwrap().gateway.map(|report| *report)
    }

    #[test]
    fn figure_is_a_number_rounded_to_thousandths() {
        for (number, rounded, text) in [(0.7134, 0.713, "0.713"), (2.0, 2.0, "2.000")] {
            let figure = Figure::new(number).unwrap();
            assert!((figure.get() - rounded).abs() < 1e-9, "{number}");
            assert_eq!(figure.to_string(), text);
        }
        for number in [-0.001, 4_294_967.296, f64::NAN, f64::INFINITY] {
            assert_eq!(Figure::new(number), None, "{number}");
        }
    }

    #[test]
    fn report_round_trips() {
        let report = json!({
            "signal": "Top2", "cloud": "LeftAlone", "threshold": "0.713", "agreement": "0.962",
            "agreementLow": "0.941", "agreementHigh": "0.976", "uploadRatio": "0.200",
            "psi": "0.030", "capture": {"captured": 7, "dropped": 1, "bytes": 900},
            "clients": [{
                "name": "hall", "since": "2026-01-01T00:00:00Z", "requests": 9, "refused": 1,
                "samples": 8, "cloud": 3, "fallback": 2, "overBudget": 1, "unjudged": 1,
            }],
            "problems": [{"reason": "CloudLeftAlone", "message": "m"}],
        });
        let read = read(&report).unwrap();
        assert_eq!(read.problems[0].reason, GatewayProblemReason::CloudLeftAlone);
        assert_eq!(serde_json::to_value(&read).unwrap(), report);
    }

    #[test]
    fn refused_requests_round_trip_and_are_worse_than_a_pause() {
        let message = "http://llm.example refuses requests (404 Not Found: no model m)";
        let report = json!({
            "signal": "Scores", "cloud": "RequestsRefused",
            "problems": [{"reason": "CloudRefusesRequests", "message": message}],
        });
        let read = read(&report).unwrap();
        assert_eq!(read.problems[0].reason, GatewayProblemReason::CloudRefusesRequests);
        assert_eq!(serde_json::to_value(&read).unwrap(), report);
        assert!(GatewayCloud::LeftAlone < read.cloud && read.cloud < GatewayCloud::TokenRefused);
        // The state of a service is the highest of its nodes: one without a call hides no other.
        assert!(GatewayCloud::Unknown < GatewayCloud::Reachable);
        assert!(read.problems[0].reason < GatewayProblemReason::CloudLeftAlone, "it explains more");
    }

    #[test]
    fn unknown_and_invalid_values_do_not_refuse_a_report() {
        let report = read(&json!({
            "signal": "Later", "cloud": "Later", "threshold": 0.5, "agreement": "high",
            "uploadRatio": -1, "psi": null, "later": {}, "capture": {"captured": "many"},
            "problems": [{"reason": "Later", "message": "m", "later": 1}, 7, {"message": "no reason"}],
            "clients": [{"name": "hall", "later": 1}, {"requests": 1}, 7, {"name": "x".repeat(64)}],
        }))
        .unwrap();
        let hall = ClientReport { name: "hall".to_owned(), ..ClientReport::default() };
        assert_eq!(report.clients, [hall]);
        assert_eq!((report.signal, report.cloud), (GatewaySignal::Unknown, GatewayCloud::Unknown));
        assert_eq!(report.threshold.unwrap().to_string(), "0.500");
        assert_eq!((report.agreement, report.upload_ratio, report.psi), (None, None, None));
        assert_eq!(report.capture, None);
        let reasons: Vec<_> = report.problems.iter().map(|problem| problem.reason).collect();
        assert_eq!(reasons, [GatewayProblemReason::Unknown]);
        assert_eq!(read(&json!("running")), None);
    }

    #[test]
    fn report_is_bounded_when_it_is_decoded() {
        let problem =
            json!({"reason": "Drifting", "message": format!("\n{}", "\u{e4}".repeat(600))});
        let report = read(&json!({"problems": vec![problem; 2000]})).unwrap();
        assert_eq!(report.problems.len(), MAX_PROBLEMS);
        assert_eq!(report.problems[0].message.chars().count(), MAX_PROBLEM_CHARS);
    }

    #[test]
    fn figure_has_three_decimals_and_a_range() {
        for (number, text) in
            [(0.0, "0.000"), (0.9996, "1.000"), (0.0304, "0.030"), (12.5, "12.500")]
        {
            assert_eq!(Figure::new(number).unwrap().to_string(), text);
        }
        for bad in [f64::NAN, f64::INFINITY, -0.1, 1e9] {
            assert_eq!(Figure::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn figures_alone_are_no_change_of_state() {
        let report = read(&json!({"signal": "Top2", "cloud": "Reachable"})).unwrap();
        let moved = GatewayReport { threshold: Figure::new(0.7), ..report.clone() };
        assert!(report.is_same_state(&moved) && report != moved);
        let left_alone = GatewayReport { cloud: GatewayCloud::LeftAlone, ..report.clone() };
        assert!(!report.is_same_state(&left_alone));
    }
}

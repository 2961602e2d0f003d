//! What a model's server runs, and how to tell that it serves. Pure: a part of `validate`.

use neptune_api::{InferenceModel, ServingHealth};
use neptune_wire::{HealthCheck, ServerUpdateMode};

use crate::{
    controllers::inference_model::target::{InferenceModelFacts, Mode, mode},
    finding::Finding,
    reason::Reason,
    worker::serving_runtimes::{Server, fill},
};

/// Seconds between two checks when the spec says nothing: a failing server is seen before a user is.
const PERIOD: i32 = 1;
/// Seconds for one check: loading another model can keep a small machine busy.
const TIMEOUT: i32 = 2;
/// Seconds for a start: images are there, but large models are read and compiled.
const START_WITHIN: i32 = 120;
/// Seconds of probation: what crashes at its first requests does so by then.
const PROBATION: i32 = 30;
/// The longest of these times, a day.
const LONGEST: i32 = 86_400;

/// A server's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The image.
    pub image: String,
    /// Replaces the image's entry point; empty leaves it.
    pub command: Vec<String>,
    /// The arguments, with `{version}` for the version.
    pub args: Vec<String>,
    /// How it takes another version.
    pub reload: ServerUpdateMode,
    /// How to tell that it serves.
    pub health: HealthCheck,
    /// Where it finds the versions; `None` when the image brings its model.
    pub directory: Option<Directory>,
}

/// Where a server finds its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// In the container.
    pub path: String,
    /// Whether it takes only whole numbers.
    pub numeric_versions: bool,
}

/// The program of a model on a port.
pub fn program(
    model: &InferenceModel,
    facts: &InferenceModelFacts,
    port: u16,
    findings: &mut Vec<Finding>,
) -> Option<Program> {
    let spec = &model.spec;
    let own = spec.health.clone().unwrap_or_default();
    let (server, image) = match mode(model) {
        Mode::Image(image) => (None, image.to_owned()),
        Mode::Manifest => {
            let server = server(&spec.framework_type, facts, findings);
            // Whatever else is wrong is told at once.
            let Some(server) = server else {
                let _ = health(&own, None, &|text| text.to_owned(), findings);
                return None;
            };
            (Some(server), server.image.clone())
        }
    };
    let fill_in = |directory: &str| {
        let directory = directory.to_owned();
        move |text: &str| fill(text, &spec.model_name, port, &directory)
    };
    let path = server.map(|server| fill_in("")(&server.directory));
    let filled = fill_in(path.as_deref().unwrap_or_default());
    let default = server.and_then(|server| server.health_path.as_deref());
    let health = health(&own, default, &filled, findings)?;
    if server.is_none() && health.http_path.as_ref().is_some_and(|path| path.contains("{version}"))
    {
        let message =
            "spec.health.httpPath: an image that brings its model has no {version}; leave it out";
        findings.push(Finding::new(Reason::HealthInvalid, message));
        return None;
    }
    let all = |list: &[String]| list.iter().map(|text| filled(text)).collect();
    Some(Program {
        image,
        command: server.map(|server| all(&server.command)).unwrap_or_default(),
        args: server.map(|server| all(&server.args)).unwrap_or_default(),
        reload: server.map_or(ServerUpdateMode::Replace, |server| server.reload),
        health,
        directory: path
            .zip(server)
            .map(|(path, server)| Directory { path, numeric_versions: server.numeric_versions }),
    })
}

fn server<'a>(
    framework: &str,
    facts: &'a InferenceModelFacts,
    findings: &mut Vec<Finding>,
) -> Option<&'a Server> {
    let frameworks = match &facts.frameworks {
        Ok(frameworks) => frameworks,
        Err(error) => {
            findings.push(Finding::new(Reason::FrameworksInvalid, error.clone()));
            return None;
        }
    };
    let found = frameworks.server(framework);
    if found.is_none() {
        findings.push(Finding::new(
            Reason::FrameworkUnknown,
            format!(
                "spec.frameworkType {framework:?} has no model server; use one of {}, add `serving` to it in the ConfigMap neptune-frameworks, or give spec.image",
                frameworks.known_servers()
            ),
        ));
    }
    found
}

fn health(
    own: &ServingHealth,
    default: Option<&str>,
    fill: &dyn Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) -> Option<HealthCheck> {
    let before = findings.len();
    let path = own.http_path.as_deref().filter(|path| !path.is_empty());
    let tcp = own.tcp.unwrap_or_default();
    if tcp && path.is_some() {
        let message = "spec.health: httpPath and tcp are two ways of one check; give one";
        findings.push(Finding::new(Reason::HealthInvalid, message));
    }
    if let Some(path) = path
        && (!path.starts_with('/') || path.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        let message =
            format!("spec.health.httpPath {path:?} must begin with '/' and have no white space");
        findings.push(Finding::new(Reason::HealthInvalid, message));
    }
    let mut millis = |name: &str, given: Option<i32>, default: i32, least: i32| {
        let seconds = given.unwrap_or(default);
        if !(least..=LONGEST).contains(&seconds) {
            let message =
                format!("spec.health.{name} {seconds} must be {least} to {LONGEST} seconds");
            findings.push(Finding::new(Reason::HealthInvalid, message));
        }
        u64::try_from(seconds).unwrap_or_default() * 1000
    };
    let check = HealthCheck {
        http_path: path.or(default).filter(|_| !tcp).map(fill),
        period_ms: millis("periodSeconds", own.period_seconds, PERIOD, 1),
        timeout_ms: millis("timeoutSeconds", own.timeout_seconds, TIMEOUT, 1),
        start_within_ms: millis("startWithinSeconds", own.start_within_seconds, START_WITHIN, 1),
        probation_ms: millis("probationSeconds", own.probation_seconds, PROBATION, 0),
    };
    (findings.len() == before).then_some(check)
}

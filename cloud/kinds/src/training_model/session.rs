//! The engine of a training with strategy `Worker`: the container of its server, and what the
//! workers run. A part of `validate`.

use neptune_api::{Aggregation, AggregationStrategy, AggregationWorker, TrainingModel};
use neptune_wire::{ContainerProgram, TrainingContainer, TrainingScript};

use super::{
    aggregator::PORT,
    frozen::{CurrentRun, FrozenSession},
    numbers::invalid,
    resolved::TrainingFacts,
};
use crate::{
    finding::Finding,
    kubernetes::quantities,
    reason::Reason,
    worker::{
        frameworks::{CONTAINER, Engine, Frameworks},
        program::{self, ProgramFields},
    },
};

const DEFAULT_STATE_BYTES: u64 = 1 << 30;

/// Variables of the server and of its workers, beside those of other trainings.
pub const RESERVED: [&str; 12] = [
    "AGGREGATOR_ADDRESS",
    "ATTEMPT",
    "CA_FILE",
    "PORT",
    "SCRIPT_DIR",
    "SESSION_DIR",
    "SESSION_SERVER",
    "STATE_DIR",
    "TLS_CERT_FILE",
    "TLS_KEY_FILE",
    "WORKERS",
    "WORKER_INDEX",
];

/// Whether an engine decides the rounds.
pub fn is_session(model: &TrainingModel) -> bool {
    strategy(model) == AggregationStrategy::Worker
}

fn strategy(model: &TrainingModel) -> AggregationStrategy {
    model.spec.aggregation.as_ref().and_then(|it| it.strategy).unwrap_or_default()
}

fn worker(model: &TrainingModel) -> Option<&AggregationWorker> {
    model.spec.aggregation.as_ref()?.worker.as_ref()
}

fn text(given: Option<&String>) -> &str {
    given.map(String::as_str).unwrap_or_default()
}

fn framework(worker: &AggregationWorker) -> &str {
    let named = worker.framework_type.as_deref().filter(|it| !it.is_empty());
    named.unwrap_or(CONTAINER)
}

/// The engine that the spec names.
fn engine(worker: &AggregationWorker, frameworks: &Frameworks) -> Option<Engine> {
    frameworks.engine(framework(worker), text(worker.framework_version.as_ref()))
}

/// What the workers run, if their framework has an entry for workers of an engine. Without
/// `workerSpec.frameworkType` it is the framework of the server.
pub fn worker_program(
    model: &TrainingModel,
    frameworks: &Frameworks,
) -> Option<crate::worker::frameworks::EngineProgram> {
    let spec = &model.spec.worker_spec;
    let engine = match spec.framework_type.as_deref().filter(|it| !it.is_empty()) {
        Some(type_) => frameworks.engine(type_, text(spec.framework_version.as_ref()))?,
        None => engine(worker(model)?, frameworks)?,
    };
    engine.worker
}

/// The port of the server: of the current run, or else of the spec. `None` without an engine.
pub fn port(model: &TrainingModel, frameworks: Option<&Frameworks>) -> Option<u16> {
    let current = model.status.as_ref().and_then(CurrentRun::from_status);
    if let Some(current) = current {
        return current.frozen.session.map(|session| session.port);
    }
    let worker = worker(model)?;
    given_port(worker).or_else(|| engine(worker, frameworks?)?.port)
}

fn given_port(worker: &AggregationWorker) -> Option<u16> {
    worker.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// The server. Adds a finding for each setting that does not go with an engine.
pub fn session(
    model: &TrainingModel,
    facts: &TrainingFacts,
    container: Option<&TrainingContainer>,
    findings: &mut Vec<Finding>,
) -> Option<FrozenSession> {
    let before = findings.len();
    let mut add = |message: String| findings.push(Finding::new(Reason::TrainingInvalid, message));
    let worker = match (worker(model), is_session(model)) {
        (Some(worker), true) => worker,
        (None, false) => return None,
        _ => {
            add("aggregation.worker goes with strategy Worker, and only with it".to_owned());
            return None;
        }
    };
    for message in contradictions(model) {
        add(message.to_owned());
    }
    // A table that cannot be read is a finding of the workers.
    let engine = engine(worker, facts.frameworks.as_ref().ok()?);
    let Some(engine) = engine else {
        let known = facts.frameworks.as_ref().map(|it| it.known()).unwrap_or_default();
        let message = format!(
            "spec.aggregation.worker.frameworkType {:?} is not one of {known}; correct it or add it to ConfigMap neptune-frameworks",
            framework(worker)
        );
        findings.push(Finding::new(Reason::FrameworkUnknown, message));
        return None;
    };
    let image = worker.image.clone().filter(|image| !image.is_empty()).or(engine.server.image);
    if image.is_none() {
        let message = format!(
            "spec.aggregation.worker.image is missing; set it because framework {:?} has no default image for a server",
            framework(worker)
        );
        findings.push(Finding::new(Reason::ImageRequired, message));
    }
    let command: Vec<String> =
        [engine.server.command, engine.server.args, worker.args.clone()].concat();
    let mut add = |message: String| findings.push(Finding::new(Reason::TrainingInvalid, message));
    if command.is_empty() {
        add("spec.aggregation.worker.args is empty, and the framework has no command for a server: give the command".to_owned());
    }
    if worker.port.is_some() && given_port(worker).is_none() {
        add("spec.aggregation.worker.port must be 1 to 65535".to_owned());
    }
    let port = given_port(worker).or(engine.port);
    match port {
        None => add("spec.aggregation.worker.port is missing, and the framework has none: give the port of the server".to_owned()),
        Some(PORT) => add(format!("spec.aggregation.worker.port {PORT} is that of the aggregator; give another one")),
        Some(_) => {}
    }
    let field = "spec.aggregation.worker.state";
    let state_bytes = worker.state.as_deref().map_or(Some(DEFAULT_STATE_BYTES), |text| {
        let bytes = quantities::parse(text, 1).filter(|bytes| *bytes > 0);
        if bytes.is_none() {
            let why = "must be a Kubernetes quantity above 0, such as \"512Mi\"";
            invalid(field, text, why, findings);
        }
        bytes
    });
    let fields = ProgramFields {
        field: "spec.aggregation.worker",
        resources: worker.resources.as_ref(),
        ..ProgramFields::default()
    };
    let common = program::resolve(&fields, findings);
    let limits = "spec.aggregation.worker.resources.limits";
    quantities::no_devices(limits, &common.devices, "an aggregator gets no devices", findings);
    let (image, port, state_bytes, container) = (image?, port?, state_bytes?, container?);
    if findings.len() > before {
        return None;
    }
    Some(FrozenSession {
        program: ContainerProgram { image, command, env: container.program.env.clone(), ..common },
        port,
        state_bytes,
        script: model.spec.script.as_ref().and_then(|script| {
            Some((script.url.clone()?, script.sha256sum.as_ref()?.to_ascii_lowercase()))
        }),
    })
}

/// The settings that contradict an engine.
fn contradictions(model: &TrainingModel) -> Vec<&'static str> {
    let spec = &model.spec;
    let aggregation: &Aggregation = &spec.aggregation.clone().unwrap_or_default();
    let given = [
        (
            aggregation.node_name.is_some(),
            "aggregation.nodeName does not go with strategy Worker: the server of an engine runs in the cloud",
        ),
        (
            spec.evaluation.is_some(),
            "spec.evaluation does not go with strategy Worker: an engine measures its own weights; remove it",
        ),
        (
            spec.early_stop.is_some(),
            "spec.earlyStop does not go with strategy Worker: an engine decides when it ends; remove it",
        ),
        (
            spec.worker_spec.network == Some(neptune_api::TrainingNetwork::None),
            "spec.workerSpec.network None does not go with strategy Worker: workers connect to the server; remove it",
        ),
        (
            spec.script.as_ref().is_some_and(|script| script.script_dir.is_some()),
            "spec.script.scriptDir does not go with strategy Worker: the server is not on the nodes; give script.url of an archive",
        ),
    ];
    given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, message)| message).collect()
}

/// The program of the workers of a session: with a network, and without the script if the engine
/// brings it.
pub fn of_session(container: &mut TrainingContainer, args: Option<Vec<String>>) {
    container.network = neptune_wire::TrainingNetwork::Bridge;
    if let Some(args) = args {
        container.script = None::<TrainingScript>;
        container.program.args = args;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use neptune_api::TrainingModelStatus;
    use neptune_wire::{
        KeyPin, TaskId, TaskKind,
        aggregator::{RunPhase, RunStatus, RunTask, SessionStatus},
        fixtures::run_status,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        kubernetes::expansion::expanded,
        training_model::{
            fixtures::{self, UID},
            plan::plan,
            validate::{check, validate},
        },
    };

    const TABLE: &str = "flower: {training: {port: 8000, server: {image: 'super:{version}', command: [sh, -c, run]}, \
        worker: {image: 'node:{version}', command: [node], args: ['{aggregator}']}}}";

    fn model(change: impl FnOnce(&mut Value)) -> TrainingModel {
        let mut object = serde_json::to_value(fixtures::model()).unwrap();
        let spec = &mut object["spec"];
        spec.as_object_mut().unwrap().remove("evaluation");
        spec["workerSpec"] = json!({"parameters": [{"key": "lr", "value": "0.1"}]});
        spec["aggregation"] = json!({
            "strategy": "Worker", "rounds": 3,
            "worker": {"frameworkType": "flower", "frameworkVersion": "1", "args": ["-v"]},
        });
        change(spec);
        serde_json::from_value(object).unwrap()
    }

    fn facts() -> TrainingFacts {
        let frameworks = Ok(Arc::new(Frameworks::with(TABLE).unwrap()));
        let mut facts = TrainingFacts { frameworks, ..fixtures::facts() };
        facts.aggregator.session_address = Some("192.0.2.7:30800".to_owned());
        facts
    }

    #[test]
    fn each_contradiction_of_an_engine_is_named() {
        for (change, reason, text) in [
            (
                (|it| it["aggregation"]["worker"] = Value::Null) as fn(&mut Value),
                Reason::TrainingInvalid,
                "goes with strategy Worker, and only with it",
            ),
            (
                |it| it["aggregation"]["strategy"] = json!("FedAvg"),
                Reason::TrainingInvalid,
                "only with it",
            ),
            (
                |it| it["aggregation"]["nodeName"] = json!("edge0"),
                Reason::TrainingInvalid,
                "nodeName",
            ),
            (
                |it| it["earlyStop"] = json!({"patience": 1}),
                Reason::TrainingInvalid,
                "spec.earlyStop does",
            ),
            (
                |it| it["evaluation"] = json!({"dataset": {"name": "digits-test"}, "metric": "a"}),
                Reason::TrainingInvalid,
                "measures its own weights",
            ),
            (
                |it| it["workerSpec"]["network"] = json!("None"),
                Reason::TrainingInvalid,
                "network None",
            ),
            (
                |it| it["script"] = json!({"scriptDir": "/opt/t", "bootFile": "t.py"}),
                Reason::TrainingInvalid,
                "archive",
            ),
            (
                |it| it["aggregation"]["worker"]["frameworkType"] = json!("other"),
                Reason::FrameworkUnknown,
                "flower",
            ),
            (
                |it| it["aggregation"]["worker"] = json!({"args": ["a"], "port": 1}),
                Reason::ImageRequired,
                "worker.image is missing",
            ),
            (
                |it| it["aggregation"]["worker"] = json!({"image": "a", "port": 1}),
                Reason::TrainingInvalid,
                "give the command",
            ),
            (
                |it| it["aggregation"]["worker"] = json!({"image": "a", "args": ["b"]}),
                Reason::TrainingInvalid,
                "worker.port is missing",
            ),
            (
                |it| it["aggregation"]["worker"]["port"] = json!(8418),
                Reason::TrainingInvalid,
                "that of the aggregator",
            ),
            (
                |it| it["workerSpec"]["env"] = json!([{"name": "CA_FILE", "value": "x"}]),
                Reason::EnvInvalid,
                "set by Neptune",
            ),
        ] {
            let findings = check(&model(change), &facts()).unwrap_err();
            let finding =
                findings.iter().find(|it| it.reason == reason && it.message.contains(text));
            assert!(finding.is_some(), "{text}: {findings:#?}");
        }
    }

    #[test]
    fn engine_of_the_table_decides_what_server_and_workers_run() {
        let frozen = check(&model(|_| {}), &facts()).unwrap();
        let session = frozen.session.unwrap();
        assert_eq!((&*session.program.image, session.port), ("super:1", 8000));
        assert_eq!(session.program.command, ["sh", "-c", "run", "-v"]);
        assert_eq!(session.program.env["LR"], "0.1");
        assert_eq!(frozen.settings.session, Some(session.settings(3)));
        let container = frozen.container;
        assert_eq!(
            (&*container.program.image, &container.program.command[..]),
            ("node:1", &["node".to_owned()][..])
        );
        assert_eq!(
            (&container.program.args[..], container.script),
            (&["{aggregator}".to_owned()][..], None)
        );
        assert_eq!(container.network, neptune_wire::TrainingNetwork::Bridge);
        assert_eq!(
            (container.timeout_seconds, frozen.settings.round_timeout_seconds),
            (None, None)
        );
    }

    #[test]
    fn engine_without_workers_in_the_table_runs_the_script() {
        let model = model(|spec| {
            spec["workerSpec"] = json!({"frameworkType": "python", "image": "p:1"});
            spec["aggregation"]["worker"] = json!({"frameworkType": "python", "image": "p:1", "args": ["/program/script/s.py"], "port": 9000});
        });
        let frozen = check(&model, &facts()).unwrap();
        assert_eq!(frozen.session.unwrap().program.command, ["python3", "/program/script/s.py"]);
        assert!(frozen.container.script.is_some());
    }

    #[test]
    fn pod_and_messages_of_a_run_have_its_server() {
        let text = "a$$b $(NAMESPACE)";
        let mut model = model(|spec| spec["workerSpec"]["parameters"][0]["value"] = text.into());
        let frozen = check(&model, &facts()).unwrap();
        let workers = &frozen.settings.workers;
        let (name, worker) = workers.last_key_value().unwrap();
        let task = RunTask {
            worker: name.clone(),
            node: worker.node.clone(),
            dataset: worker.dataset.clone(),
            id: TaskId("t".to_owned()),
            kind: TaskKind::Session,
            round: 1,
            seed: 1,
            base: None,
        };
        let state = RunStatus {
            tasks: vec![task],
            session: Some(SessionStatus { attempt: 1, ca: "pem".to_owned() }),
            ..run_status(UID, 1, RunPhase::Open)
        };
        model.status = Some(TrainingModelStatus {
            run: Some(1),
            run_settings: Some(frozen.to_text()),
            start_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..TrainingModelStatus::default()
        });
        // The changed spec belongs to the next run.
        model.spec.aggregation.as_mut().unwrap().worker.as_mut().unwrap().image =
            Some("next".to_owned());
        let mut facts = facts();
        facts.aggregator.state = Some(Arc::new(state));
        facts.aggregator.pin = Some(KeyPin("sha256:00".to_owned()));
        facts.aggregator.controller_pin = Some(KeyPin("sha256:01".to_owned()));
        let valid = validate(&model, &facts).unwrap();
        let plan = plan(&model, &valid, "fetch:1");
        let training =
            plan.requirements[&worker.node].values().find_map(|it| it.content().training);
        let training = training.unwrap();
        let server = training.session.unwrap();
        assert_eq!((&*server.address, &*server.ca), ("192.0.2.7:30800", "pem"));
        let place = training.tasks[0].place.unwrap();
        assert_eq!((place.index, place.workers), (2, 3));
        let deployment = plan.objects.unwrap().deployment;
        let containers =
            &deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers;
        let (command, _, env) = expanded(&containers[1]);
        assert_eq!(command[2], include_str!("session-server.sh"), "as the kubelet passes it");
        assert_eq!((&*command[4], &*env["LR"]), ("sh", text));
        let objects = serde_json::to_value(&deployment).unwrap();
        let pod = &objects["spec"]["template"]["spec"];
        let server = &pod["containers"][1];
        assert_eq!((&server["image"], &server["name"]), (&json!("super:1"), &json!("server")));
        let mounts: Vec<_> = server["volumeMounts"].as_array().unwrap().iter().collect();
        assert_eq!(mounts[0]["readOnly"], true, "{mounts:?}");
        assert!(mounts.iter().all(|it| it["mountPath"] != "/data"), "the key of the aggregator");
        let fetch = &pod["initContainers"][1];
        assert_eq!(fetch["image"], "fetch:1");
        assert!(fetch.get("env").is_none(), "it has no credentials: {fetch}");
        assert_eq!(valid.volume_bytes, (7 * (2 << 30)) + (256 << 20) + (1 << 30));
    }
}

//! The commands `training stop` and `training restart`: they name the current run in an annotation,
//! and the controller acts on it. `training export` prints what the status has of closed rounds.

use std::io::Write as _;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use neptune_api::TrainingModel;
use neptune_cloud_kinds::training_model::{RESTART_RUN, STOP_RUN};
use serde_json::{Value, json};

use crate::{
    cli::{ExportFormat, Training, TrainingCommand, TrainingExport},
    commands::{connect::connect, training_export},
    error::Error,
};

/// Asks the controller to stop a run, or to start another one, or prints the closed rounds.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, no such object, or no run to stop or repeat.
pub async fn training(command: TrainingCommand) -> Result<(), Error> {
    match command {
        TrainingCommand::Stop(flags) => annotate(flags, false).await,
        TrainingCommand::Restart(flags) => annotate(flags, true).await,
        TrainingCommand::Export(flags) => export(flags).await,
    }
}

async fn annotate(flags: Training, is_restart: bool) -> Result<(), Error> {
    let (api, model, namespace) = get(&flags).await?;
    let name = &flags.name;
    let (patch, text) = decide(&model, name, is_restart).map_err(Error::Training)?;
    let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map_err(Error::api(format!("annotate TrainingModel {namespace}/{name}")))?;
    // A closed pipe is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

async fn export(TrainingExport { training, output }: TrainingExport) -> Result<(), Error> {
    let (_, model, _) = get(&training).await?;
    let history = model.status.map(|status| status.history).unwrap_or_default();
    for note in training_export::notes(&training.name, &history) {
        let _ = writeln!(std::io::stderr(), "TrainingModel {}: {note}", training.name);
    }
    let text = match output {
        ExportFormat::Csv => training_export::csv(&history),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The `TrainingModel` with its namespace.
async fn get(flags: &Training) -> Result<(Api<TrainingModel>, TrainingModel, String), Error> {
    let (client, default) = connect(&flags.cluster).await?;
    let namespace = flags.namespace.clone().unwrap_or(default);
    let api = Api::<TrainingModel>::namespaced(client, &namespace);
    let step = format!("get TrainingModel {namespace}/{}", flags.name);
    let model = api.get(&flags.name).await.map_err(Error::api(step))?;
    Ok((api, model, namespace))
}

/// The change of the object, and what to tell the user. The patch names the run that the user saw: one
/// that has started since is not stopped.
fn decide(model: &TrainingModel, name: &str, is_restart: bool) -> Result<(Value, String), String> {
    let status = model.status.as_ref();
    let run = status.and_then(|status| status.run).filter(|run| *run > 0).ok_or_else(|| {
        format!("TrainingModel {name} has no run yet: see kubectl neptune status tm/{name}")
    })?;
    let last = status.and_then(|status| status.last_run.as_ref());
    let is_over = last.is_some_and(|last| last.run == run);
    let (annotation, text) = match (is_restart, is_over) {
        (false, true) => return Err(format!("run {run} of TrainingModel {name} is over")),
        (false, false) => (STOP_RUN, format!("run {run} stops; its last weights are kept\n")),
        (true, true) => (RESTART_RUN, format!("another run follows run {run}\n")),
        (true, false) => (RESTART_RUN, format!("run {run} stops, and another run follows\n")),
    };
    let suspended = if is_restart && model.spec.suspend == Some(true) {
        "spec.suspend is true: the run starts when it is false\n"
    } else {
        ""
    };
    let patch = json!({"metadata": {"annotations": {annotation: run.to_string()}}});
    Ok((patch, format!("TrainingModel {name}: {text}{suspended}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn model(status: Value) -> TrainingModel {
        let mut model = TrainingModel::new("digits", neptune_api::TrainingModelSpec::default());
        model.status = Some(serde_json::from_value(status).unwrap());
        model
    }

    #[test]
    fn run_that_the_user_saw_is_stopped_or_repeated() {
        let last = json!({"run": 2, "result": "Succeeded", "finished": "2026-01-01T00:00:00Z"});
        let active = model(json!({"run": 3, "lastRun": last}));
        let over = model(json!({"run": 2, "lastRun": last}));
        let decision = |model: &TrainingModel, is_restart| decide(model, "digits", is_restart);
        let annotated = |name: &str, run: &str| json!({"metadata": {"annotations": {name: run}}});
        let (patch, text) = decision(&active, false).unwrap();
        assert_eq!(patch, annotated("neptune.io/stop-run", "3"));
        assert_eq!(text, "TrainingModel digits: run 3 stops; its last weights are kept\n");
        assert_eq!(decision(&active, true).unwrap().0, annotated("neptune.io/restart-run", "3"));
        assert_eq!(decision(&over, true).unwrap().0, annotated("neptune.io/restart-run", "2"));
        assert!(decision(&over, false).unwrap_err().contains("is over"));
        assert!(decision(&model(json!({})), true).unwrap_err().contains("has no run yet"));
    }
}

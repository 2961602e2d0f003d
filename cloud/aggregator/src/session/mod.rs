//! What the aggregator does for a session: lets the server of an attempt start, and takes over what it
//! wrote. Blocking. What follows from it is decided by [`run`](crate::run).

mod progress;

use std::{
    fs::File,
    io::{self, Read as _},
    sync::Arc,
};

use neptune_aggregate::{
    update::{Refusal, check},
    weights::{Weights, WeightsError},
};
use neptune_content::Digest;
use neptune_wire::ContentReference;
use tracing::{info, warn};

use crate::{
    aggregator::{Aggregator, Held},
    error::Error,
    run::{Event, Problem, SessionAttempt, SessionStart, Work},
    session_files::SessionFiles,
};

/// The files that a server may write its weights to.
const WEIGHTS: [&str; 2] = ["weights.npz", "weights.safetensors"];

/// Weights of a session that are a content now, and stay one until this is dropped.
type Imported = (ContentReference, Held);

/// Prepares an attempt and lets its server start. Returns whether that succeeded.
///
/// # Errors
/// A file cannot be read or written.
pub fn start(
    aggregator: &Arc<Aggregator>,
    work: &Work,
    start: &SessionStart,
) -> Result<bool, Error> {
    let files = aggregator.session_files();
    let server = files.server().map_err(Error::file("session/out/server"))?;
    if server != Some(start.server.to_string()) {
        let message = "waiting for the container server of the aggregator's Pod; if this stays, see the Pod (kubectl describe pod)";
        let problem = Problem::new("WaitingForAggregator", message);
        aggregator.apply_result(work, Event::Delayed(problem))?;
        return Ok(false);
    }
    let newest = newest_weights(aggregator, files, start)?;
    let base = newest.as_ref().map(|(content, _)| content).or(start.base.as_ref());
    if let Err(problem) = write(aggregator, files, start, base)? {
        aggregator.apply_result(work, Event::Delayed(problem))?;
        return Ok(false);
    }
    let SessionAttempt { run, attempt } = start.attempt;
    info!(run, attempt, "the server of the session may start");
    aggregator.apply_result(work, Event::SessionStarted(base.cloned()))?;
    let wanted = aggregator.run().and_then(|it| it.work());
    if wanted == Some(Work::WatchSession(start.attempt)) {
        release(files, start.attempt)?;
    }
    Ok(true)
}

/// Lets the server of an attempt start whose weights are stored in the state, and removes the files
/// from which they were taken. It can be repeated after a stop at any point.
fn release(files: &SessionFiles, attempt: SessionAttempt) -> Result<(), Error> {
    files.remove_earlier(attempt).map_err(Error::file("session/out"))?;
    files.start(attempt).map_err(Error::file("session/in/start"))
}

/// The newest usable weights that an earlier attempt of the run wrote before it failed. An attempt
/// that was not started has written none, so an older one may have them.
fn newest_weights(
    aggregator: &Arc<Aggregator>,
    files: &SessionFiles,
    start: &SessionStart,
) -> Result<Option<Imported>, Error> {
    for attempt in files.earlier(start.attempt).map_err(Error::file("session/out"))? {
        match import(aggregator, files, attempt, start.base.as_ref())? {
            Ok(imported) => return Ok(Some(imported)),
            Err(problem) => {
                let (attempt, problem) = (attempt.attempt, problem.message);
                info!(attempt, problem, "an earlier attempt left no usable weights");
            }
        }
    }
    Ok(None)
}

/// Writes the files of an attempt.
fn write(
    aggregator: &Aggregator,
    files: &SessionFiles,
    start: &SessionStart,
    base: Option<&ContentReference>,
) -> Result<Result<(), Problem>, Error> {
    let authority = aggregator.authority()?;
    let (certificate, key) = match authority.sign(&start.host) {
        Ok(signed) => signed,
        Err(why) => {
            let text = format!("no certificate for the address {:?}: {why}", start.host);
            return Ok(Err(Problem::new("WaitingForAggregator", text)));
        }
    };
    let attempt = start.attempt;
    files.stop().map_err(Error::file("session/in/start"))?;
    files.create(attempt).map_err(Error::file("session"))?;
    let mut weights = None;
    if let Some(base) = base {
        let missing = || io::Error::other(format!("content {} is missing", base.sha256));
        let path = aggregator.content(&base.sha256).ok_or_else(missing);
        let path = path.map_err(Error::file("contents"))?;
        let is_npz = crate::aggregator::format_of(&path)
            .is_none_or(|it| it == neptune_aggregate::weights::Format::Npz);
        let name = if is_npz { WEIGHTS[0] } else { WEIGHTS[1] };
        // A copy: the server could change the content through a link.
        let target = files.building(attempt).join(name);
        std::fs::copy(&path, &target).map_err(Error::file(target))?;
        weights = Some(name);
    }
    let env = environment(start, weights);
    let ca = authority.certificate();
    for (file, content) in
        [("env", &*env), ("ca.pem", ca), ("server.pem", &certificate), ("server.key", &key)]
    {
        let written = files.write(attempt, file, content.as_bytes());
        written.map_err(Error::file(files.building(attempt).join(file)))?;
    }
    files.complete(attempt).map_err(Error::file(files.input(attempt)))?;
    Ok(Ok(()))
}

/// The variables of the server, as a shell reads them.
fn environment(start: &SessionStart, weights: Option<&str>) -> String {
    let SessionAttempt { run, attempt } = start.attempt;
    let input = format!("$SESSION_DIR/in/{run}-{attempt}");
    let output = format!("$SESSION_DIR/out/{run}-{attempt}");
    let mut variables = vec![
        ("RUN", run.to_string()),
        ("ATTEMPT", attempt.to_string()),
        ("ROUNDS", start.rounds.to_string()),
        ("WORKERS", start.workers.to_string()),
        ("SEED", start.seed.to_string()),
        ("OUTPUT_DIR", format!("{output}/output")),
        ("STATE_DIR", format!("{output}/state")),
        ("CA_FILE", format!("{input}/ca.pem")),
        ("TLS_CERT_FILE", format!("{input}/server.pem")),
        ("TLS_KEY_FILE", format!("{input}/server.key")),
    ];
    variables.extend(weights.map(|name| ("WEIGHTS_URL", format!("{input}/{name}"))));
    variables
        .iter()
        .fold(String::new(), |text, (name, value)| format!("{text}export {name}=\"{value}\"\n"))
}

/// Takes over what the server of an attempt wrote so far.
///
/// # Errors
/// A file cannot be read or written.
pub fn watch(
    aggregator: &Arc<Aggregator>,
    work: &Work,
    attempt: SessionAttempt,
) -> Result<(), Error> {
    let files = aggregator.session_files();
    // A stop after the state was stored left the server without its start.
    release(files, attempt)?;
    // Before the progress, which is complete then.
    let code = files.exit_code(attempt).map_err(Error::file("session/out"))?;
    let tail = files.tail(attempt, "progress.jsonl", progress::MAX_BYTES);
    if let Some((text, is_cut)) = tail.map_err(Error::file("progress.jsonl"))? {
        let (rounds, problem) = progress::parse(&text, is_cut);
        aggregator.apply_result(work, Event::SessionProgress(rounds, problem))?;
    }
    let Some(code) = code else { return Ok(()) };
    let mut imported = None;
    let result = if code == 0 {
        let base = aggregator.run().and_then(|it| it.base.clone());
        match import(aggregator, files, attempt, base.as_ref())? {
            Ok(output) => Ok(imported.insert(output).0.clone()),
            Err(problem) => Err(problem),
        }
    } else {
        Err(Problem::new("ScriptFailed", ended(code)))
    };
    aggregator.apply_result(work, Event::SessionEnded(result))?;
    files.stop().map_err(Error::file("session/in/start"))
}

fn ended(code: i32) -> String {
    let killed = if code == 137 { " (killed)" } else { "" };
    format!(
        "the server ended with exit code {code}{killed}; see its log: kubectl logs of the aggregator's Pod, container server"
    )
}

/// Makes the weights of an attempt a content. They are checked as those of a round are.
fn import(
    aggregator: &Arc<Aggregator>,
    files: &SessionFiles,
    attempt: SessionAttempt,
    base: Option<&ContentReference>,
) -> Result<Result<Imported, Problem>, Error> {
    let mut outputs = Vec::new();
    for name in WEIGHTS {
        let file = files.output(attempt, name).map_err(Error::file(name))?;
        outputs.extend(file.map(|file| (name, file)));
    }
    let missing = |text: String| Ok(Err(Problem::new("OutputMissing", text)));
    let (name, file) = match outputs.len() {
        1 => outputs.remove(0),
        0 => {
            let text =
                "the server wrote neither weights.npz nor weights.safetensors into OUTPUT_DIR";
            return missing(text.to_owned());
        }
        _ => {
            let text = "the server wrote both weights.npz and weights.safetensors into OUTPUT_DIR";
            return missing(text.to_owned());
        }
    };
    let limit = aggregator.uploads().max_bytes();
    let path = aggregator.work_file("session");
    let Some(content) = copy(file, &path, limit).map_err(Error::file(&path))? else {
        let text =
            format!("{name} of the server has more than the {limit} bytes of maxUpdateBytes");
        return Ok(Err(Problem::new("UpdateTooLarge", text)));
    };
    let base = base.and_then(|it| aggregator.content(&it.sha256));
    let checked = File::open(&path).map_err(WeightsError::Io).and_then(Weights::open);
    let checked = checked.and_then(|weights| match base {
        Some(base) => check(&Weights::open(File::open(base)?)?, &weights),
        None => check(&weights, &weights),
    });
    match checked {
        Ok(Ok(_)) => {}
        Ok(Err(refusal)) => {
            let reason = match refusal {
                Refusal::ShapeMismatch(_) => "ShapeMismatch",
                Refusal::NotFinite { .. } => "NotFinite",
            };
            return Ok(Err(Problem::new(reason, format!("{name} of the server: {refusal}"))));
        }
        Err(WeightsError::Io(source)) => return Err(Error::file(path)(source)),
        Err(error) => return missing(format!("{name} of the server is not usable: {error}")),
    }
    let digest: Digest = content.sha256.parse().expect("it was computed from a digest");
    let held = aggregator.hold(digest);
    aggregator.uploads().adopt(&path, &digest).map_err(Error::file(path))?;
    Ok(Ok((content, held)))
}

/// Copies a file to the disk. `None` if it exceeds the limit.
fn copy(
    source: File,
    target: &std::path::Path,
    limit: u64,
) -> io::Result<Option<ContentReference>> {
    let mut file = File::create(target)?;
    io::copy(&mut source.take(limit.saturating_add(1)), &mut file)?;
    file.sync_all()?;
    let (digest, bytes) = Digest::of_reader(File::open(target)?)?;
    Ok((bytes <= limit).then(|| ContentReference { sha256: digest.to_string(), bytes }))
}

/// Ends the server that runs, if a run does not want it any more.
pub fn stop(aggregator: &Aggregator) {
    if let Err(error) = aggregator.session_files().stop() {
        warn!(%error, "the server of a session cannot be stopped; retrying with the next change");
    }
}

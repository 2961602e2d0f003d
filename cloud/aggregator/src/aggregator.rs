//! The state that requests and the background task share: applies events one after the other, stores
//! each new state before it is visible, and removes contents that nothing needs. Blocking.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use neptune_aggregate::weights::Format;
use neptune_content::{Digest, uploads::Uploads};
use neptune_pinned_tls::Authority;
use neptune_wire::{
    TaskId,
    aggregator::{RunPhase, RunStatus, RunTask, SessionStatus, UpdateReport},
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    clock::Clock,
    error::Error,
    metrics::Metrics,
    run::{Event, Run, TaskResult, Verdict, Work},
    session_files::SessionFiles,
    store::{NewResult, Store},
};

/// The data directory of one aggregator, opened: its database, contents and sessions.
#[derive(Debug)]
pub struct Aggregator {
    store: Mutex<Store>,
    /// The stored state. Readers do not wait for the disk.
    current: watch::Sender<Current>,
    /// Contents that a request is about to use, with the number of such requests.
    held: Mutex<HashMap<Digest, usize>>,
    uploads: Arc<Uploads>,
    directory: PathBuf,
    session: SessionFiles,
    /// The certificate authority of the sessions of an engine. It is created for the first session.
    authority: OnceLock<Authority>,
    clock: Clock,
    metrics: Metrics,
}

/// A state with its revision.
#[derive(Debug, Clone)]
pub struct Current {
    /// Grows with each change.
    pub revision: u64,
    /// The state of the run; `None` before the first request of the controller.
    pub run: Option<Arc<Run>>,
    /// The tasks of the current round, by ID.
    pub tasks: Arc<BTreeMap<TaskId, RunTask>>,
}

/// Keeps a content that no state needs yet. Made by [`Aggregator::hold`].
#[derive(Debug)]
pub struct Held {
    aggregator: Arc<Aggregator>,
    content: Digest,
}

impl Held {
    /// Removes the content, unless the run or another request needs it: a node could fill the disk
    /// with contents that do not count.
    pub fn remove_unneeded(self) {
        let Self { aggregator, content } = &self;
        // No event makes it needed meanwhile, and no request that comes now finds it.
        let _store = aggregator.store.lock();
        let held = aggregator.held.lock();
        let name = content.to_string();
        let is_needed = aggregator.run().is_some_and(|it| it.needs_content(&name));
        if is_needed || held.get(content).is_some_and(|count| *count > 1) {
            return;
        }
        if let Err(error) = aggregator.uploads.remove(content) {
            warn!(%error, %content, "a content that does not count cannot be removed");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.aggregator.held.lock();
        if let Some(count) = held.get_mut(&self.content) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.content);
            }
        }
    }
}

impl Aggregator {
    /// Opens a data directory, or creates it. Unfinished files are removed.
    ///
    /// # Errors
    /// The directory or its database cannot be used.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(Error::file(directory))?;
        let store = Store::open(&directory.join("aggregator.db"))?;
        let contents = directory.join("contents");
        let uploads = Uploads::open(contents.clone(), 0).map_err(Error::file(contents))?;
        let work = directory.join("work");
        if work.exists() {
            fs::remove_dir_all(&work).map_err(Error::file(&work))?;
        }
        fs::create_dir(&work).map_err(Error::file(&work))?;
        let (revision, run) = store.load()?.unzip();
        let run: Option<Arc<Run>> = run.map(Arc::new);
        let tasks = run.as_deref().map(tasks_by_id).unwrap_or_default();
        let current = Current { revision: revision.unwrap_or(0), run, tasks };
        let aggregator = Self {
            current: watch::Sender::new(current.clone()),
            uploads: Arc::new(uploads),
            directory: directory.to_owned(),
            session: SessionFiles::new(directory),
            authority: OnceLock::new(),
            clock: Clock::start(),
            metrics: Metrics::new(),
            store: Mutex::new(store),
            held: Mutex::default(),
        };
        if let Some(run) = &current.run {
            info!(uid = run.uid, run = run.number, round = run.round, "continuing a run");
            aggregator.metrics.observe(None, run);
            aggregator.remove_unneeded(None, run);
        }
        Ok(aggregator)
    }

    /// Applies an event, and stores the new state. Returns that state.
    ///
    /// # Errors
    /// The event does not count, or cannot be stored; then nothing has changed.
    pub fn apply(&self, event: Event) -> Result<Arc<Run>, Error> {
        self.apply_locked(&mut self.store.lock(), event)
    }

    /// Applies the result of background work, unless the run does not want that work any more.
    ///
    /// # Errors
    /// The event cannot be stored.
    pub fn apply_result(&self, work: &Work, event: Event) -> Result<(), Error> {
        let mut store = self.store.lock();
        let wanted = self.run().and_then(|it| it.work());
        if wanted.as_ref() == Some(work) {
            self.apply_locked(&mut store, event)?;
        }
        Ok(())
    }

    fn apply_locked(&self, store: &mut Store, event: Event) -> Result<Arc<Run>, Error> {
        let Current { revision, run: before, mut tasks } = self.current();
        let judged = match &event {
            Event::Judged(result) => before.as_ref().and_then(|it| new_result(it, result)),
            _ => None,
        };
        let now = self.clock.now();
        let run = match (&before, event) {
            (Some(before), event) => before.next(event, now)?,
            (None, Event::Request(request)) => Run::start(*request, now)?,
            (None, _) => return Err(Error::NoRun),
        };
        if let Some(before) = before.as_ref().filter(|it| ***it == run) {
            return Ok(Arc::clone(before));
        }
        let revision = revision + 1;
        let result = judged.as_ref().map(|(round, worker, result)| NewResult {
            round: *round,
            worker,
            result,
        });
        store.save(revision, before.as_deref(), &run, result.as_ref())?;
        let run = Arc::new(run);
        let has_new_tasks = before.as_ref().is_none_or(|it| it.task_epoch() != run.task_epoch());
        if has_new_tasks {
            tasks = tasks_by_id(&run);
        }
        self.current.send_replace(Current { revision, run: Some(Arc::clone(&run)), tasks });
        self.metrics.observe(before.as_deref(), &run);
        log_phase(before.as_deref(), &run);
        self.remove_unneeded(before.as_deref(), &run);
        Ok(run)
    }

    /// Removes contents after changes that can make one unneeded.
    fn remove_unneeded(&self, before: Option<&Run>, run: &Run) {
        self.uploads.set_max_bytes(run.settings.max_update_bytes);
        // Within a round, contents are only added.
        let is_unchanged =
            before.is_some_and(|it| it.task_epoch() == run.task_epoch() && it.keep == run.keep);
        if is_unchanged {
            return;
        }
        let needed = run.needed_contents();
        let tasks = self.current().tasks;
        let is_current = |purpose: &Digest| tasks.contains_key(&TaskId(purpose.to_string()));
        let is_kept = |content: &Digest| {
            self.held.lock().contains_key(content) || needed.contains(&content.to_string())
        };
        if let Err(error) = self.uploads.retain(is_current, is_kept) {
            warn!(%error, "unneeded contents cannot be removed; retrying after the next change");
        }
    }

    /// Returns the current run.
    pub fn run(&self) -> Option<Arc<Run>> {
        self.current.borrow().run.clone()
    }

    /// Returns the current state.
    pub fn current(&self) -> Current {
        self.current.borrow().clone()
    }

    /// Returns what the controller sees. Reads the first bytes of the best weights.
    pub fn status(&self) -> RunStatus {
        let Current { revision, run, .. } = self.current();
        let session = run.as_deref().and_then(|it| self.session_status(it));
        let status = run.map_or_else(|| RunStatus::without_run(revision), |it| it.status(revision));
        let best = status.best.as_ref().and_then(|best| self.content(&best.weights.sha256));
        let format = best.and_then(|path| format_of(&path)).map(|it| it.name().to_owned());
        RunStatus { format, session, ..status }
    }

    fn session_status(&self, run: &Run) -> Option<SessionStatus> {
        run.settings.session.as_ref()?;
        let ca = match self.authority() {
            Ok(authority) => authority.certificate().to_owned(),
            Err(error) => {
                warn!(%error, "no authority for the server of the session");
                return None;
            }
        };
        Some(SessionStatus { attempt: run.attempts.attempt, ca })
    }

    /// Returns the authority of the servers of sessions.
    ///
    /// # Errors
    /// Its file cannot be read or written.
    pub fn authority(&self) -> Result<&Authority, Error> {
        if let Some(authority) = self.authority.get() {
            return Ok(authority);
        }
        // Two requests must not make two.
        let _store = self.store.lock();
        if self.authority.get().is_none() {
            let authority = Authority::load_or_generate(&self.directory.join("session-ca.pem"))?;
            let _ = self.authority.set(authority);
        }
        Ok(self.authority.get().expect("it was set"))
    }

    /// Returns the directory that the server of a session shares.
    pub fn session_files(&self) -> &SessionFiles {
        &self.session
    }

    /// Returns a receiver of states.
    pub fn changes(&self) -> watch::Receiver<Current> {
        self.current.subscribe()
    }

    /// Returns the first result of a task, also of an earlier round of the run.
    ///
    /// # Errors
    /// The database failed.
    pub fn result(&self, task: &TaskId) -> Result<Option<TaskResult>, Error> {
        self.store.lock().result(task)
    }

    /// Stores the report of an update.
    ///
    /// # Errors
    /// The database failed.
    pub fn save_report(
        &self,
        task: &TaskId,
        sha256: &str,
        report: &UpdateReport,
    ) -> Result<(), Error> {
        self.store.lock().save_report(task, sha256, report)
    }

    /// Returns the report of an update.
    ///
    /// # Errors
    /// The database failed.
    pub fn report(&self, task: &TaskId, sha256: &str) -> Result<Option<UpdateReport>, Error> {
        self.store.lock().report(task, sha256)
    }

    /// Keeps a content until the returned value is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>, content: Digest) -> Held {
        *self.held.lock().entry(content).or_default() += 1;
        Held { aggregator: Arc::clone(self), content }
    }

    /// Returns the directory of contents, which also receives the updates of workers.
    pub fn uploads(&self) -> &Arc<Uploads> {
        &self.uploads
    }

    /// Returns the file of a content.
    pub fn content(&self, sha256: &str) -> Option<PathBuf> {
        self.uploads.complete(&sha256.parse().ok()?)
    }

    /// Returns the path of an unfinished file. It is on the file system of the contents.
    pub fn work_file(&self, name: &str) -> PathBuf {
        self.directory.join("work").join(name)
    }

    /// Returns the clock of the program.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the metrics that `/metrics` exports.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

/// Returns round, worker and result, if the worker has none yet.
fn new_result(run: &Run, result: &TaskResult) -> Option<(u32, String, TaskResult)> {
    let task = run.task_of(&result.worker).filter(|it| it.id == result.task)?;
    let known = run.results.get(&task.worker).map(|it| &it.verdict);
    let is_new = matches!(known, None | Some(Verdict::Failed(_)));
    is_new.then(|| (task.round, task.worker, result.clone()))
}

/// The format of a file of weights.
pub fn format_of(path: &Path) -> Option<Format> {
    let mut start = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(Format::START as u64).read_to_end(&mut start).ok()?;
    Format::of_start(&start)
}

/// Logs a run, round or phase that begins.
fn log_phase(before: Option<&Run>, run: &Run) {
    let key = |it: &Run| (it.number, it.round, it.phase());
    if before.map(key) == Some(key(run)) {
        return;
    }
    let (number, round, phase) = key(run);
    if let Some(problem) = run.problem().filter(|_| phase == RunPhase::Failed) {
        let (reason, message) = (&problem.reason, &problem.message);
        warn!(run = number, round, reason, message, "the run failed");
    } else {
        info!(run = number, round, ?phase, "phase begins");
    }
}

fn tasks_by_id(run: &Run) -> Arc<BTreeMap<TaskId, RunTask>> {
    Arc::new(run.current_tasks().into_iter().map(|it| (it.id.clone(), it)).collect())
}

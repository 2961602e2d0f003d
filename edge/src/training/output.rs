//! The files of a task: creates its output directory, measures it while the program runs, and verifies
//! what the program wrote. The directory belongs to the program, so no link in it is followed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    ops::Deref,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use neptune_agent_core::{
    domain::training::{OutputWeights, TaskOutput, TaskProblem, VerifyProblem},
    training::{paths::TaskPaths, result},
};
use neptune_aggregate::{
    update::{self, Refusal},
    weights::{Weights, WeightsError},
};
use neptune_transfer::{Digest, durable};
use neptune_wire::{TaskId, TaskKind, TrainingReason, aggregator::UpdateReport};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

/// Most files and directories in the output directory.
const MAX_ENTRIES: u64 = 1000;
/// Most outputs of a task that are kept because they cannot be removed.
const MAX_ASIDE: u32 = 8;
/// The files that a program may write its weights to.
const WEIGHTS: [&str; 2] = ["weights.npz", "weights.safetensors"];
const RESULT: &str = "result.json";

/// The files of a task.
#[derive(Debug, Clone)]
pub struct TaskFiles(TaskPaths);

/// What is expected of an output.
#[derive(Debug, Clone)]
pub struct Expected {
    pub kind: TaskKind,
    pub max_update_bytes: u64,
    /// Number of samples that the agent counted; `None` if they are not counted.
    pub counted: Option<u64>,
    /// How long the program ran, in seconds.
    pub seconds: u64,
}

impl Deref for TaskFiles {
    type Target = TaskPaths;

    fn deref(&self) -> &TaskPaths {
        &self.0
    }
}

impl TaskFiles {
    /// The ID must be valid: 64 hex digits.
    pub fn new(data_dir: &Path, id: &TaskId) -> Self {
        Self(TaskPaths::new(data_dir, id))
    }

    /// Creates the directory of the task, for the agent alone.
    pub fn create(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }

    /// Writes the certificate of the authority of a session's server. The program may run as any
    /// user.
    pub fn write_ca(&self, ca: &str) -> io::Result<()> {
        fs::write(self.ca(), ca)?;
        fs::set_permissions(self.ca(), fs::Permissions::from_mode(0o644))
    }

    /// Empties the output directory, or creates it, for a program of this user. `agent`: the user of
    /// the agent.
    pub fn reset_output(&self, user: u32, agent: u32) -> io::Result<()> {
        let output = self.output();
        self.create()?;
        match durable::remove(&output) {
            // A directory that the program made belongs to its user. It does not stop the next run.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.set_aside()?,
            removed => removed?,
        }
        fs::DirBuilder::new().mode(0o700).create(&output)?;
        if user == agent {
            return Ok(());
        }
        if agent == 0 {
            return std::os::unix::fs::chown(&output, Some(user), Some(user));
        }
        // The engine may map users. Others cannot reach it: its parent is the agent's alone.
        fs::set_permissions(&output, fs::Permissions::from_mode(0o777))
    }

    /// Gives an output that cannot be removed another name. It is removed with the task, by an agent
    /// that may.
    fn set_aside(&self) -> io::Result<()> {
        for number in 0..MAX_ASIDE {
            let aside = self.dir.join(format!("earlier-output-{number}"));
            if aside.symlink_metadata().is_err() {
                return durable::move_aside(&self.output(), &aside).map(drop);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{MAX_ASIDE} earlier outputs have directories of another user; remove them"),
        ))
    }

    /// Removes all files of the task. What cannot be removed does not keep the rest.
    pub fn remove(&self) -> io::Result<()> {
        durable::remove(&self.dir)
    }

    /// The size of what the program wrote, in bytes: of each file the larger of its length and its
    /// space. `None` if there are too many files.
    pub fn usage(&self) -> io::Result<Option<u64>> {
        let (mut bytes, mut entries) = (0_u64, 0);
        let mut pending = vec![self.output()];
        while let Some(dir) = pending.pop() {
            let listed = match fs::read_dir(&dir) {
                Ok(listed) => listed,
                // The program removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in listed {
                let entry = entry?;
                entries += 1;
                if entries > MAX_ENTRIES {
                    return Ok(None);
                }
                // Of the link itself.
                let Ok(metadata) = entry.path().symlink_metadata() else { continue };
                if metadata.is_dir() {
                    pending.push(entry.path());
                } else {
                    let space = metadata.blocks().saturating_mul(512);
                    bytes = bytes.saturating_add(metadata.len().max(space));
                }
            }
        }
        Ok(Some(bytes))
    }

    /// Verifies the output. Its files are on the disk when it returns. The container must not exist
    /// any more.
    ///
    /// # Errors
    /// The output cannot be used, or could not be read.
    pub fn verify(&self, expected: &Expected) -> Result<TaskOutput, VerifyProblem> {
        let dir = rustix::fs::open(
            self.output(),
            OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let dir = File::from(dir.map_err(|error| self.unreadable(&error.into()))?);
        let report = self.result(&dir, expected)?;
        let weights = if expected.kind == TaskKind::Evaluate {
            None
        } else {
            Some(self.weights(&dir, expected)?)
        };
        dir.sync_all().map_err(|error| self.unreadable(&error))?;
        Ok(TaskOutput { weights, report })
    }

    fn result(&self, dir: &File, expected: &Expected) -> Result<UpdateReport, VerifyProblem> {
        let Some(file) = self.open(dir, RESULT)? else {
            return Err(missing("the program wrote no result.json into OUTPUT_DIR"));
        };
        let mut text = Vec::new();
        let read = file.take(result::MAX_RESULT + 1).read_to_end(&mut text);
        read.map_err(|error| self.unreadable(&error))?;
        if text.len() as u64 > result::MAX_RESULT {
            let limit = result::MAX_RESULT;
            return Err(missing(&format!("result.json has more than {limit} bytes")));
        }
        result::parse(&text, expected.kind, expected.counted, expected.seconds)
            .map_err(|why| missing(&why))
    }

    fn weights(&self, dir: &File, expected: &Expected) -> Result<OutputWeights, VerifyProblem> {
        let mut files = Vec::new();
        for name in WEIGHTS {
            files.extend(self.open(dir, name)?.map(|file| (name, file)));
        }
        let (name, file) = match files.len() {
            1 => files.remove(0),
            0 => {
                return Err(missing(
                    "the program wrote neither weights.npz nor weights.safetensors into OUTPUT_DIR",
                ));
            }
            _ => {
                return Err(missing(
                    "the program wrote weights.npz and weights.safetensors; write one of them",
                ));
            }
        };
        let length = file.metadata().map_err(|error| self.unreadable(&error))?.len();
        if length > expected.max_update_bytes {
            return Err(too_large(
                &format!("{name} has {length} bytes"),
                expected.max_update_bytes,
            ));
        }
        let open = |file: &File| file.try_clone().map_err(WeightsError::from);
        let update = open(&file).and_then(Weights::open);
        let update = update.map_err(|error| self.unusable(name, error))?;
        let base = match expected.kind {
            TaskKind::Initialize => open(&file).and_then(Weights::open),
            _ => File::open(self.base()).map_err(WeightsError::from).and_then(Weights::open),
        };
        let base = base.map_err(|error| {
            VerifyProblem::Retry(TaskProblem::new(
                TrainingReason::DownloadFailed,
                format!("cannot read the weights that the task began with: {error}; retrying"),
            ))
        })?;
        match update::check(&base, &update).map_err(|error| self.unusable(name, error))? {
            Ok(_) => {}
            Err(refusal) => {
                let reason = match refusal {
                    Refusal::ShapeMismatch(_) => TrainingReason::ShapeMismatch,
                    Refusal::NotFinite { .. } => TrainingReason::NotFinite,
                };
                let message = format!("{name} has {refusal}; correct the program");
                return Err(VerifyProblem::Refused(TaskProblem::new(reason, message)));
            }
        }
        file.sync_all().map_err(|error| self.unreadable(&error))?;
        let sha256 = digest(&file, length).map_err(|error| self.unreadable(&error))?;
        Ok(OutputWeights { name: name.to_owned(), sha256: sha256.to_string(), bytes: length })
    }

    /// Opens a plain file in the output directory; `None` if there is none.
    fn open(&self, dir: &File, name: &str) -> Result<Option<File>, VerifyProblem> {
        // A pipe would block without NONBLOCK.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::RDONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => {
                return Err(missing(&format!("{name} is not a plain file")));
            }
            Err(error) => return Err(self.unreadable(&error.into())),
        };
        let metadata = file.metadata().map_err(|error| self.unreadable(&error))?;
        if !metadata.is_file() {
            return Err(missing(&format!("{name} is not a plain file")));
        }
        Ok(Some(file))
    }

    fn unusable(&self, name: &str, error: WeightsError) -> VerifyProblem {
        match error {
            WeightsError::Io(error) => self.unreadable(&error),
            error => missing(&format!("{name}: {error}")),
        }
    }

    fn unreadable(&self, error: &io::Error) -> VerifyProblem {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TrainingReason::DiskFull,
            _ => TrainingReason::OutputMissing,
        };
        let message =
            format!("cannot read the output in {}: {error}; retrying", self.dir.display());
        VerifyProblem::Retry(TaskProblem::new(reason, message))
    }
}

/// Returns the problem that the output exceeds its limit. `what` names the part and its size.
pub fn too_large(what: &str, max_update_bytes: u64) -> VerifyProblem {
    VerifyProblem::Refused(too_large_problem(what, max_update_bytes))
}

/// Returns the same problem as [`too_large`], for a run that still writes.
pub fn too_large_problem(what: &str, max_update_bytes: u64) -> TaskProblem {
    TaskProblem::new(
        TrainingReason::UpdateTooLarge,
        format!(
            "{what}, the limit is {max_update_bytes}; write less, or raise aggregation.maxUpdateBytes"
        ),
    )
}

fn missing(what: &str) -> VerifyProblem {
    VerifyProblem::Refused(TaskProblem::new(TrainingReason::OutputMissing, what))
}

/// The digest of the first `length` bytes of a file.
fn digest(file: &File, length: u64) -> io::Result<Digest> {
    (&*file).rewind()?;
    match Digest::of_reader(file.take(length))? {
        (digest, read) if read == length => Ok(digest),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests;

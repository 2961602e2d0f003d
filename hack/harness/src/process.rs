//! A child process whose output is captured in files, and which is killed when its handle is
//! dropped.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use crate::wait::eventually_some;

/// How many lines of each output are printed after a failed test.
const TAIL: usize = 60;

/// A size in `/proc/<pid>/status` in KiB, such as `VmRSS` (resident now) or `VmHWM` (at most).
///
/// # Panics
/// If the process does not run, or has no such field.
pub fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or_else(|| panic!("{field} of process {pid} is no number of kB"))
}

/// A running program. When dropped, it is killed; if the test failed, the end of its output is
/// printed.
pub struct Process {
    name: String,
    stdout: PathBuf,
    log: PathBuf,
    /// How much of `stdout` was returned by [`Process::next_line`].
    bytes_read: usize,
    child: Child,
}

impl Process {
    /// Starts a program. Its standard output is appended to `<dir>/<name>.out` and its standard
    /// error to `<dir>/<name>.log`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(name: &str, dir: &Path, command: &mut Command) -> Self {
        Self::try_start(name, dir, command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Like [`Process::start`].
    ///
    /// # Errors
    /// If the output files cannot be opened or the program cannot be started.
    pub fn try_start(name: &str, dir: &Path, command: &mut Command) -> io::Result<Self> {
        let file = |extension: &str| dir.join(format!("{name}.{extension}"));
        let open = |path: &Path| File::options().create(true).append(true).open(path);
        let (stdout, log) = (file("out"), file("log"));
        let out = open(&stdout)?;
        let bytes_read = usize::try_from(out.metadata()?.len()).unwrap_or(usize::MAX);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(open(&log)?).spawn()?;
        Ok(Self { name: name.to_owned(), stdout, log, bytes_read, child })
    }

    /// The name under which it was started.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ID of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL and waits for the exit, as after a power failure. Does nothing if it has
    /// exited.
    ///
    /// # Panics
    /// If the operating system does not report the exit.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    ///
    /// # Panics
    /// If it does not exit in time.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal("-TERM");
        self.exited().await
    }

    /// Sends SIGSTOP: it does nothing until [`Process::resume`], as a hanging program.
    ///
    /// # Panics
    /// If it does not run.
    pub fn suspend(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT, which ends [`Process::suspend`].
    ///
    /// # Panics
    /// If it does not run.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Sends SIGHUP, after which many programs read their configuration again.
    ///
    /// # Panics
    /// If it does not run.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(sent.unwrap().success(), "{} does not run", self.name);
    }

    /// Waits for the exit.
    ///
    /// # Panics
    /// If it does not exit in time.
    pub async fn exited(&mut self) -> ExitStatus {
        let what = format!("{} to exit", self.name);
        eventually_some(&what, async || self.child.try_wait().unwrap()).await
    }

    /// The exit status of the process, or `None` while it runs.
    ///
    /// # Panics
    /// If the operating system does not report the state.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the next whole line on its standard output.
    ///
    /// # Panics
    /// If none comes in time.
    pub async fn next_line(&mut self) -> String {
        let what = format!("a line on the standard output of {}", self.name);
        let (stdout, from) = (&self.stdout, self.bytes_read);
        let line = eventually_some(&what, async || {
            let text = read(stdout);
            text[from..].split_once('\n').map(|(line, _)| line.to_owned())
        });
        let line = line.await;
        self.bytes_read += line.len() + 1;
        line
    }

    /// The standard output of the process so far, with that of earlier processes of the same name
    /// and folder.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// The standard error of the process so far, with that of earlier processes of the same name
    /// and folder.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// The last lines of both outputs.
    pub fn tail(&self, lines: usize) -> String {
        let last = |text: String| {
            let all: Vec<_> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        };
        [last(self.stdout()), last(self.log())].join("\n").trim_start().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- last output of {} ---\n{}", self.name, self.tail(TAIL));
        }
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(dir: &Path, script: &str) -> Process {
        Process::start("sh", dir, Command::new("sh").args(["-c", script]))
    }

    #[tokio::test]
    async fn outputs_are_captured_apart_and_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = shell(dir.path(), "echo one; echo two; echo problem >&2");
        assert_eq!(first.next_line().await, "one");
        assert_eq!(first.next_line().await, "two");
        assert!(first.exited().await.success());
        let mut second = shell(dir.path(), "echo three");
        assert_eq!(second.next_line().await, "three");
        assert!(second.exited().await.success());
        assert_eq!((&*second.stdout(), &*second.log()), ("one\ntwo\nthree\n", "problem\n"));
        assert_eq!(second.tail(1), "three\nproblem");
    }

    #[tokio::test]
    async fn terminated_process_may_clean_up_and_killed_one_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done";
        let mut process = shell(dir.path(), script);
        process.next_line().await;
        assert_eq!(process.exit_status(), None);
        assert_eq!(process.terminate().await.code(), Some(3));
        let mut process = shell(dir.path(), script);
        process.next_line().await;
        process.kill();
        assert_eq!(process.exit_status().unwrap().code(), None);
    }
}

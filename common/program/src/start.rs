//! Starts the logs, the TLS library and the threads of a program, runs its command, and decides the
//! exit code.

use std::{fmt::Display, process::ExitCode, time::Duration};

use crate::logs::LogFlags;

/// The exit code of wrong options, settings and files, which another start does not correct. It is
/// also that of clap. Temporary errors have the exit code 1.
const CONFIGURATION: u8 = 2;

/// How many threads run the tasks of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One for each CPU.
    Cpus,
    /// As many threads as the number, on any machine.
    Number(usize),
}

/// A program, and what differs between programs.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name, with which its errors begin.
    pub name: &'static str,
    /// The filter of its log without an option or variable.
    pub log_filter: &'static str,
    /// How many threads run its tasks.
    pub threads: Threads,
}

impl Program {
    /// Runs a command until its end, and returns the exit code of the process.
    /// `is_configuration` decides whether another start fails with the same error.
    pub fn run<E: Display>(
        &self,
        logs: &LogFlags,
        command: impl Future<Output = Result<ExitCode, E>>,
        is_configuration: impl FnOnce(&E) -> bool,
    ) -> ExitCode {
        if let Err(error) = logs.set_up(self.name, self.log_filter) {
            return self.failed(&error, true);
        }
        // Before any TLS connection. It fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = match self.runtime() {
            Ok(runtime) => runtime,
            Err(error) => return self.failed(&format!("cannot start threads: {error}"), false),
        };
        let result = runtime.block_on(command);
        // Threads that compute or wait for a disk do not delay the exit. Files survive that like a
        // power cut.
        runtime.shutdown_background();
        match result {
            Ok(code) => code,
            Err(error) => self.failed(&error, is_configuration(&error)),
        }
    }

    fn runtime(&self) -> std::io::Result<tokio::runtime::Runtime> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        if let Threads::Number(number) = self.threads {
            builder.worker_threads(number);
        }
        builder.thread_keep_alive(Duration::from_secs(1)).enable_all().build()
    }

    fn failed(&self, error: &impl Display, is_configuration: bool) -> ExitCode {
        eprintln!("{}: {error}", self.name);
        if is_configuration { ExitCode::from(CONFIGURATION) } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_configuration_has_an_exit_code_of_its_own() {
        let program = Program { name: "test", log_filter: "off", threads: Threads::Number(1) };
        let code = |code: ExitCode| format!("{code:?}");
        let failed = |is_configuration| code(program.failed(&"broken", is_configuration));
        assert_eq!(failed(true), code(ExitCode::from(2)));
        assert_eq!(failed(false), code(ExitCode::from(1)));
    }
}

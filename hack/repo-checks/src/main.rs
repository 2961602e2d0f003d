//! Prints the files and functions that are longer than the project aims for, longest first; tests
//! are left out, and the report always succeeds. With `flaky FILE...` checks the results of a run
//! of tests against `hack/flaky.txt`.

use std::{fs, process::ExitCode};

use anyhow::{Context as _, bail};
use jiff::{Timestamp, tz::TimeZone};
use repo_checks::{
    extension,
    flaky::{self, FlakyProblem},
    length::{Long, MAX_FILE_LINES, MAX_FUNCTION_LINES, long_file, long_functions},
    root, tracked_files,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        None => {
            report_lengths();
            Ok(())
        }
        Some((command, files)) if command == "flaky" && !files.is_empty() => check_flaky(files),
        Some(_) => Err(anyhow::anyhow!("usage: repo-checks [flaky JUNIT_FILE...]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Fails if a test of these runs passed only when it was repeated and is not listed, or if the list
/// is too old.
fn check_flaky(files: &[String]) -> anyhow::Result<()> {
    let list = "hack/flaky.txt";
    let text = fs::read_to_string(root().join(list)).context(list)?;
    let known = flaky::parse_known(&text).map_err(|problems| anyhow::anyhow!(join(&problems)))?;
    let mut repeated = Vec::new();
    for file in files {
        let junit = fs::read_to_string(file).with_context(|| file.clone())?;
        repeated.extend(flaky::flaky_tests(&junit).with_context(|| file.clone())?);
    }
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let problems = flaky::problems(&known, today, &repeated);
    if !problems.is_empty() {
        bail!("{list}: {}", join(&problems));
    }
    println!(
        "tests that passed only when they were repeated, all of them listed: {}",
        repeated.len()
    );
    Ok(())
}

fn join(problems: &[FlakyProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}

fn report_lengths() {
    let is_source = |path: &str| {
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        extension(path) == "rs" && !is_test
    };
    let files = tracked_files(is_source);
    print(
        &format!("files above {MAX_FILE_LINES} lines before their tests"),
        files.iter().filter_map(long_file),
    );
    print(
        &format!("functions above {MAX_FUNCTION_LINES} lines"),
        files.iter().flat_map(long_functions),
    );
}

fn print(title: &str, long: impl Iterator<Item = Long>) {
    let mut long: Vec<Long> = long.collect();
    long.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.place.cmp(&b.place)));
    println!("{title}: {}", long.len());
    for Long { lines, place } in long {
        println!("{lines:6} {place}");
    }
}

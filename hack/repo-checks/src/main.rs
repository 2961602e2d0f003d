//! Prints the files and functions that are longer than the project aims for, longest first; tests
//! are left out, and the report always succeeds. With `flaky FILE...` checks the results of a run
//! of tests against `hack/flaky.txt`. With `blocks FOLDER` writes the shell blocks of the pages as
//! scripts.

use std::{fmt::Write as _, fs, path::Path, process::ExitCode};

use anyhow::{Context as _, bail};
use jiff::{Timestamp, tz::TimeZone};
use repo_checks::{
    extension, fences,
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
        Some((command, [folder])) if command == "blocks" => write_blocks(Path::new(folder)),
        Some(_) => Err(anyhow::anyhow!("usage: repo-checks [flaky JUNIT_FILE... | blocks FOLDER]")),
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

/// Writes each script of the pages as a file `NUMBER.sh`, and two lists: `scripts` with number,
/// sandbox, name and page of each, and `skipped` with the place and the reason of each block that is
/// not run. `manifests.yaml` has all manifests of the pages.
fn write_blocks(folder: &Path) -> anyhow::Result<()> {
    let (mut list, mut skipped, mut manifests) = (String::new(), String::new(), String::new());
    let mut number = 0;
    for page in tracked_files(fences::is_checked) {
        let (scripts, problems) = fences::scripts(&page);
        if !problems.is_empty() {
            bail!("{}", problems.join("\n  "));
        }
        for script in scripts {
            number += 1;
            fs::write(folder.join(format!("{number}.sh")), script.text)?;
            let sandbox = script.sandbox.name();
            writeln!(list, "{number} {sandbox} {} {}:{}", script.name, page.path, script.line)?;
        }
        for (line, text) in fences::manifests(&page) {
            writeln!(manifests, "# {}:{line}\n{text}---", page.path)?;
        }
        for block in fences::blocks(&page).0 {
            if let fences::Run::Skip(reason) = block.run {
                writeln!(skipped, "{}:{} {reason}", page.path, block.line)?;
            }
        }
    }
    fs::write(folder.join("scripts"), list)?;
    fs::write(folder.join("skipped"), skipped)?;
    fs::write(folder.join("manifests.yaml"), manifests)?;
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
